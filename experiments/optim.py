"""Recipes of training: optimizers, learning-rate schedules and clipping, as values.

An optimizer is a function of optax by its name, or a custom one; a schedule is one of those
below, one of optax or a custom one. Numbers are data to a compiled program as far as possible,
so that trials which differ in these alone are lanes of one: of an optimizer the numbers that
are written, of a schedule below all options. Defaults of an optimizer, and other schedules,
are compiled in.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.extend.core import Literal

# The optimizers


def adam(learning_rate, b1: float = 0.9, b2: float = 0.98, eps: float = 1e-9):
    """Adam (Kingma and Ba 2015), with the β₁, β₂ and ε of the paper's section 5.3."""
    return optax.adam(learning_rate, b1, b2, eps)


def _makes_transformations(name, value):
    if name.startswith("_") or not inspect.isfunction(value):
        return False
    signature = inspect.signature(value)
    # What these return is no whole step: it lacks the sign.
    if name.startswith("scale_by_") and "learning_rate" in signature.parameters:
        return False
    returned = signature.return_annotation
    return inspect.isclass(returned) and issubclass(
        returned, optax.GradientTransformation
    )


OPTIMIZERS = {
    name: value
    for name, value in {**vars(optax.contrib), **vars(optax)}.items()
    if _makes_transformations(name, value)
} | {"adam": adam}
"""All of optax, by name. Those without a learning rate are multiplied by it, and by −1."""

REFUSED = ("schedule_free", "schedule_free_adamw", "schedule_free_sgd")
"""Optimizers of optax that evaluate other weights than they train."""

MASKS = ("mask", "weight_decay_mask")
MATRICES = "muon_weight_dimension_numbers"


def decays(tree: Any) -> Any:
    """Returns a tree of bool: whether weight decay applies to a parameter.

    It applies to matrices, embeddings among them, and not to norms, biases and other vectors,
    also where each head has one.
    """

    def is_matrix(path, x):
        *modules, name = _names(path)
        # Of these the first axis is that of the heads.
        shape = x.shape[1:] if OF_HEADS & {*modules} else x.shape
        is_bias = name == "b" or name.startswith("b_") or name.endswith("bias")
        return sum(size > 1 for size in shape) > 1 and not is_bias

    return jax.tree_util.tree_map_with_path(is_matrix, tree)


OF_HEADS = {"score", "normaliser", "relative"}
"""The parts of an attention whose parameters have an axis of heads first."""

PARTS = {*OF_HEADS, "contextual", "together"}
"""The parts of an attention in which each head has its own parameters."""


def matrices(tree: Any) -> Any:
    """Returns a tree with the axes of each matrix that Muon makes orthogonal, else None.

    W_Q, W_K and W_V (d_model, h, d_k) are one matrix each, from d_model to h·d_k, and W_O is
    one from h·d_v to d_model. Adam has the rest: embeddings, the output, positions, norms,
    biases, and parameters of a score, a normaliser or a bias of positions.
    """

    def axes(path, x):
        *modules, name = _names(path)
        is_kernel = name == "kernel" or name.startswith("w_")
        if not is_kernel or PARTS & {*modules} or x.ndim not in (2, 3):
            return None
        # W_O, and a convolution's kernel, sum over all axes but the last.
        inputs = x.ndim - 1 if name in ("w_o", "kernel") else 1
        order = tuple(range(x.ndim))
        return optax.contrib.MuonDimensionNumbers(order[:inputs], order[inputs:])

    return jax.tree_util.tree_map_with_path(axes, tree)


def _names(path):
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Holds a function with options; without `numbers`, equal ones share a program."""

    function: Callable
    options: tuple[tuple[str, Any], ...] = ()
    data: tuple[str, ...] = ()
    """The names of options that are data to a compiled program."""

    @property
    def numbers(self) -> dict[str, float]:
        """The options that are data."""
        return {name: x for name, x in self.options if name in self.data}

    @property
    def compiled(self) -> "Chosen":
        """The same without `numbers`."""
        options = tuple((name, x) for name, x in self.options if name not in self.data)
        return dataclasses.replace(self, options=options)


class Optimizer(Chosen):
    """Holds an optimizer, see `choose_optimizer`."""

    def transformation(
        self, rate: Any, numbers: Mapping[str, Any]
    ) -> optax.GradientTransformation:
        """Returns optax's transformation, with the learning rate of one step."""
        known = inspect.signature(self.function).parameters
        options = {**dict(self.options), **numbers}
        for name in known.keys() & set(MASKS):
            options[name] = None if options.get(name) == "all" else decays
        if MATRICES in known:
            options[MATRICES] = matrices
        if "learning_rate" in known:
            return self.function(learning_rate=rate, **options)
        made = self.function(**options)
        return optax.chain(made, optax.scale_by_learning_rate(rate))


@functools.cache
def choose_optimizer(
    function: Callable, options: tuple[tuple[str, Any], ...]
) -> Optimizer:
    """Returns the optimizer that a function makes of `learning_rate` and the options.

    Numbers among these are data, unless the function decides by their values. Raises
    ValueError where it cannot be used, in a step that is made by shape.
    """
    _check(function, dict(options))
    known = inspect.signature(function).parameters
    # optax's annotations of numbers differ between versions; a default says what it is.
    options = tuple(
        (name, float(x) if type(x) is int and type(known[name].default) is float else x)
        for name, x in options
    )
    numbers = tuple(name for name, x in options if type(x) is float)
    try:
        return _tried(Optimizer(function, options, numbers))
    except jax.errors.JAXTypeError:
        return _tried(Optimizer(function, options))


def _check(function, options):
    known = inspect.signature(function).parameters
    name = function.__name__
    if function not in OPTIMIZERS.values():
        return
    if name in REFUSED:
        raise ValueError("it evaluates other weights than it trains")
    for option, x in options.items():
        if option in MASKS and x != "all":
            raise ValueError(
                f"{option}={x} must be all, or left out: then norms and biases do not decay"
            )
        if option in ("b1", "b2", "b3", "beta") and not 0 <= x < 1 - 2**-25:
            raise ValueError(f"{option}={x} must be at least 0 and below 1")
        # Muon's mask is not for what Adam updates.
        has_mask = known.keys() & set(MASKS) and not option.startswith("adam_")
        if "weight_decay" in option and x and not has_mask:
            raise ValueError(
                f"{option}={x} would decay norms and biases too, as optax has no mask for it"
            )


def _tried(optimizer):
    """Returns an optimizer that can make a step. Raises ValueError for another."""

    def step(rate, numbers):
        sample = {"w_1": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
        made = optimizer.transformation(rate, numbers)
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(f"it returns {made}, not an optax.GradientTransformation")
        state = made.init(sample)
        try:
            return made.update(sample, state, sample)
        except TypeError as error:
            if "missing" not in str(error):
                raise
            raise ValueError(
                "it needs more than gradients, its state and parameters, as line searches "
                f"do: {error}"
            ) from error

    rate = jax.ShapeDtypeStruct((), jnp.float32)
    jax.eval_shape(step, rate, dict.fromkeys(optimizer.data, rate))
    return optimizer


# The schedules: the learning rate of a step, from 1 on, of which `peak` is the setting.


def paper(peak, step, steps, d_model, warmup: int = 4000):
    """Equation (3) of the paper: peak · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    return peak * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)


def constant(peak, step, steps, d_model, warmup: int = 0):
    """The peak, after a linear rise over `warmup` steps."""
    return peak * _rise(step, warmup)


def cosine(peak, step, steps, d_model, warmup: int = 0, final: float = 0.0):
    """A linear rise, then half a cosine down to final · peak at the end of training."""
    share = 0.5 + 0.5 * jnp.cos(jnp.pi * _progress(step, warmup, steps))
    return peak * _rise(step, warmup) * (final + (1 - final) * share)


def linear(peak, step, steps, d_model, warmup: int = 0, final: float = 0.0):
    """A linear rise, then a straight line down to final · peak at the end of training."""
    share = 1 - _progress(step, warmup, steps)
    return peak * _rise(step, warmup) * (final + (1 - final) * share)


def warmup_stable_decay(
    peak, step, steps, d_model, warmup: int = 0, decay: float = 0.2, final: float = 0.0
):
    """A linear rise, the peak, and over the last `decay` of steps a line to final · peak."""
    share = 1 - _progress(step, steps * (1 - decay), steps)
    return peak * _rise(step, warmup) * (final + (1 - final) * share)


def _rise(step, warmup):
    return jnp.minimum(step / jnp.maximum(warmup, 1), 1)


def _progress(step, begin, steps):
    """Returns the share of a decay that lies before a step: 0 at its first step."""
    return jnp.maximum(step - 1 - begin, 0) / (steps - begin)


OWN_SCHEDULES = (paper, constant, cosine, linear, warmup_stable_decay)
SCHEDULES = {function.__name__: function for function in OWN_SCHEDULES} | {
    name: value
    for name, value in vars(optax).items()
    if name.endswith("_schedule") and not name.startswith("scale_by_")
}
"""Those above, and all of optax, by name."""
RUN = ("peak", "step", "steps", "d_model")
"""The parameters of a schedule above that are no options."""


class Schedule(Chosen):
    """Holds a schedule, see `choose_schedule`."""

    @property
    def warmup(self) -> int:
        """The steps until the rate is highest; 0 where that is not known."""
        return int(self.numbers.get("warmup", 0))

    @property
    def decays(self) -> bool:
        """Whether the rate of a step depends on how many there are to be."""
        return self.function in (cosine, linear, warmup_stable_decay)

    def rate(self, peak, step, steps, d_model: int, numbers: Mapping[str, Any]):
        """Computes the learning rate of a step ≥ 1."""
        if self.function in OWN_SCHEDULES:
            step = step.astype(jnp.float32)
            return self.function(peak, step, steps, d_model, **numbers)
        # Optax counts from 0.
        return peak * self.function(**dict(self.options))(step - 1)

    def factor(self, step: int, steps: int) -> float:
        """Returns the learning rate of a step as a factor on the setting, but for d_model."""
        return float(self.rate(1.0, jnp.int32(step), steps, 1, self.numbers))

    def fits(self, steps: int) -> bool:
        """Returns whether its rise, and its decay, take no more than so many steps."""
        decay = self.numbers.get("decay", 0) * steps
        return self.warmup + decay <= steps - (self.decays and not decay)


@functools.cache
def choose_schedule(
    function: Callable, options: tuple[tuple[str, Any], ...]
) -> Schedule:
    """Returns a schedule: one of this file, or what a function makes of its options.

    Raises ValueError where it cannot be used.
    """
    if function not in OWN_SCHEDULES:
        schedule = Schedule(function, options)
        rate = jax.eval_shape(
            lambda: jnp.asarray(schedule.rate(1.0, jnp.int32(1), 1, 1, {}))
        )
        if rate.shape:
            raise ValueError("it does not give one number for a step")
        return schedule
    known = inspect.signature(function).parameters.values()
    values = {p.name: p.default for p in known if p.name not in RUN} | dict(options)
    for name, x in values.items():
        is_share = name in ("decay", "final")
        # Neither paper's rise nor a decay can take no steps.
        least = 1 if function is paper else 0
        if not (0 <= x <= 1 and (x or name == "final") if is_share else x >= least):
            allowed = "from 0 to 1" if is_share else f"at least {least}"
            raise ValueError(f"{name}={x} must be {allowed}")
    return Schedule(function, tuple(values.items()), tuple(values))


# The recipe


class Recipe(NamedTuple):
    """Holds what is compiled in of a recipe."""

    optimizer: Chosen
    schedule: Chosen
    clips: bool


class Numbers(NamedTuple):
    """Holds a recipe's numbers: data to the compiled program."""

    learning_rate: Any
    steps: Any
    clip: Any
    optimizer: dict[str, Any]
    schedule: dict[str, Any]


def learning_rate_at(recipe: Recipe, numbers: Numbers, step, d_model: int):
    """Computes the learning rate of a step ≥ 1."""
    n = numbers
    return recipe.schedule.rate(n.learning_rate, step, n.steps, d_model, n.schedule)


def moment_shapes(recipe: Recipe, trainable: Any) -> Any:
    """Returns the shapes of the optimizer's state."""
    numbers = dict.fromkeys(recipe.optimizer.data, 0.5)
    return jax.eval_shape(recipe.optimizer.transformation(1.0, numbers).init, trainable)


def initial_moments(recipe: Recipe, numbers: Numbers, trainable: Any) -> Any:
    """Returns the optimizer's state before the first step."""
    init = recipe.optimizer.transformation(
        numbers.learning_rate, numbers.optimizer
    ).init
    program = jax.make_jaxpr(init)(trainable).jaxpr
    zeros = {
        id(each.outvars[0])
        for each in program.eqns
        if each.primitive.name == "broadcast_in_dim" and _is_zero(each.invars[0])
    }
    if all(_is_zero(x) or id(x) in zeros for x in program.outvars):
        # To compile this would take longer than to read a compiled step.
        shapes = moment_shapes(recipe, trainable)
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return jax.jit(init)(trainable)


def _is_zero(variable):
    return isinstance(variable, Literal) and variable.val == 0


def update(recipe: Recipe, numbers: Numbers, rate, gradients, moments, trainable):
    """Returns the parameters and the optimizer's state after a step at a learning rate."""
    if recipe.clips:
        clip = optax.clip_by_global_norm(numbers.clip)
        gradients, _ = clip.update(gradients, clip.init(trainable))
    transformation = recipe.optimizer.transformation(rate, numbers.optimizer)
    updates, moments = transformation.update(gradients, moments, trainable)
    return optax.apply_updates(trainable, updates), moments
