"""What a trial computes with: its compiled program, its numbers, and its state.

A compiled program depends on a `Program`; trials that share one may differ in a `Hyper`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attn
from attn import Context, Mask
from attn.config import Model
from attn.jax_versions import enable_x64
from attn.random_bits import cheap_key
from experiments import optim
from experiments.data.batches import Batch
from experiments.objectives import Objective, Translate
from experiments.settings import Settings
from experiments.settings.choices import without_numbers

# What a trial's seed is folded with: each use of randomness has its own key.
INITIAL_VALUES_KEY = 0
DROPOUT_KEY = 1
"""Sampled attention and the selection of hard attention draw from this one too."""
FIRST_POSITION_TABLE_KEY = 2
"""The tables after the first, by their names' order, have 3 and so on."""


class Program(NamedTuple):
    """Holds what is compiled in: trials with equal programs share one compilation."""

    model: Model
    """What the model is, without the tables of its positions, which are data."""
    drops: tuple[str, ...]
    """Where dropout happens beside the paper's places: "P_attention", "P_ff"."""
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
    objective: Objective = Translate()
    labels: int = 0
    """The labels that there are to choose from, where targets are such."""


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
    train_positions: dict[str, jax.Array]
    """1 where a position table is a parameter, 0 where it is fixed."""
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
    numbers: Any = ()
    """The numbers of scores that are data, such as temperatures; no step changes them."""

    @property
    def variables(self) -> dict[str, Any]:
        """What the model's `apply` takes."""
        numbers = self.numbers or {}
        return dict(params=self.params, positions=self.positions, numbers=numbers)


def program_of(
    settings: Settings, vocabulary: int, length: int, labels: int | None = None
) -> Program:
    """Returns the program of a trial whose longest row is `length`.

    It has these numbers of tokens and of labels, None for those that its settings say.
    """
    t = settings.training
    return Program(
        # A table only decides how it starts, and `initial_state` does that, as it gives
        # the state its numbers: without these here, trials that differ in them share a
        # program.
        model=without_numbers(settings.model.without_tables()),
        drops=_drops_of(settings.rates),
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
        objective=settings.objective,
        labels=settings.data.labels if labels is None else labels,
    )


def _drops_of(rates):
    """Returns where a model drops beside the paper's places."""
    names = ("P_attention", "P_ff")
    # Whether a rate is 0 is compiled in, as dropout takes time; its size is data.
    return tuple(name for name in names if getattr(rates, name))


def hyper_of(settings: Settings) -> Hyper:
    """Returns the numbers of a trial."""
    t = settings.training
    rates = settings.rates
    recipe = optim.Numbers(
        learning_rate=t.learning_rate,
        steps=t.steps,
        clip=t.clip,
        optimizer=t.optimizer_choice.numbers,
        schedule=t.schedule_choice.numbers,
    )
    numbers = dict(
        recipe=recipe,
        train_positions={
            name: positions.trained
            for name, positions in settings.model.tables().items()
        },
        P_drop=rates.P_drop,
        P_attention=rates.P_attention,
        P_ff=rates.P_ff,
        eps_ls=t.eps_ls,
        entropy=t.entropy_bonus,
        ema=t.ema,
    )
    key = jax.random.key_data(trial_key(settings, DROPOUT_KEY))
    # One dtype, so that the numbers of all lanes can be stacked.
    arrays = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), numbers)
    return Hyper(key=key, **arrays)


def build_model(program: Program) -> Any:
    """Returns the program's model, a module of MODULES."""
    cls = MODULES[type(program.model)]
    names = ("vocabulary", "length", "labels", "remat", "scan")
    fields = cls.__dataclass_fields__
    options = {name: getattr(program, name) for name in names if name in fields}
    return cls(program.model, **options)


MODULES = {
    attn.config.Transformer: attn.Transformer,
    attn.config.LanguageModel: attn.LanguageModel,
    attn.config.RNN: attn.RNN,
    attn.config.Classifier: attn.Classifier,
}
"""The modules of the kinds of models."""


def numbers_of(program: Program, hyper: Hyper) -> dict[str, jax.Array]:
    """Returns the numbers of a context of training."""
    return {name: getattr(hyper, name) for name in ("P_drop", *program.drops)}


def contexts(batch: Batch, **options: Any) -> tuple[Context, Context]:
    """Returns the contexts of a batch's packed rows, source and target.

    `options` are further fields of both.
    """
    source, target = batch.source_segments, batch.target_segments
    return (
        Context(Mask.segments(source, source), batch.source_positions, **options),
        Context(
            Mask.causal() & Mask.segments(target, target),
            batch.target_positions,
            memory_mask=Mask.segments(target, source),
            **options,
        ),
    )


def initial_state(program: Program, settings: Settings) -> State:
    """Draws fresh parameters with the trial's seed, in float32 whatever JAX's default is."""
    with enable_x64(False):
        return _initial_state(program, settings)


def _initial_state(program, settings):
    key = trial_key(settings, INITIAL_VALUES_KEY)
    variables = _compiled_variables(program)(key)
    positions = {}
    tables = sorted(settings.model.tables().items())
    for use, (name, value) in enumerate(tables, start=FIRST_POSITION_TABLE_KEY):
        key = trial_key(settings, use)
        table = value.table(key, program.length, program.model.d_model)
        positions[name] = {"table": table}
    trainable = dict(params=variables["params"], positions=positions)
    # A copy, because the state is donated, and one buffer cannot be donated twice.
    ema = jax.tree.map(jnp.copy, trainable) if settings.training.ema else ()
    numbers = hyper_of(settings).recipe
    moments = optim.initial_moments(program.recipe, numbers, trainable)
    own = variables["numbers"] and _numbers(program, settings)
    return State(jnp.int32(0), **trainable, moments=moments, ema=ema, numbers=own)


def _numbers(program, settings):
    """Returns the numbers of scores that the settings say, as the state has them."""
    own = program._replace(model=settings.model.without_tables())
    return jax.jit(lambda: initial_variables(own, jax.random.key(0))["numbers"])()


def trial_key(settings: Settings, use: int) -> jax.Array:
    """Returns the key for one use of randomness, as `DROPOUT_KEY`."""
    return jax.random.fold_in(jax.random.key(settings.seed), use)


@functools.lru_cache(maxsize=8)
def _compiled_variables(program):
    """Returns `initial_variables` of a program, compiled."""
    function = functools.partial(initial_variables, program)
    return jax.jit(function)


def initial_variables(program: Program, key):
    """Draws fresh parameters, and makes room for tables and numbers, if any."""
    # Parameters do not depend on a row's length, so a short one will do.
    row = jnp.zeros((1, 2), jnp.int32)
    # With threefry for every parameter this takes ten times as long to compile, more than
    # anything else when a trial starts.
    key = cheap_key(key)
    init = build_model(program).init
    both = Context(), Context()
    variables = program.objective.call(init, key, row, row, both)
    return {"positions": {}, "numbers": {}, **variables}


def count_parameters(settings: Settings, state: State) -> int:
    """Counts the numbers that are trained; position tables only where they are."""
    tables = settings.model.tables().items()
    trained = {
        name: state.positions[name] for name, positions in tables if positions.trained
    }
    trained = (state.params, trained)
    return sum(leaf.size for leaf in jax.tree.leaves(trained))
