"""Latents: what multi-head latent attention makes keys and values of, and a cache keeps.

C = d_c numbers of a latent, R = d_r of a key that positions turn, J heads of keys and
values, K = d_k, V = d_v.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.arguments import check_heads
from attn.positions import Positions


def matrices_of_kept(
    w_k: Float[Array, "C J K"],
    w_v: Float[Array, "C J V"],
    biases: tuple[Float[Array, "J K"], Float[Array, "J V"]] | None,
    r: int,
):
    """Returns the matrices of keys and values over all that a cache keeps of a token.

    That is its latent; 1, where there are biases, whose row they are; and the r numbers of
    a key that positions have turned, the end of every head's key and in no value.
    """
    if biases is not None:
        w_k, w_v = (
            jnp.concatenate([w, b[None]])
            for w, b in zip((w_k, w_v), biases, strict=True)
        )
    if r:
        w_k = jnp.pad(w_k, ((0, r), (0, 0), (0, r)))
        w_k = w_k.at[-r:, :, -r:].set(jnp.eye(r, dtype=w_k.dtype)[:, None])
        w_v = jnp.pad(w_v, ((0, r), (0, 0), (0, 0)))
    return w_k, w_v


def check_keys(
    h: int,
    h_kv: int | None,
    d_c: int | None,
    d_r: int | None,
    positions: Positions,
) -> None:
    """Raises ValueError for heads that do not divide, and latents that do not fit."""
    if h_kv is not None:
        check_heads(h, h_kv)
    for name, width in (("d_c", d_c), ("d_r", d_r)):
        if width is not None and width < 1:
            raise ValueError(f"{name}={width} must be at least 1, or None for none")
    if d_c is not None and d_r is None and positions.rotates:
        raise ValueError(
            f"positions={positions} turn keys, and those of latents (d_c={d_c}) are not "
            "kept; give d_r, the width of a key beside them that is"
        )
    if d_r is not None and (d_c is None or not positions.rotates):
        raise ValueError(
            f"d_r={d_r} is the width of a key that positions turn, beside latents: it "
            f"needs both, not d_c={d_c} with positions={positions}"
        )
