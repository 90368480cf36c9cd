"""What a trial computes with: its compiled program, its numbers, and its state.

A compiled program depends on a `Program`; trials that share one may differ in a `Hyper`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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
from attn.jax_versions import enable_x64
from attn.random_bits import cheap_key
from experiments import optim
from experiments.settings import Model, Settings

# What a trial's seed is folded with: each use of randomness has its own key.
INITIAL_VALUES_KEY = 0
DROPOUT_KEY = 1
"""Sampled attention and the selection of hard attention draw from this one too."""
FIRST_POSITION_TABLE_KEY = 2
"""The tables after the first, by their names' order, have 3 and so on."""


class Program(NamedTuple):
    """Holds what is compiled in: trials with equal programs share one compilation."""

    kind: str
    shape: Shape
    design: Design
    drops: tuple[str, ...]
    """Where dropout happens beside the paper's places: "attention", "ff"."""
    vocabulary: int
    """The number of tokens that there are."""
    length: int
    """The longest row that the model reads."""
    sequence_length: int
    """Tokens of a row in training."""
    recipe: optim.Recipe
    precision: str
    accumulate: int
    remat: bool
    scan: bool
    skip: bool = False
    """Whether an update whose loss or gradient is not finite is left out."""
    labelled: bool = False
    """Whether the target labels the source, which a language model then reads."""


class Hyper(NamedTuple):
    """Holds a trial's numbers: data to the compiled program."""

    key: jax.Array
    """The data of a key, for numbers can be stacked over lanes."""
    recipe: optim.Numbers
    P_drop: jax.Array
    P_attention: jax.Array
    P_ff: jax.Array
    eps_ls: jax.Array
    entropy: jax.Array
    train_positions: jax.Array
    """1 where the position table is a parameter, 0 where it is fixed."""
    ema: jax.Array
    """Decay of the parameters' moving average; unused where the state has none."""


class State(NamedTuple):
    """Holds what a step changes and a checkpoint keeps."""

    step: jax.Array
    params: Any
    positions: Any
    moments: Any
    """The optimizer's own state."""
    ema: Any = ()
    """The moving averages of params and positions, or nothing."""


def program_of(settings: Settings, vocabulary: int, length: int) -> Program:
    """Returns the program of a trial with so many tokens, whose longest row is `length`."""
    t = settings.training
    return Program(
        kind=settings.model.kind,
        shape=shape_of(settings.model),
        design=_design_of(settings.model),
        drops=_drops_of(settings.model),
        vocabulary=vocabulary,
        length=length,
        sequence_length=t.sequence_length,
        recipe=optim.Recipe(
            t.optimizer_choice.compiled, t.schedule_choice.compiled, t.clip > 0
        ),
        precision=t.precision,
        accumulate=t.accumulate,
        remat=t.remat,
        scan=t.scan,
        skip=t.nonfinite == "skip",
        labelled=settings.data.labelled,
    )


def shape_of(model: Model) -> Shape:
    """Returns the sizes of a model; an RNN's one head is as wide as the model."""
    m = model
    if m.kind == "rnn":
        return Shape(
            N=m.N, d_model=m.d_model, d_ff=0, h=1, d_k=m.d_model, d_v=m.d_model
        )
    return Shape(
        N=m.N,
        d_model=m.d_model,
        d_ff=m.d_ff,
        h=m.h,
        d_k=m.d_k,
        d_v=m.d_v,
        h_kv=m.h_kv or None,
        d_c=m.d_c or None,
        d_r=m.d_r or None,
    )


def _drops_of(m):
    """Returns where a model drops beside the paper's places: "attention", "ff"."""
    if m.kind == "rnn":
        return ()
    rates = {"attention": m.P_attention, "ff": m.P_ff}
    # Whether a rate is 0 is compiled in, as dropout takes time; its size is data.
    return tuple(name for name, rate in rates.items() if rate)


def _design_of(m):
    """Returns how a model is put together."""
    if m.kind == "rnn":
        return Design(
            embeddings=m.embeddings,
            score=m.score_choice,
            normaliser=m.normaliser_choice,
            selection=m.selection,
            positions=NoPositions(),
            encoder_mixing=Recurrent(m.cell),
            decoder_mixing=Recurrent(m.cell),
        )
    # The encoding of a table only decides how it starts, and `initial_state` does that:
    # without it here, trials that differ in their position tables share a program.
    positions = m.position_encoding
    design = Design(
        norm=m.norm,
        embeddings=m.embeddings,
        scale_embeddings=m.scale_embeddings,
        biases=m.biases,
        activation=m.activation,
        score=m.score_choice,
        normaliser=m.normaliser_choice,
        positions=NoPositions() if positions.is_data else positions,
        combine=m.combine,
        head_activation=m.head_activation,
        heads=m.heads_choice,
        gate=m.gate,
        **m.mixers,
    )
    return design if m.kind == "language" else design._replace(selection=m.selection)


def hyper_of(settings: Settings) -> Hyper:
    """Returns the numbers of a trial."""
    m = settings.model
    t = settings.training
    recipe = optim.Numbers(
        learning_rate=t.learning_rate,
        steps=t.steps,
        clip=t.clip,
        optimizer=t.optimizer_choice.numbers,
        schedule=t.schedule_choice.numbers,
    )
    numbers = dict(
        recipe=recipe,
        P_drop=m.P_drop,
        P_attention=getattr(m, "P_attention", 0.0),
        P_ff=getattr(m, "P_ff", 0.0),
        eps_ls=t.eps_ls,
        entropy=t.entropy_bonus,
        train_positions=position_encoding(settings).trained,
        ema=t.ema,
    )
    key = jax.random.key_data(trial_key(settings, DROPOUT_KEY))
    # One dtype, so that the numbers of all lanes can be stacked.
    arrays = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), numbers)
    return Hyper(key=key, **arrays)


def position_encoding(settings: Settings) -> Positions:
    """Returns the encoding that fills the position tables."""
    m = settings.model
    return NoPositions() if m.kind == "rnn" else m.position_encoding


def build_model(
    program: Program, hyper: Hyper | None = None
) -> Transformer | RNN | LanguageModel:
    """Returns the model with the dropout rates of `hyper`, without dropout if that is None."""
    design = program.design
    if program.kind == "rnn":
        return RNN(
            vocabulary=program.vocabulary,
            length=program.length,
            d_model=program.shape.d_model,
            N=program.shape.N,
            cell=design.decoder_mixing.cell,
            score=design.score,
            normaliser=design.normaliser,
            embeddings=design.embeddings,
            selection=design.selection,
            P_drop=0.0 if hyper is None else hyper.P_drop,
        )
    family = LanguageModel if program.kind == "language" else Transformer
    model = family(
        shape=program.shape,
        vocabulary=program.vocabulary,
        length=program.length,
        P_drop=0.0,
        design=design,
        remat=program.remat,
        scan=program.scan,
    )
    if hyper is None:
        return model
    rates = {f"P_{name}": getattr(hyper, f"P_{name}") for name in program.drops}
    return model.clone(P_drop=hyper.P_drop, **rates)


def call_model(
    function, program: Program, first, source, target, places, masks, **options
):
    """Calls `function(first, ...)`, apply or init of the program's model.

    It gets tokens (*B, N) and (*B, M) of source and target, their positions `places`, and
    the masks of source, of target and between them, as far as the model uses them.
    """
    if program.kind == "language":
        # Labels stand in the places of what they label, so places and masks are the same.
        tokens = source if program.labelled else target
        return function(first, tokens, places[1], masks[1], **options)
    named = dict(zip(("source_mask", "target_mask", "cross_mask"), masks, strict=True))
    return function(first, source, target, *places, **named, **options)


def initial_state(program: Program, settings: Settings) -> State:
    """Draws fresh parameters with the trial's seed, in float32 whatever JAX's default is."""
    with enable_x64(False):
        return _initial_state(program, settings)


def _initial_state(program, settings):
    key = trial_key(settings, INITIAL_VALUES_KEY)
    variables = _compiled_variables(program)(key)
    encoding = position_encoding(settings)
    positions = {}
    names = sorted(variables["positions"])
    for use, name in enumerate(names, start=FIRST_POSITION_TABLE_KEY):
        key = trial_key(settings, use)
        table = encoding.table(key, program.length, program.shape.d_model)
        positions[name] = {"table": table}
    trainable = dict(params=variables["params"], positions=positions)
    # A copy, because the state is donated, and one buffer cannot be donated twice.
    ema = jax.tree.map(jnp.copy, trainable) if settings.training.ema else ()
    numbers = hyper_of(settings).recipe
    moments = optim.initial_moments(program.recipe, numbers, trainable)
    return State(step=jnp.int32(0), **trainable, moments=moments, ema=ema)


def trial_key(settings: Settings, use: int) -> jax.Array:
    """Returns the key for one use of randomness, as `DROPOUT_KEY`."""
    return jax.random.fold_in(jax.random.key(settings.seed), use)


@functools.lru_cache(maxsize=8)
def _compiled_variables(program):
    """Returns `initial_variables` of a program, compiled."""
    function = functools.partial(initial_variables, program)
    return jax.jit(function)


def initial_variables(program: Program, key):
    """Draws fresh parameters, and makes room for position tables, if any."""
    # Parameters do not depend on a row's length, so a short one will do.
    row = jnp.zeros((1, 2), jnp.int32)
    # With threefry for every parameter this takes ten times as long to compile, more than
    # anything else when a trial starts.
    key = cheap_key(key)
    init = build_model(program).init
    masks = [Mask()] * 3
    variables = call_model(init, program, key, row, row, (row, row), masks)
    return {"positions": {}, **variables}


def count_parameters(settings: Settings, state: State) -> int:
    """Counts the numbers that are trained; position tables only where they are."""
    positions = state.positions if position_encoding(settings).trained else {}
    trained = (state.params, positions)
    return sum(leaf.size for leaf in jax.tree.leaves(trained))
