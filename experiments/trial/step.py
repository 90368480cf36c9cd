"""One training step of one trial, and the losses of its tokens.

No files, no loops, no devices: `lanes` runs a step for several trials on all devices. B rows
of a batch, T tokens of a row, K steps of a dispatch, S slots for pairs in a row.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attn import keys_of_rows
from experiments import optim
from experiments.data.batches import Batch, Corpus, assemble
from experiments.trial.lanes import AXIS
from experiments.trial.policy_gradient import policy_loss, policy_of
from experiments.trial.program import (
    Hyper,
    Program,
    State,
    build_model,
    contexts,
    numbers_of,
)

STEP_METRICS = ("loss", "nll", "learning_rate", "tokens", "grad_norm")


def train_steps(
    program: Program, state: State, hyper: Hyper, corpus: Corpus, slots, count
):
    """Makes `count` updates, on the batches that the first of slots (K, B, S) name.

    Returns the state and metrics (K,).
    """

    def update(i, carry):
        state, all_metrics = carry
        batch = assemble(corpus, slots[i], program.sequence_length)
        batch = program.objective.batch(batch, slots.shape[-1])
        state, metrics = train_step(program, state, hyper, batch)
        all_metrics = {
            name: all_metrics[name].at[i].set(metrics[name]) for name in STEP_METRICS
        }
        return state, all_metrics

    none = dict.fromkeys(STEP_METRICS, jnp.zeros(len(slots)))
    # A loop of `count`, which is data: a shorter dispatch compiles nothing new.
    return jax.lax.fori_loop(0, count, update, (state, none))


def train_step(program: Program, state: State, hyper: Hyper, batch: Batch):
    """Makes one update on this device's rows of the batch.

    Returns the new state and the step's metrics. Gradients are sums over all devices' tokens
    divided by the number of all devices' scored tokens: the same numbers whatever the number
    of devices, and of parts that a device's rows are split into. Dropout is keyed by the
    row's place in the whole batch, for the same reason.
    """
    rows = batch.source.shape[0]
    row = jax.lax.axis_index(AXIS) * rows + jnp.arange(rows)
    # Keyed by the step's number, so that a resumed run draws what it would have drawn.
    key = jax.random.fold_in(jax.random.wrap_key_data(hyper.key), state.step)
    keys = keys_of_rows(key, row)
    gradients, loss, nll = summed_gradients(program, state, hyper, batch, keys)
    tokens = program.objective.scored(batch).sum().astype(jnp.float32)
    gradients, loss, nll, tokens = jax.lax.psum((gradients, loss, nll, tokens), AXIS)
    # A fixed table has no part in the gradient's norm.
    gradients["positions"] = _of_tables(hyper, jnp.multiply, gradients["positions"])
    # Before the division, which the optimizer's own passes then have in them.
    grad_norm = optax.tree.norm(gradients) / tokens
    # After the sum: devices have different numbers of scored tokens.
    gradients = jax.tree.map(lambda g: g / tokens, gradients)
    trainable, moments, rate = _updated(program, state, hyper, gradients)
    metrics = dict(
        loss=loss / tokens,
        nll=nll / tokens,
        learning_rate=rate,
        tokens=tokens,
        grad_norm=grad_norm,
    )
    if program.skip:
        # The step counts all the same, and the moving average has these parameters once
        # more, as its formula says.
        choose = functools.partial(jnp.where, is_finite(metrics, jnp))
        trainable = jax.tree.map(choose, trainable, _trainable(state))
        moments = jax.tree.map(choose, moments, state.moments)
    ema = ()
    if state.ema:
        ema = moving_average(state.ema, trainable, hyper.ema, state.step + 1)
    state = state._replace(step=state.step + 1, **trainable, moments=moments, ema=ema)
    return state, metrics


def _trainable(state):
    return dict(params=state.params, positions=state.positions)


def _updated(program, state, hyper, gradients):
    """Returns what is trained after an update, the optimizer's moments, and the learning rate."""
    recipe = program.recipe
    rate = optim.learning_rate_at(
        recipe, hyper.recipe, state.step + 1, program.model.d_model
    )
    before = _trainable(state)
    trainable, moments = optim.update(
        recipe, hyper.recipe, rate, gradients, state.moments, before
    )
    # Optimizers move what has no gradient too, by weight decay. So trials with fixed and
    # with learned tables are lanes of one program.
    trainable["positions"] = _of_tables(
        hyper,
        lambda is_trained, new, old: jnp.where(is_trained > 0, new, old),
        trainable["positions"],
        before["positions"],
    )
    return trainable, moments, rate


def _of_tables(hyper, function, *tables):
    """Returns function(is_trained, *arrays) of each table of positions."""
    return {
        name: jax.tree.map(
            functools.partial(function, is_trained), *(table[name] for table in tables)
        )
        for name, is_trained in hyper.train_positions.items()
    }


def is_finite(metrics, xp=np):
    """Whether loss and gradient of steps are finite."""
    return xp.isfinite(metrics["loss"]) & xp.isfinite(metrics["grad_norm"])


def summed_gradients(program, state, hyper, batch, keys):
    """Computes (∂ loss / ∂ trainable, loss, nll), sums over the batch's scored tokens.

    They are float32. A batch is split into program.accumulate parts, one after another.
    """
    trainable = _trainable(state)
    # Cast once a step, not at every use; gradients of parts are summed in float32 even so.
    light = jax.tree.map(lambda x: x.astype(program.precision), trainable)
    objective = program.objective

    def of_part(batch, keys):
        def total_loss(light):
            ctx = dict(keys=keys, numbers=numbers_of(program, hyper), step=state.step)
            variables = {**state.variables, **light}
            hidden, kept = hidden_states(program, variables, batch, **ctx)
            params = light["params"]
            weights = objective.scored(batch).astype(jnp.float32)
            loss, nll = objective.loss(params, hidden, batch, weights, hyper.eps_ls)
            reinforce = policy_loss(
                params, hidden, policy_of(kept), batch, hyper.entropy
            )
            # The metrics leave out what is made for its gradient alone.
            return loss + reinforce + own_losses(kept, batch), loss, nll

        (_, loss, nll), pull = jax.vjp(total_loss, light)
        cotangents = (jnp.ones_like(loss), jnp.zeros_like(loss), jnp.zeros_like(nll))
        (gradients,) = pull(cotangents)
        return jax.tree.map(lambda x: x.astype(jnp.float32), (gradients, loss, nll))

    if program.accumulate == 1:
        return of_part(batch, keys)
    parts = jax.tree.map(
        lambda x: x.reshape(program.accumulate, -1, *x.shape[1:]), (batch, keys)
    )
    zeros = (jax.tree.map(jnp.zeros_like, trainable), jnp.float32(0), jnp.float32(0))

    def add(sums, part):
        return jax.tree.map(jnp.add, sums, of_part(*part)), None

    # A scan, so that the activations of one part alone are in memory.
    return jax.lax.scan(add, zeros, parts)[0]


def moving_average(average, new, decay, step):
    """Computes the average after step ≥ 1, over steps s = 1 … step:

        Σ_s decay^(step−s) · new_s / Σ_s decay^(step−s)

    This is Adam's bias correction (Kingma and Ba 2015, section 3) at every step: initial
    values have no weight, and do not hold a short run back.
    """
    # expm1, as 1 − decay^step loses digits in float32 where decay is near 1.
    weight = (1 - decay) / -jnp.expm1(step.astype(jnp.float32) * jnp.log(decay))
    return jax.tree.map(lambda a, x: a + weight * (x - a), average, new)


def token_losses(program: Program, state: State, batch: Batch):
    """Computes −log p of each target token (B, T), without dropout or smoothing.

    It is float32 with exact products, whatever the precision of training, so that a
    perplexity does not depend on how sentences are put into batches.
    """
    with jax.default_matmul_precision("float32"):
        hidden, _ = hidden_states(program, state.variables, batch, step=state.step)
        return program.objective.token_losses(state.params, hidden, batch)


def hidden_states(program, variables, batch, **context):
    """Computes the decoder's last hidden states (B, T, d_model) of packed rows.

    Returns them, and the collections "policy", of sampled attention, and "losses", of what has
    one of its own. There is no dropout without `keys` and `numbers` of the context.
    """
    return program.objective.call(
        build_model(program).apply,
        variables,
        batch.source,
        batch.target_in,
        contexts(batch, **context),
        mutable=["policy", "losses"],
    )


def own_losses(kept, batch: Batch):
    """Sums what layers add to the loss of each of their tokens, over real tokens."""
    total = jnp.float32(0)
    for stack, losses in kept.get("losses", {}).items():
        reads_source = stack.startswith("encoder")
        segments = batch.source_segments if reads_source else batch.target_segments
        for loss in jax.tree.leaves(losses):
            total += jnp.where(segments > 0, loss.astype(jnp.float32), 0).sum()
    return total
