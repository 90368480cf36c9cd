"""The pure core of one trial: parameters, loss, optimizer, one step. No files, no loops, no devices.

What a compiled program depends on is a `Program`; what may differ between trials that share one is a `Hyper`.
B rows of a batch, T pieces of a row.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attn import POSITIONS, RNN, Design, LanguageModel, Mask, NoPositions, Shape, Transformer
from attn.dropout import cheap_key
from attn.layers import output_matrix
from experiments import objective
from experiments.batches import Batch, Corpus, assemble
from experiments.population import AXIS
from experiments.settings import Settings


class Program(NamedTuple):
    """What is compiled in: trials with equal programs share one compilation."""

    kind: str
    shape: Shape
    design: Design
    drops: tuple[str, ...]
    """Where dropout happens beside the paper's places: "attention", "ff"."""
    vocabulary: int
    length: int
    row_pieces: int
    optimizer: str
    betas: tuple[float, float]
    eps: float
    precision: str
    accumulate: int
    remat: bool
    scan: bool
    skip: bool = False
    """Whether an update whose loss or gradient is no number is left out."""


class Hyper(NamedTuple):
    """A trial's numbers: data to the compiled program."""

    key: jax.Array
    """The data of a key: as numbers, lanes can be put side by side."""
    learning_rate: jax.Array
    warmup: jax.Array
    P_drop: jax.Array
    P_attention: jax.Array
    P_ff: jax.Array
    eps_ls: jax.Array
    entropy: jax.Array
    train_positions: jax.Array
    """1 where the position table is a parameter, 0 where it is fixed."""
    ema: jax.Array
    """Decay of the parameters' moving average; not looked at where the state has none."""


class State(NamedTuple):
    """What a step changes and a checkpoint keeps."""

    step: jax.Array
    params: Any
    positions: Any
    moments: Any
    ema: Any = ()
    """The moving averages of params and positions, or nothing."""


def program(settings: Settings, vocabulary: int, length: int) -> Program:
    m, t = settings.model, settings.training
    if m.kind == "rnn":
        shape, drops = Shape(m.N, m.d_model, 0, 1, m.d_model, m.d_model), ()
        design = Design(embeddings=m.embeddings, score=m.score, choice=m.choice, cell=m.cell)
    else:
        shape = Shape(m.N, m.d_model, m.d_ff, m.h, m.d_k, m.d_v)
        drops = tuple(name for name, rate in (("attention", m.P_attention), ("ff", m.P_ff)) if rate)
        design = Design(m.norm, m.embeddings, m.scale_embeddings, m.biases, m.activation, m.score,
                        "none" if m.positions in POSITIONS else m.positions, heads=m.heads,
                        choice=m.choice, head_activation=m.head_activation, encoder_mixing=m.encoder_mixing,
                        decoder_mixing=m.decoder_mixing, **_where_used(m))
    return Program(
        m.kind, shape, design, drops,
        vocabulary, length, t.row_pieces, t.optimizer, (t.beta_1, t.beta_2), t.eps, t.precision, t.accumulate,
        t.remat, t.scan, t.nonfinite == "skip")


def _where_used(m):
    """The settings of what mixes positions, those that matter: so that others do not compile the same again."""
    kinds = {m.encoder_mixing, m.decoder_mixing}
    return {**(dict(radius=m.radius) if kinds & {"restricted", "convolution", "separable"} else {}),
            **(dict(cell=m.cell) if "recurrence" in kinds else {})}


def hyper(settings: Settings) -> Hyper:
    m, t = settings.model, settings.training
    numbers = (t.learning_rate, t.warmup, m.P_drop, m.P_attention, m.P_ff, t.eps_ls, t.entropy, table(settings).trained,
               t.ema)
    return Hyper(jax.random.key_data(_key(settings, 1)), *(jnp.asarray(x, jnp.float32) for x in numbers))


def table(settings: Settings):
    """The encoding that fills the position tables: none for positions that self-attention is told of."""
    m = settings.model
    return NoPositions() if m.kind == "rnn" else POSITIONS.get(m.positions, NoPositions())


def model(program: Program, hyper: Hyper | None = None) -> Transformer | RNN | LanguageModel:
    """The model, with the dropout rates of `hyper`, and without dropout if there is none."""
    if program.kind == "rnn":
        N, d_model, design = program.shape.N, program.shape.d_model, program.design
        return RNN(program.vocabulary, program.length, d_model, N, design.cell, design.score, design.embeddings,
                   design.choice, 0.0 if hyper is None else hyper.P_drop)
    # The encoding only decides how a table starts, and `initial_state` does that: without it here, trials that
    # differ in their position tables share a program.
    family = LanguageModel if program.kind == "language" else Transformer
    found = family(program.shape, program.vocabulary, program.length, NoPositions(), 0.0, program.design,
                   remat=program.remat, scan=program.scan)
    if hyper is None:
        return found
    return found.clone(P_drop=hyper.P_drop, **{f"P_{name}": getattr(hyper, f"P_{name}") for name in program.drops})


def call(function, program: Program, first, source, target, places, masks, **options):
    """`function(first, ...)`, apply or init of the program's model, on pieces (*B, N) and (*B, M) of source and target,
    their positions, and the masks of source, target and between them, as far as the model looks at them."""
    if program.kind == "language":
        return function(first, target, places[1], masks[1], **options)
    named = dict(zip(("source_mask", "target_mask", "cross_mask"), masks, strict=True))
    return function(first, source, target, *places, **named, **options)


def initial_state(program: Program, settings: Settings, init=None) -> State:
    """Fresh parameters, drawn with the trial's seed; `init` is a compiled `initial_variables` of this program."""
    variables = (init or initial_variables)(program, _key(settings, 0))
    positions = {name: {"table": table(settings).init(_key(settings, i), program.length, program.shape.d_model)}
                 for i, name in enumerate(sorted(variables["positions"]), start=2)}
    trainable = dict(params=variables["params"], positions=positions)
    # A copy, because the state is donated, and one buffer cannot be given away twice.
    ema = jax.tree.map(jnp.copy, trainable) if settings.training.ema else ()
    # Adam starts from zeros; one by one, JAX would take longer to make them than to read a compiled step.
    moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(_optimizer(program).init, trainable))
    return State(jnp.int32(0), *trainable.values(), moments, ema)


def _key(settings, use):
    return jax.random.fold_in(jax.random.key(settings.seed), use)


def initial_variables(program: Program, key):
    """Fresh parameters and the places of position tables, if any, from `cheap_key(key)`: with threefry for every
    parameter this takes ten times as long to compile, more than anything else when a trial starts."""
    row = jnp.zeros((1, 2), jnp.int32)
    return {"positions": {}, **call(model(program).init, program, cheap_key(key), row, row, (row, row), [Mask()] * 3)}


def parameters(settings: Settings, state: State) -> int:
    """How many numbers are trained, the position tables only where they are."""
    trained = (state.params, state.positions if table(settings).trained else {})
    return sum(leaf.size for leaf in jax.tree.leaves(trained))


METRICS = ("loss", "nll", "learning_rate", "pieces", "grad_norm")


def steps(program: Program, state: State, hyper: Hyper, corpus: Corpus, slots, count):
    """`count` updates, on the batches that the first of slots (K, rows, S) name. Returns the state and metrics (K,)."""
    def one(i, carry):
        state, kept = carry
        state, metrics = step(program, state, hyper, assemble(corpus, slots[i], program.row_pieces))
        return state, {name: kept[name].at[i].set(metrics[name]) for name in METRICS}

    return jax.lax.fori_loop(0, count, one, (state, dict.fromkeys(METRICS, jnp.zeros(len(slots)))))


def step(program: Program, state: State, hyper: Hyper, batch: Batch):
    """One update on this device's rows of the batch. Returns the new state and the step's metrics.

    Gradients are sums over all devices' pieces divided by the number of all devices' real pieces: the same numbers
    whatever the number of devices and of parts that a device's rows are walked in. Dropout is keyed by the row's
    place in the whole batch, for the same reason.
    """
    rows = batch.source.shape[0]
    row = jax.lax.axis_index(AXIS) * rows + jnp.arange(rows)
    key = jax.random.fold_in(jax.random.wrap_key_data(hyper.key), state.step)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row)
    trainable = dict(params=state.params, positions=state.positions)
    gradients, loss, nll = _summed_gradients(program, trainable, hyper, batch, keys)
    pieces = (batch.target_segments > 0).sum().astype(jnp.float32)
    gradients, loss, nll, pieces = jax.lax.psum((gradients, loss, nll, pieces), AXIS)
    gradients = jax.tree.map(lambda g: g / pieces, gradients)
    gradients["positions"] = jax.tree.map(lambda g: g * hyper.train_positions, gradients["positions"])

    rate = learning_rate(program, hyper, state.step + 1)
    updates, moments = _optimizer(program).update(gradients, state.moments)
    before, trainable = trainable, jax.tree.map(lambda p, u: p - rate * u, trainable, updates)
    metrics = dict(loss=loss / pieces, nll=nll / pieces, learning_rate=rate, pieces=pieces,
                   grad_norm=optax.tree.norm(gradients))
    if program.skip:
        # The step counts all the same, and the moving average has these parameters once more, as its formula says.
        trainable, moments = jax.tree.map(functools.partial(jnp.where, finite(metrics, jnp)),
                                          (trainable, moments), (before, state.moments))
    ema = moving_average(state.ema, trainable, hyper.ema, state.step + 1) if state.ema else ()
    return State(state.step + 1, *trainable.values(), moments, ema), metrics


def finite(metrics, xp=np):
    """Whether loss and gradient of steps are numbers."""
    return xp.isfinite(metrics["loss"]) & xp.isfinite(metrics["grad_norm"])


def _summed_gradients(program, trainable, hyper, batch, keys):
    """(∂ loss / ∂ trainable, loss, nll), each summed over the real pieces of `batch` in float32."""
    # Cast once a step, not at every use; the gradients of parts are summed in float32 all the same.
    light = jax.tree.map(lambda x: x.astype(program.precision), trainable)

    def of_part(batch, keys):
        def total_loss(light):
            hidden, policy = jax.vmap(lambda row, key: _hidden(program, light, row, hyper, key))(batch, keys)
            loss, nll = _summed_loss(light["params"], hidden, batch, hyper.eps_ls)
            return loss + _policy_loss(light["params"], hidden, policy, batch, hyper.entropy), loss, nll

        (_, loss, nll), pull = jax.vjp(total_loss, light)
        (gradients,) = pull((jnp.ones_like(loss), jnp.zeros_like(loss), jnp.zeros_like(nll)))
        return jax.tree.map(lambda x: x.astype(jnp.float32), (gradients, loss, nll))

    if program.accumulate == 1:
        return of_part(batch, keys)
    parts = jax.tree.map(lambda x: x.reshape(program.accumulate, -1, *x.shape[1:]), (batch, keys))
    zeros = (jax.tree.map(jnp.zeros_like, trainable), jnp.float32(0), jnp.float32(0))
    return jax.lax.scan(lambda sums, part: (jax.tree.map(jnp.add, sums, of_part(*part)), None), zeros, parts)[0]


def moving_average(average, new, decay, step):
    """The average after step ≥ 1: Σ_s decay^(step−s) · new_s / Σ_s decay^(step−s), over steps s = 1 … step.

    Adam's bias correction (Kingma and Ba 2015, section 3), made at every step: initial values have no weight, and a
    short run is not held back by them.
    """
    weight = (1 - decay) / -jnp.expm1(step.astype(jnp.float32) * jnp.log(decay))
    return jax.tree.map(lambda a, x: a + weight * (x - a), average, new)


def learning_rate(program: Program, hyper: Hyper, step):
    """The paper's equation (3), times `learning_rate`: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), step ≥ 1.

    With SGD, `learning_rate` itself.
    """
    if program.optimizer == "sgd":
        return hyper.learning_rate
    s = step.astype(jnp.float32)
    return hyper.learning_rate * program.shape.d_model**-0.5 * jnp.minimum(s**-0.5, s * hyper.warmup**-1.5)


def piece_losses(program: Program, state: State, batch: Batch):
    """−log p of each target piece (rows, row_pieces), without dropout or smoothing: for perplexity.

    In float32 with exact products, whatever the precision of training, so that a perplexity does not depend on how
    sentences are put into batches.
    """
    trainable = dict(params=state.params, positions=state.positions)
    with jax.default_matmul_precision("float32"):
        hidden, _ = jax.vmap(lambda row: _hidden(program, trainable, row))(batch)
        pieces = hidden.reshape(-1, hidden.shape[-1])
        losses = objective.nll(pieces, output_matrix(state.params), batch.target_out.reshape(-1))
    return losses.reshape(batch.target_out.shape)


def _optimizer(program):
    if program.optimizer == "sgd":
        return optax.identity()
    return optax.scale_by_adam(*program.betas, eps=program.eps)


def _hidden(program, trainable, row, hyper=None, key=None):
    """The decoder's last hidden states for one packed row, (T, d_model), and what `attn.multihead.attend` keeps of
    sampled attention."""
    source, target = row.source_segments, row.target_segments
    rngs = {} if key is None else {name: cheap_key(jax.random.fold_in(key, use)) if use else cheap_key(key)
                                   for use, name in enumerate(("dropout", "sample"))}
    masks = Mask.segments(source, source), Mask.causal() & Mask.segments(target, target), Mask.segments(target, source)
    hidden, kept = call(model(program, hyper).apply, program, trainable, row.source, row.target_in,
                        (row.source_positions, row.target_positions), masks, rngs=rngs, mutable=["policy"])
    found = jax.tree.leaves(kept, is_leaf=lambda tree: "log_prob" in tree)
    return hidden, found[0] if found else None


def _policy_loss(params, hidden, policy, batch, worth):
    """What has the gradient of REINFORCE (Williams 1992): Σ (−log p − b)·log π − worth·H + (−log p − b)²/2, over real
    pieces, where the first factor sends none, for choices of log-probability log π out of entropy H, with −log p of the
    piece that came of them and the baseline b that learns to foretell it."""
    if policy is None:
        return 0.0
    pieces, matrix = jax.lax.stop_gradient((hidden.reshape(-1, hidden.shape[-1]), output_matrix(params)))
    worse = objective.nll(pieces, matrix, batch.target_out.reshape(-1)).reshape(batch.target_out.shape)
    worse = worse - policy["foretold"].astype(jnp.float32)
    each = jax.lax.stop_gradient(worse) * policy["log_prob"] - worth * policy["entropy"] + worse**2 / 2
    return jnp.where(batch.target_segments > 0, each, 0).sum()


def _summed_loss(params, hidden, batch, eps_ls):
    pieces = hidden.reshape(-1, hidden.shape[-1])
    weights = (batch.target_segments > 0).astype(jnp.float32).reshape(-1)
    return objective.cross_entropy(pieces, output_matrix(params), batch.target_out.reshape(-1), weights, eps_ls)
