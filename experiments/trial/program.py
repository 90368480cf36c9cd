"""The pure core of one trial: parameters, loss, optimizer, one step. No files, no loops, no devices.

What a compiled program depends on is a `Program`; what may differ between trials that share one is a `Hyper`.
B rows of a batch, T tokens of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attn import (
    RNN,
    Design,
    LanguageModel,
    Mask,
    NoPositions,
    Positions,
    Recurrent,
    Shape,
    Transformer,
)
from attn.hashing import cheap_key
from experiments.settings import Model, Settings


class Program(NamedTuple):
    """What is compiled in: trials with equal programs share one compilation."""

    kind: str
    shape: Shape
    design: Design
    drops: tuple[str, ...]
    """Where dropout happens beside the paper's places: "attention", "ff"."""
    vocabulary: int
    length: int
    sequence_length: int
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


def program_of(settings: Settings, vocabulary: int, length: int) -> Program:
    m, t = settings.model, settings.training
    return Program(
        m.kind,
        shape_of(m),
        _design_of(m),
        _drops_of(m),
        vocabulary,
        length,
        t.sequence_length,
        t.optimizer,
        (t.beta_1, t.beta_2),
        t.eps,
        t.precision,
        t.accumulate,
        t.remat,
        t.scan,
        t.nonfinite == "skip",
    )


def shape_of(model: Model) -> Shape:
    """Returns the sizes of a model; an RNN's one head is as wide as the model."""
    if model.kind == "rnn":
        return Shape(model.N, model.d_model, 0, 1, model.d_model, model.d_model)
    return Shape(model.N, model.d_model, model.d_ff, model.h, model.d_k, model.d_v)


def _drops_of(m):
    """Returns where a model drops beside the paper's places: "attention", "ff"."""
    if m.kind == "rnn":
        return ()
    rates = {"attention": m.P_attention, "ff": m.P_ff}
    return tuple(name for name, rate in rates.items() if rate)


def _design_of(m):
    """Returns how a model is put together."""
    if m.kind == "rnn":
        return Design(
            embeddings=m.embeddings,
            score=m.score_choice,
            selection=m.selection,
            positions=NoPositions(),
            encoder_mixing=Recurrent(m.cell),
            decoder_mixing=Recurrent(m.cell),
        )
    # The encoding of a table only decides how it starts, and `initial_state` does that:
    # without it here, trials that differ in their position tables share a program.
    positions = m.position_encoding
    design = Design(
        m.norm,
        m.embeddings,
        m.scale_embeddings,
        m.biases,
        m.activation,
        m.score_choice,
        positions if positions.in_layers else NoPositions(),
        combine=m.combine,
        head_activation=m.head_activation,
        **m.mixers,
    )
    return design if m.kind == "language" else design._replace(selection=m.selection)


def hyper_of(settings: Settings) -> Hyper:
    m, t = settings.model, settings.training
    numbers = (
        t.learning_rate,
        t.warmup,
        m.P_drop,
        getattr(m, "P_attention", 0.0),
        getattr(m, "P_ff", 0.0),
        t.eps_ls,
        t.entropy_bonus,
        position_encoding(settings).trained,
        t.ema,
    )
    return Hyper(
        jax.random.key_data(trial_key(settings, 1)),
        *(jnp.asarray(x, jnp.float32) for x in numbers),
    )


def position_encoding(settings: Settings) -> Positions:
    """The encoding that fills the position tables."""
    m = settings.model
    return NoPositions() if m.kind == "rnn" else m.position_encoding


def build_model(
    program: Program, hyper: Hyper | None = None
) -> Transformer | RNN | LanguageModel:
    """The model, with the dropout rates of `hyper`, and without dropout if there is none."""
    if program.kind == "rnn":
        N, d_model, design = program.shape.N, program.shape.d_model, program.design
        return RNN(
            program.vocabulary,
            program.length,
            d_model,
            N,
            design.decoder_mixing.cell,
            design.score,
            design.embeddings,
            design.selection,
            0.0 if hyper is None else hyper.P_drop,
        )
    family = LanguageModel if program.kind == "language" else Transformer
    found = family(
        program.shape,
        program.vocabulary,
        program.length,
        program.design,
        0.0,
        remat=program.remat,
        scan=program.scan,
    )
    if hyper is None:
        return found
    return found.clone(
        P_drop=hyper.P_drop,
        **{f"P_{name}": getattr(hyper, f"P_{name}") for name in program.drops},
    )


def call_model(
    function, program: Program, first, source, target, places, masks, **options
):
    """`function(first, ...)`, apply or init of the program's model, on tokens (*B, N) and (*B, M) of source and target,
    their positions, and the masks of source, target and between them, as far as the model looks at them."""
    if program.kind == "language":
        return function(first, target, places[1], masks[1], **options)
    named = dict(zip(("source_mask", "target_mask", "cross_mask"), masks, strict=True))
    return function(first, source, target, *places, **named, **options)


def initial_state(program: Program, settings: Settings, init=None) -> State:
    """Fresh parameters, drawn with the trial's seed; `init` is a compiled `initial_variables` of this program."""
    variables = (init or initial_variables)(program, trial_key(settings, 0))
    positions = {
        name: {
            "table": position_encoding(settings).table(
                trial_key(settings, i), program.length, program.shape.d_model
            )
        }
        for i, name in enumerate(sorted(variables["positions"]), start=2)
    }
    trainable = dict(params=variables["params"], positions=positions)
    # A copy, because the state is donated, and one buffer cannot be given away twice.
    ema = jax.tree.map(jnp.copy, trainable) if settings.training.ema else ()
    # Adam starts from zeros; one by one, JAX would take longer to make them than to read a compiled step.
    moments = jax.tree.map(
        lambda x: np.zeros(x.shape, x.dtype),
        jax.eval_shape(optimizer_of(program).init, trainable),
    )
    return State(jnp.int32(0), *trainable.values(), moments, ema)


def trial_key(settings, use):
    return jax.random.fold_in(jax.random.key(settings.seed), use)


def initial_variables(program: Program, key):
    """Fresh parameters and the places of position tables, if any, from `cheap_key(key)`: with threefry for every
    parameter this takes ten times as long to compile, more than anything else when a trial starts."""
    row = jnp.zeros((1, 2), jnp.int32)
    return {
        "positions": {},
        **call_model(
            build_model(program).init,
            program,
            cheap_key(key),
            row,
            row,
            (row, row),
            [Mask()] * 3,
        ),
    }


def count_parameters(settings: Settings, state: State) -> int:
    """How many numbers are trained, the position tables only where they are."""
    trained = (
        state.params,
        state.positions if position_encoding(settings).trained else {},
    )
    return sum(leaf.size for leaf in jax.tree.leaves(trained))


def optimizer_of(program):
    if program.optimizer == "sgd":
        return optax.identity()
    return optax.scale_by_adam(*program.betas, eps=program.eps)
