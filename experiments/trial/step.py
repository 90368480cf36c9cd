"""TODO."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attn import Mask
from attn.hashing import cheap_key
from attn.models.embeddings import output_matrix
from experiments.data.batches import Batch, Corpus, assemble
from experiments.trial.lanes import AXIS
from experiments.trial.loss import cross_entropy, negative_log_likelihood
from experiments.trial.policy import policy_loss
from experiments.trial.program import (
    Hyper,
    Program,
    State,
    build_model,
    call_model,
    optimizer_of,
)

STEP_METRICS = ("loss", "nll", "learning_rate", "tokens", "grad_norm")


def train_steps(
    program: Program, state: State, hyper: Hyper, corpus: Corpus, slots, count
):
    """`count` updates, on the batches that the first of slots (K, rows, S) name. Returns the state and metrics (K,)."""

    def one(i, carry):
        state, kept = carry
        state, metrics = train_step(
            program, state, hyper, assemble(corpus, slots[i], program.sequence_length)
        )
        return state, {
            name: kept[name].at[i].set(metrics[name]) for name in STEP_METRICS
        }

    return jax.lax.fori_loop(
        0, count, one, (state, dict.fromkeys(STEP_METRICS, jnp.zeros(len(slots))))
    )


def train_step(program: Program, state: State, hyper: Hyper, batch: Batch):
    """One update on this device's rows of the batch. Returns the new state and the step's metrics.

    Gradients are sums over all devices' tokens divided by the number of all devices' real tokens: the same numbers
    whatever the number of devices and of parts that a device's rows are walked in. Dropout is keyed by the row's
    place in the whole batch, for the same reason.
    """
    rows = batch.source.shape[0]
    row = jax.lax.axis_index(AXIS) * rows + jnp.arange(rows)
    key = jax.random.fold_in(jax.random.wrap_key_data(hyper.key), state.step)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row)
    trainable = dict(params=state.params, positions=state.positions)
    gradients, loss, nll = summed_gradients(program, trainable, hyper, batch, keys)
    tokens = (batch.target_segments > 0).sum().astype(jnp.float32)
    gradients, loss, nll, tokens = jax.lax.psum((gradients, loss, nll, tokens), AXIS)
    gradients = jax.tree.map(lambda g: g / tokens, gradients)
    gradients["positions"] = jax.tree.map(
        lambda g: g * hyper.train_positions, gradients["positions"]
    )

    rate = learning_rate_at(program, hyper, state.step + 1)
    updates, moments = optimizer_of(program).update(gradients, state.moments)
    before, trainable = (
        trainable,
        jax.tree.map(lambda p, u: p - rate * u, trainable, updates),
    )
    metrics = dict(
        loss=loss / tokens,
        nll=nll / tokens,
        learning_rate=rate,
        tokens=tokens,
        grad_norm=optax.tree.norm(gradients),
    )
    if program.skip:
        # The step counts all the same, and the moving average has these parameters once more, as its formula says.
        trainable, moments = jax.tree.map(
            functools.partial(jnp.where, is_finite(metrics, jnp)),
            (trainable, moments),
            (before, state.moments),
        )
    ema = (
        moving_average(state.ema, trainable, hyper.ema, state.step + 1)
        if state.ema
        else ()
    )
    return State(state.step + 1, *trainable.values(), moments, ema), metrics


def is_finite(metrics, xp=np):
    """Whether loss and gradient of steps are numbers."""
    return xp.isfinite(metrics["loss"]) & xp.isfinite(metrics["grad_norm"])


def summed_gradients(program, trainable, hyper, batch, keys):
    """(∂ loss / ∂ trainable, loss, nll), each summed over the real tokens of `batch` in float32."""
    # Cast once a step, not at every use; the gradients of parts are summed in float32 all the same.
    light = jax.tree.map(lambda x: x.astype(program.precision), trainable)

    def of_part(batch, keys):
        def total_loss(light):
            hidden, policy = jax.vmap(
                lambda row, key: hidden_states(program, light, row, hyper, key)
            )(batch, keys)
            loss, nll = summed_loss(light["params"], hidden, batch, hyper.eps_ls)
            return (
                loss
                + policy_loss(light["params"], hidden, policy, batch, hyper.entropy),
                loss,
                nll,
            )

        (_, loss, nll), pull = jax.vjp(total_loss, light)
        (gradients,) = pull(
            (jnp.ones_like(loss), jnp.zeros_like(loss), jnp.zeros_like(nll))
        )
        return jax.tree.map(lambda x: x.astype(jnp.float32), (gradients, loss, nll))

    if program.accumulate == 1:
        return of_part(batch, keys)
    parts = jax.tree.map(
        lambda x: x.reshape(program.accumulate, -1, *x.shape[1:]), (batch, keys)
    )
    zeros = (jax.tree.map(jnp.zeros_like, trainable), jnp.float32(0), jnp.float32(0))
    return jax.lax.scan(
        lambda sums, part: (jax.tree.map(jnp.add, sums, of_part(*part)), None),
        zeros,
        parts,
    )[0]


def moving_average(average, new, decay, step):
    """The average after step ≥ 1: Σ_s decay^(step−s) · new_s / Σ_s decay^(step−s), over steps s = 1 … step.

    Adam's bias correction (Kingma and Ba 2015, section 3), made at every step: initial values have no weight, and a
    short run is not held back by them.
    """
    weight = (1 - decay) / -jnp.expm1(step.astype(jnp.float32) * jnp.log(decay))
    return jax.tree.map(lambda a, x: a + weight * (x - a), average, new)


def learning_rate_at(program: Program, hyper: Hyper, step):
    """The paper's equation (3), times `learning_rate`: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), step ≥ 1.

    With SGD, `learning_rate` itself.
    """
    if program.optimizer == "sgd":
        return hyper.learning_rate
    s = step.astype(jnp.float32)
    return (
        hyper.learning_rate
        * program.shape.d_model**-0.5
        * jnp.minimum(s**-0.5, s * hyper.warmup**-1.5)
    )


def token_losses(program: Program, state: State, batch: Batch):
    """−log p of each target token (rows, sequence_length), without dropout or smoothing: for perplexity.

    In float32 with exact products, whatever the precision of training, so that a perplexity does not depend on how
    sentences are put into batches.
    """
    trainable = dict(params=state.params, positions=state.positions)
    with jax.default_matmul_precision("float32"):
        hidden, _ = jax.vmap(lambda row: hidden_states(program, trainable, row))(batch)
        tokens = hidden.reshape(-1, hidden.shape[-1])
        losses = negative_log_likelihood(
            tokens, output_matrix(state.params), batch.target_out.reshape(-1)
        )
    return losses.reshape(batch.target_out.shape)


def hidden_states(program, trainable, row, hyper=None, key=None):
    """The decoder's last hidden states for one packed row, (T, d_model), and what `attn.multihead.attend` keeps of
    sampled attention."""
    source, target = row.source_segments, row.target_segments
    rngs = (
        {}
        if key is None
        else {
            name: cheap_key(jax.random.fold_in(key, use)) if use else cheap_key(key)
            for use, name in enumerate(("dropout", "sample"))
        }
    )
    masks = (
        Mask.segments(source, source),
        Mask.causal() & Mask.segments(target, target),
        Mask.segments(target, source),
    )
    hidden, kept = call_model(
        build_model(program, hyper).apply,
        program,
        trainable,
        row.source,
        row.target_in,
        (row.source_positions, row.target_positions),
        masks,
        rngs=rngs,
        mutable=["policy"],
    )
    found = jax.tree.leaves(kept, is_leaf=lambda tree: "log_prob" in tree)
    return hidden, found[0] if found else None


def summed_loss(params, hidden, batch, eps_ls):
    tokens = hidden.reshape(-1, hidden.shape[-1])
    weights = (batch.target_segments > 0).astype(jnp.float32).reshape(-1)
    return cross_entropy(
        tokens, output_matrix(params), batch.target_out.reshape(-1), weights, eps_ls
    )
