"""Sampled attention in training: REINFORCE has the gradient of the expected loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Context, Mask, keys_of_rows
from attn.nn.layers import output_matrix
from experiments.data.batches import Batches, assemble
from experiments.objectives.loss import negative_log_likelihood
from experiments.trial.policy_gradient import policy_of
from experiments.trial.program import (
    State,
    build_model,
    hyper_of,
    initial_state,
    numbers_of,
    program_of,
)
from experiments.trial.step import hidden_states, summed_gradients, token_losses
from tests.cases import the_rest_in_ci
from tests.experiments import tiny

DRAWS = 2000
CHUNK = 250
"""Draws of one call of a compiled program."""

KEYS = jax.random.split(jax.random.key(5), DRAWS)


def setting(**changes):
    """One pair a row and no dropout, so that all chance is that of attention."""
    return tiny.resolve(
        **{
            **dict(
                model__kind="rnn",
                model__selection="sampled",
                model__score="bilinear",
                model__P_drop=0.0,
                training__eps_ls=0.0,
                training__entropy_bonus=0.0,
            ),
            **changes,
        }
    )


def one_row(settings):
    """A batch of one row with one pair, and padding after it."""
    flat = tiny.corpus().train
    slots = Batches(flat, batch_size=1, sequence_length=48, seed=0).take(1)[0]
    return jax.tree.map(
        jnp.asarray,
        assemble(flat, np.where(np.arange(slots.shape[-1]) == 0, slots, -1), 20, np),
    )


def built(settings):
    program = program_of(settings, settings.data.vocabulary_size, 48)
    state = jax.device_get(initial_state(program, settings))
    draw = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: jnp.asarray(x + 0.4 * draw.normal(size=x.shape), jnp.float32),
        state.params,
    )
    return program, dict(
        params=params, positions=jax.tree.map(jnp.asarray, state.positions)
    )


def at(c):
    """A baseline that is the same for all."""
    return dict(w=jnp.zeros(16), c=jnp.float32(c))


def gradients(program, trainable, settings, batch, keys):
    """Of a draw for each of the keys, each by itself."""
    hyper = hyper_of(settings)
    # All of one shape, so that one program is compiled.
    chunks = [KEYS.at[: len(some)].set(some)[:CHUNK] for some in chunked(keys)]
    drawn = [drawn_gradients(program, trainable, hyper, batch, one) for one in chunks]
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *jax.device_get(drawn))
    return jax.tree.map(lambda x: x[: len(keys)], joined)


def chunked(keys):
    return [keys[start : start + CHUNK] for start in range(0, len(keys), CHUNK)]


def context(program, settings, key):
    """Returns what the context of a batch of one row has in training."""
    numbers = numbers_of(program, hyper_of(settings))
    return dict(keys=keys_of_rows(key, jnp.arange(1)), numbers=numbers, step=0)


@functools.partial(jax.jit, static_argnums=0)
def drawn_gradients(program, trainable, hyper, batch, keys):
    def one(key):
        keys = keys_of_rows(key, jnp.arange(1))
        state = State(0, **trainable, moments=())
        return summed_gradients(program, state, hyper, batch, keys)[0]

    return jax.vmap(one)(keys)["params"]


def expected_loss(program, sizes, params, batch, w):
    """Computes Σ_i Σ_j π_ij·(−log p_i | key j) over all keys, with the score's matrix `w`."""
    row = jax.tree.map(lambda x: x[0], batch)
    n, m = sizes
    model = build_model(program)
    tokens = batch.source[:, :n], batch.target_in[:, :m]
    both = Context(), Context(Mask.causal())
    _, kept = model.apply(
        {"params": params}, *tokens, *both, capture_intermediates=True
    )
    # Of a layer the states of the one row, without the context.
    h, u = (
        kept["intermediates"][name]["__call__"][0][0][0]
        for name in ("encoder_0", "decoder_0")
    )
    policy = jax.nn.softmax(u @ w @ h.T)
    pair = (
        jnp.broadcast_to(h[None], (m, *h.shape)),
        jnp.broadcast_to(u[:, None], (m, n, u.shape[1])),
    )
    both = jnp.concatenate(pair, -1)
    z = jnp.tanh(
        both @ params["combine"]["kernel"] + params["combine"]["bias"].reshape(1, 1, -1)
    )
    logits = z @ params["embedding"].T + params["output_bias"].reshape(1, 1, -1)
    worse = -jnp.take_along_axis(
        jax.nn.log_softmax(logits), jnp.asarray(row.target_out[:m])[:, None, None], -1
    )[..., 0]
    return (policy * worse).sum()


@pytest.mark.ci
@pytest.mark.parametrize("baseline", [0.0, 4.0])
def test_the_mean_gradient_is_that_of_the_expected_loss(baseline):
    """Whatever the baseline, which may change the spread alone."""
    settings = setting()
    program, trainable = built(settings)
    params = trainable["params"]
    batch = one_row(settings)
    params["cross_attention"]["baseline"] = at(baseline)
    estimates = gradients(program, trainable, settings, batch, KEYS)["cross_attention"][
        "score"
    ]["w"]
    w = params["cross_attention"]["score"]["w"]
    segments = batch.source_segments, batch.target_segments
    sizes = tuple(int((side > 0).sum()) for side in segments)
    gradient = jax.jit(jax.grad(expected_loss, argnums=4), static_argnums=(0, 1))
    expected = gradient(program, sizes, params, batch, w[0])[None]
    error = estimates.std(0) / DRAWS**0.5
    distance = np.abs(estimates.mean(0) - expected) / np.maximum(error, 1e-12)
    assert (
        (expected / np.maximum(error, 1e-12)) ** 2
    ).mean() > 4  # a gradient of 0 would be seen
    assert distance.max() < 5 and (distance**2).mean() < 2


@pytest.mark.ci
def test_a_baseline_that_foretells_makes_the_gradient_steadier():
    settings = setting()
    program, trainable = built(settings)
    batch = one_row(settings)
    spread = []
    for c in (0.0, 6.0):
        trainable["params"]["cross_attention"]["baseline"] = at(c)
        estimates = gradients(program, trainable, settings, batch, KEYS[:500])[
            "cross_attention"
        ]["score"]["w"]
        spread.append(estimates.std(0).mean())
    assert spread[1] < spread[0]


@pytest.mark.ci
def test_the_baseline_learns_the_loss_and_tells_nobody():
    """Its gradient is that of half the squared error; it reaches w and c alone."""
    settings = setting()
    program, trainable = built(settings)
    trainable["params"]["cross_attention"]["baseline"] = dict(
        w=jnp.full(16, 0.1), c=jnp.float32(1)
    )
    batch = one_row(settings)
    key = jax.random.split(jax.random.key(1), 1)
    ctx = context(program, settings, key[0])
    hidden, kept = jax.jit(
        lambda batch: hidden_states(program, trainable, batch, **ctx)
    )(batch)
    policy = policy_of(kept)
    worse = negative_log_likelihood(
        hidden[0], output_matrix(trainable["params"]), batch.target_out[0]
    )
    real = batch.target_segments[0] > 0
    of_draw = gradients(program, trainable, settings, batch, key)
    baseline = of_draw["cross_attention"]["baseline"]
    np.testing.assert_allclose(
        baseline["c"][0],
        -np.where(real, worse - policy["baseline_value"][0], 0).sum(),
        rtol=1e-4,
    )
    assert (
        baseline["w"].shape == (1, 16)
        and np.abs(baseline["w"]).max() > 0
        and not real.all()
    )

    def baseline_value(params):
        own = {**trainable, "params": params}
        _, kept = hidden_states(program, own, batch, **ctx)
        return policy_of(kept)["baseline_value"].sum()

    reached = jax.tree.leaves_with_path(
        jax.jit(jax.grad(baseline_value))(trainable["params"])
    )
    assert {
        jax.tree_util.keystr(path) for path, gradient in reached if np.any(gradient)
    } == {f"['cross_attention']['baseline']['{name}']" for name in "wc"}


@pytest.mark.ci
def test_entropy_is_worth_what_the_setting_says():
    """The gradient differs by that of the entropy, which is 0 where there is one key only."""
    settings = setting()
    program, trainable = built(settings)
    batch = one_row(settings)
    plain, worth = (
        gradients(
            program, trainable, setting(training__entropy_bonus=e), batch, KEYS[:1]
        )
        for e in (0.0, 0.5)
    )
    difference = (
        worth["cross_attention"]["score"]["w"][0]
        - plain["cross_attention"]["score"]["w"][0]
    )

    def entropy(w):
        params = {
            **trainable["params"],
            "cross_attention": {
                **trainable["params"]["cross_attention"],
                "score": {"w": w},
            },
        }
        own = dict(params=params, positions={})
        ctx = context(program, settings, jax.random.key(0))
        policy = policy_of(hidden_states(program, own, batch, **ctx)[1])
        return jnp.where(batch.target_segments > 0, policy["entropy"], 0).sum()

    expected = -0.5 * jax.jit(jax.grad(entropy))(
        trainable["params"]["cross_attention"]["score"]["w"]
    )
    np.testing.assert_allclose(difference, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", the_rest_in_ci(["transformer", "rnn"], first=1))
def test_without_a_key_the_best_is_chosen(kind):
    """What validation sees is that of argmax attention with the same parameters."""
    sampled, best = (
        setting(model__kind=kind, model__selection=choice)
        for choice in ("sampled", "argmax")
    )
    program, trainable = built(sampled)
    batch = one_row(sampled)
    state = State(np.int32(0), **trainable, moments=())
    other = program_of(best, best.data.vocabulary_size, 48)
    params = jax.tree.map(lambda x: x, trainable["params"])
    name = "cross_attention" if kind == "rnn" else "decoder_0"
    inner = params[name] if kind == "rnn" else params[name]["cross_attention"]
    del inner["baseline"]
    losses = jax.jit(token_losses, static_argnums=0)
    np.testing.assert_allclose(
        losses(program, state, batch),
        losses(other, state._replace(params=params), batch),
        rtol=1e-5,
    )
