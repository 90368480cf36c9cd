"""The pure core of one trial: parameters, loss, optimizer, one step. No files, no loops, no devices.

What a compiled program depends on is a `Program`; what may differ between trials that share one is a `Hyper`.
B rows of a batch, T pieces of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from attn import POSITIONS, Mask, NoPositions, Shape, Transformer
from experiments.batches import Batch
from experiments.objective import cross_entropy
from experiments.population import AXIS
from experiments.settings import Settings


class Program(NamedTuple):
    """What is compiled in: trials with equal programs share one compilation."""

    shape: Shape
    vocabulary: int
    length: int
    optimizer: str
    beta_2: float


class Hyper(NamedTuple):
    """A trial's numbers: data to the compiled program."""

    key: jax.Array
    learning_rate: jax.Array
    warmup: jax.Array
    P_drop: jax.Array
    eps_ls: jax.Array
    train_positions: jax.Array
    """1 where the position table is a parameter, 0 where it is fixed."""


class State(NamedTuple):
    """What a step changes and a checkpoint keeps."""

    step: jax.Array
    params: Any
    positions: Any
    moments: Any


def program(settings: Settings, vocabulary: int, length: int) -> Program:
    m, t = settings.model, settings.training
    return Program(Shape(m.N, m.d_model, m.d_ff, m.h, m.d_k, m.d_v), vocabulary, length, t.optimizer, t.beta_2)


def hyper(settings: Settings) -> Hyper:
    m, t = settings.model, settings.training
    numbers = (t.learning_rate, t.warmup, m.P_drop, t.eps_ls, POSITIONS[m.positions].trained)
    return Hyper(_key(settings, 1), *(jnp.asarray(x, jnp.float32) for x in numbers))


def transformer(program: Program, P_drop=0.0) -> Transformer:
    # The encoding only decides how a table starts, and `initial_state` does that: without it here, trials that
    # differ in their positions share a program.
    return Transformer(program.shape, program.vocabulary, program.length, NoPositions(), P_drop)


def initial_state(program: Program, settings: Settings, init=None) -> State:
    """Fresh parameters, drawn with the trial's seed; `init` is a compiled `initial_variables` of this program."""
    variables = (init or initial_variables)(program, _key(settings, 0))
    encoding = POSITIONS[settings.model.positions]
    positions = {name: {"table": encoding.init(_key(settings, i), program.length, program.shape.d_model)}
                 for i, name in enumerate(sorted(variables["positions"]), start=2)}
    trainable = dict(params=variables["params"], positions=positions)
    return State(jnp.int32(0), *trainable.values(), _optimizer(program).init(trainable))


def _key(settings, use):
    return jax.random.fold_in(jax.random.key(settings.seed), use)


def initial_variables(program: Program, key):
    row = jnp.zeros((1, 2), jnp.int32)
    nothing = dict(source_mask=Mask(), target_mask=Mask(), cross_mask=Mask())
    return transformer(program).init(key, row, row, row, row, **nothing)


def parameters(settings: Settings, state: State) -> int:
    """How many numbers are trained, the position tables only where they are."""
    trained = (state.params, state.positions if POSITIONS[settings.model.positions].trained else {})
    return sum(leaf.size for leaf in jax.tree.leaves(trained))


def step(program: Program, state: State, hyper: Hyper, batch: Batch):
    """One update on this device's rows of the batch. Returns the new state and the step's metrics.

    Gradients are sums over all devices' pieces divided by the number of all devices' real pieces: the same numbers
    whatever the number of devices. Dropout is keyed by the row's place in the whole batch, for the same reason.
    """
    rows = batch.source.shape[0]
    row = jax.lax.axis_index(AXIS) * rows + jnp.arange(rows)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(hyper.key, state.step), row)

    def total_loss(trainable):
        hidden = jax.vmap(lambda row, key: _hidden(program, trainable, row, hyper.P_drop, key))(batch, keys)
        return _summed_loss(trainable["params"], hidden, batch, hyper.eps_ls)

    trainable = dict(params=state.params, positions=state.positions)
    (loss, nll), pull = jax.vjp(total_loss, trainable)
    (gradients,) = pull((jnp.ones_like(loss), jnp.zeros_like(nll)))
    pieces = (batch.target_segments > 0).sum().astype(jnp.float32)
    gradients, loss, nll, pieces = jax.lax.psum((gradients, loss, nll, pieces), AXIS)
    gradients = jax.tree.map(lambda g: g / pieces, gradients)
    gradients["positions"] = jax.tree.map(lambda g: g * hyper.train_positions, gradients["positions"])

    rate = learning_rate(program, hyper, state.step + 1)
    updates, moments = _optimizer(program).update(gradients, state.moments)
    trainable = jax.tree.map(lambda p, u: p - rate * u, trainable, updates)
    metrics = dict(loss=loss / pieces, nll=nll / pieces, learning_rate=rate, pieces=pieces,
                   grad_norm=optax.tree.norm(gradients))
    return State(state.step + 1, trainable["params"], trainable["positions"], moments), metrics


def learning_rate(program: Program, hyper: Hyper, step):
    """The paper's equation (3), times `learning_rate`: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), step ≥ 1.

    With SGD, `learning_rate` itself.
    """
    if program.optimizer == "sgd":
        return hyper.learning_rate
    s = step.astype(jnp.float32)
    return hyper.learning_rate * program.shape.d_model**-0.5 * jnp.minimum(s**-0.5, s * hyper.warmup**-1.5)


def loss_sums(program: Program, state: State, batch: Batch):
    """(Σ nll, number of real pieces) of a packed batch, without dropout or smoothing: for perplexity."""
    trainable = dict(params=state.params, positions=state.positions)
    hidden = jax.vmap(lambda row: _hidden(program, trainable, row))(batch)
    _, nll = _summed_loss(state.params, hidden, batch, jnp.float32(0))
    return nll, (batch.target_segments > 0).sum()


def _optimizer(program):
    if program.optimizer == "sgd":
        return optax.identity()
    return optax.scale_by_adam(b1=0.9, b2=program.beta_2, eps=1e-9)


def _hidden(program, trainable, row, P_drop=0.0, key=None):
    """The decoder's last hidden states for one packed row, (T, d_model)."""
    source, target = row.source_segments, row.target_segments
    return transformer(program, P_drop).apply(
        trainable, row.source, row.target_in, row.source_positions, row.target_positions,
        source_mask=Mask.segments(source, source), target_mask=Mask.causal() & Mask.segments(target, target),
        cross_mask=Mask.segments(target, source), rngs={} if key is None else {"dropout": key})


def _summed_loss(params, hidden, batch, eps_ls):
    pieces = hidden.reshape(-1, hidden.shape[-1])
    weights = (batch.target_segments > 0).astype(jnp.float32).reshape(-1)
    return cross_entropy(pieces, params["embedding"], batch.target_out.reshape(-1), weights, eps_ls)
