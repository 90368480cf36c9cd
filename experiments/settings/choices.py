"""Choices: settings whose values are classes with options of their own.

A choice is written as a text, in config files, flags, points and config.json alike:

    rotary                             a class of the library by its name
    rotary(base=500000, fraction=0.5)  with options
    my_module:Cosine                   a class from outside, see `outside`
    path/to/file.py:Cosine(scale=3)

Options are literals; a bare word is a text, so that `sinusoidal(layout=halves)` needs no
quotes. Some are choices themselves: `softcap(inner=qk_norm(inner=additive))`, one from
outside in quotes. The canonical text leaves out options at their defaults.
"""

import ast
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import jax

import attn
from attn.nn import layers, norms
from attn.pytrees import Datum
from attn.scores import ScoreChoice
from experiments import objectives, optim
from experiments.errors import hint
from experiments.settings import aliases, fields, user_code
from experiments.settings.fields import SettingsError

# The digits behind @ are of the source's hash, as `user_code` writes them. What begins as
# name(… is no place, whatever its options name.
TEXT = re.compile(
    r"((?P<place>(?![A-Za-z_]\w*\().+?):)?(?P<name>[A-Za-z_]\w*)(@(?P<digits>[0-9a-f]+))?"
    r"(\((?P<options>.*)\))?",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Holds a class and options for it; equal choices make equal values."""

    text: str
    """The choice as settings hold it."""
    cls: type
    options: tuple[tuple[str, Any], ...] = ()
    # Not compared, because the text has the source's hash already.
    origins: tuple[user_code.Outside, ...] = dataclasses.field(
        default=(), compare=False
    )
    """Where the class, and those that its options name, come from; none for the library's."""

    def make(self, *arguments) -> Any:
        """Returns an instance of the class for some arguments and these options."""
        return self.cls(*arguments, **dict(self.options))


@dataclasses.dataclass(frozen=True)
class Init:
    """Makes the score or normaliser of h heads; equal ones are one to a compiled program."""

    choice: Choice

    def __repr__(self):
        return self.choice.text

    def __call__(self, key, *sizes: int):
        """Draws it, as `attn.scores` and `attn.normalisers` say of `init`.

        What its class names as `numbers` are data.
        """
        cls = self.choice.cls
        made = cls.init(key, *sizes, **{**dict(self.choice.options), **self._inner()})
        data = {name: Datum(getattr(made, name)) for name in _numbers_of(cls)}
        return dataclasses.replace(made, **data) if data else made

    def without_numbers(self) -> "Init":
        """Returns it with the numbers that are data at their defaults.

        What differs in these alone is one program.
        """
        choice = self.choice
        inner = {
            name: self._known.text_of(without_numbers(value))
            for name, value in self._inner().items()
        }
        kept = {
            name: x
            for name, x in (dict(choice.options) | inner).items()
            if name not in _numbers_of(choice.cls)
        }
        parameters = self._known.parameters(choice.cls)
        nested = self._known.nested_in(choice.cls)
        # Again without an inner one that is at its default now.
        options = _checked_options(kept, parameters)
        options_at = TEXT.fullmatch(choice.text).start("options")
        name = choice.text if options_at < 0 else choice.text[: options_at - 1]
        text = _canonical(name, options, parameters, nested)
        return Init(dataclasses.replace(choice, text=text, options=options))

    def _inner(self):
        """Returns the options that are choices themselves."""
        known = self._known
        names = known.nested_in(self.choice.cls)
        options = self.choice.options
        return {name: known.value(x, name) for name, x in options if name in names}

    @property
    def _known(self):
        return SCORES if SCORES.accepts(self.choice.cls) else NORMALISERS


def _numbers_of(cls):
    return getattr(cls, "numbers", ())


def without_numbers(value: Any) -> Any:
    """Returns a model's description, or a part of it, with no numbers that are data."""
    if isinstance(value, Init):
        return value.without_numbers()
    if isinstance(value, Mapping):
        return jax.tree.map(without_numbers, value)
    if not dataclasses.is_dataclass(value):
        return value
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return dataclasses.replace(
        value, **{name: without_numbers(x) for name, x in fields.items()}
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """Knows what may be chosen for one setting.

    Attributes:
      known: the library's classes by name.
      accepts: a function that says whether a class from outside may be chosen.
      needed: words for such a class.
      maker: a function from a class to what takes its options.
      skip: the number of arguments that `maker` takes before the options.
      hidden: the names of other arguments that are no options.
      build: a function from a Choice to the value that it stands for.
      nested: the annotation of options that are choices of the same kind; None where no
        option is.
      aliases: what other names stand for, for hints.
      shown: the known names that messages and pages list; all where it is empty.
      others: words for the rest of the known names.
    """

    known: Mapping[str, type]
    accepts: Callable[[type], bool]
    needed: str
    maker: Callable[[type], Callable] = lambda cls: cls
    skip: int = 0
    hidden: tuple[str, ...] = ()
    build: Callable[[Choice], Any] = Choice.make
    nested: Any = None
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shown: tuple[str, ...] = ()
    others: str = ""

    def value(self, text: str | type, key: str) -> Any:
        """Returns the value of a choice, equal and hashable for equal texts.

        Raises:
          SettingsError: what `parse` refuses, and options that the class itself refuses.
        """
        parsed = self.parse(text, key)
        try:
            return self.build(parsed)
        except SettingsError:
            # A SettingsError is a ValueError, and it names its setting already.
            raise
        except (TypeError, ValueError) as error:
            # JAX's own have many lines, the first of which says what is wrong.
            reason, *_ = str(error).splitlines() or [type(error).__name__]
            raise SettingsError(f"{key}={parsed.text}: {reason}") from error

    def text_of(self, value: Any) -> str:
        """Returns the canonical text of a value of `value`.

        Raises:
          OutsideError: a value of a class that cannot be loaded again by its name.
        """
        if isinstance(value, str):
            return value
        if isinstance(value, type):
            return self.parse(value, "").text
        if isinstance(choice := getattr(value, "choice", None), Choice):
            return choice.text
        cls = type(value)
        names = [name for name, known in self.known.items() if known is cls]
        name = names[0] if names else user_code.origin_of(cls).text
        parameters, nested = self.parameters(cls), self.nested_in(cls)
        options = {option: getattr(value, option) for option in parameters}
        options |= {option: self.text_of(options[option]) for option in nested}
        checked = _checked_options(options, parameters)
        return _canonical(name, checked, parameters, nested)

    def origins_of(self, value: Any) -> tuple[user_code.Outside, ...]:
        """Returns where the classes from outside come from that a value is made of."""
        if isinstance(value, str):
            return self.parse(value, "").origins if ":" in value else ()
        if isinstance(choice := getattr(value, "choice", None), Choice):
            return choice.origins
        cls = value if isinstance(value, type) else type(value)
        return () if cls in self.known.values() else (user_code.origin_of(cls),)

    def parse(self, text: str | type, key: str) -> Choice:
        """Returns the choice that a text, or a class itself, stands for.

        Raises:
          SettingsError: a text that is none, an unknown name or option, or code from
            outside that cannot be used. The message begins with `key`, the setting.
        """
        if isinstance(text, type):
            # By way of its text, a class too has its source's hash in the settings.
            text = user_code.text_of(text)
        match = TEXT.fullmatch(text)
        if not match:
            raise SettingsError(
                f"{key}={fields.shown(text)} must be {self.allowed}, and may have options "
                "as in name(option=value)"
            )
        try:
            return self._choice(match)
        except SettingsError as error:
            raise type(error)(f"{key}={fields.shown(text)}: {error}") from error

    @property
    def allowed(self) -> str:
        """The known names, for messages."""
        outside = "one from outside, file.py:Name"
        if not self.known:
            return outside
        return (
            f"one of {', '.join(self.shown or self.known)}{self.others}, or {outside}"
        )

    def _choice(self, match):
        name = match["name"]
        loaded = None
        if match["place"]:
            loaded = user_code.load(match["place"], name, match["digits"] or "")
            cls = loaded.cls
            if not self.accepts(cls):
                raise SettingsError(f"{name} is not {self.needed}")
            name = loaded.text
            # A class of the library has one name, however it was named, so that equal
            # choices have equal texts.
            for known, library_class in self.known.items():
                if cls is library_class:
                    name = known
                    loaded = None
        # Only code from outside has a hash.
        elif name not in self.known or match["digits"]:
            near = hint(name, self.known, self.aliases, of_methods=True)
            raise SettingsError(f"must be {self.allowed}{near}")
        else:
            cls = self.known[name]
        parameters = self.parameters(cls)
        nested = self.nested_in(cls)
        options = _read_options(match["options"] or "", nested)
        origins = [] if loaded is None else [loaded]
        for option in nested & options.keys():
            inner = self.parse(_as_annotated(option, options[option], str), option)
            # With the digits of its source, where that is from outside.
            options[option] = inner.text
            origins += inner.origins
        options = _checked_options(options, parameters)
        text = _canonical(name, options, parameters, nested)
        return Choice(text, cls, options, tuple(origins))

    def nested_in(self, cls) -> set[str]:
        """Returns the names of a class's options that are choices of the same kind."""
        if self.nested is None:
            return set()
        parameters = self.parameters(cls).items()
        return {name for name, p in parameters if p.annotation == self.nested}

    def parameters(self, cls):
        """Returns the parameters that are options of a class, in their order."""
        try:
            maker = self.maker(cls)
            signature = inspect.signature(maker)
            hints = typing.get_type_hints(getattr(maker, "__init__", maker))
        # A user's annotations may name what only a type checker imports.
        except (NameError, TypeError, ValueError):
            signature = inspect.signature(self.maker(cls))
            hints = {}
        parameters = list(signature.parameters.values())[self.skip :]
        return {
            parameter.name: parameter.replace(
                annotation=_annotation(parameter, hints),
                default=self._default(parameter.default),
            )
            for parameter in parameters
            if parameter.kind
            in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.name not in self.hidden
        }

    def _default(self, value):
        """Returns a parameter's default, as a text where it is a value of a choice."""
        is_nested = isinstance(self.nested, type) and isinstance(value, self.nested)
        return self.text_of(value) if is_nested else value


def _annotation(parameter, hints):
    annotation = hints.get(parameter.name, parameter.annotation)
    # Optax has float or array, of which a text can have the first.
    is_array = typing.get_origin(annotation) is typing.Union
    return float if is_array and type(parameter.default) is float else annotation


def _read_options(text, nested):
    """Returns the options in a text "a=1, b=word"; one that is `nested` may be "c=d(e=1)"."""
    try:
        # Python's own parser reads the options, and nothing in them is executed.
        call = ast.parse(f"f({text})", mode="eval").body
    # The parser raises the last two for text that is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if (
        not isinstance(call, ast.Call)
        or call.args
        # A text such as a=1)(b=2 would make a call of a call.
        or not isinstance(call.func, ast.Name)
    ):
        raise SettingsError(f"options are written as name=value, not ({text})")
    options = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in options:
            raise SettingsError(
                f"options are written as name=value, each once, not ({text})"
            )
        value = keyword.value
        if keyword.arg in nested and isinstance(value, ast.Call):
            options[keyword.arg] = ast.unparse(value)
        else:
            options[keyword.arg] = _read_value(keyword.arg, value)
    return options


def _read_value(name, node):
    if isinstance(node, ast.Name):
        return node.id
    try:
        value = ast.literal_eval(node)
        # A choice is a part of what a program is compiled for, so it must be hashable.
        hash(value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise SettingsError(
            f"option {name} must be a number, a word, a text in quotes, True, False, None or "
            "a tuple of these"
        ) from None
    return value


def _checked_options(options, parameters):
    """Returns the options that are not at their defaults, in the order of parameters."""
    for name in options:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise SettingsError(
                f"no option {name}{hint(name, parameters)} (known: {known})"
            )
    checked = []
    for name, parameter in parameters.items():
        if name in options:
            value = _as_annotated(name, options[name], parameter.annotation)
            if value != parameter.default:
                checked.append((name, value))
        elif parameter.default is parameter.empty:
            raise SettingsError(f"option {name} is missing and has no default")
    return tuple(checked)


def _as_annotated(name, value, annotation):
    """Returns an option's value; an int becomes a float where one is annotated."""
    kinds = [annotation]
    if isinstance(annotation, types.UnionType):
        kinds = list(typing.get_args(annotation))
    # Other annotations are for the class itself to check, when `value` makes it.
    if not all(kind in (int, float, str, bool, types.NoneType) for kind in kinds):
        return value
    # By type, because Python's bool is an int.
    if float in kinds and type(value) is int and int not in kinds:
        value = float(value)
    if type(value) not in kinds:
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise SettingsError(
            f"option {name}={fields.shown(value)} must be {allowed}, not "
            f"{type(value).__name__}"
        )
    return value


def _canonical(name, options, parameters, nested):
    if not options:
        return name
    written = []
    for option, value in options:
        text = _written(value, parameters[option].annotation)
        # What Python's grammar has as a call needs no quotes; a file's name does.
        if option in nested and ":" not in value:
            text = value
        written.append(f"{option}={text}")
    return f"{name}({', '.join(written)})"


def _written(value, annotation):
    """Returns a value in a text, from which `_read_value` gives the same value."""
    if isinstance(value, str) and value.isidentifier():
        # Other identifiers are read as themselves, these as what Python has by that name.
        return repr(value) if value in ("True", "False", "None") else value
    # 500000 is easier to read than 500000.0, and `_as_annotated` makes it a float
    # again.
    if annotation is float and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _init(choice):
    # A name is all that the library needs of its own classes without options.
    known = choice.text in attn.SCORES or choice.text in attn.NORMALISERS
    return choice.text if known and not _numbers_of(choice.cls) else Init(choice)


def _is_score(cls):
    return (
        isinstance(cls, type)
        and hasattr(cls, "prepare")
        and dataclasses.is_dataclass(cls)
    )


def _is_normaliser(cls):
    return isinstance(cls, type) and hasattr(cls, "sums_to_one")


def _is_optimizer(function):
    is_function = inspect.isfunction(function)
    return is_function and "learning_rate" in inspect.signature(function).parameters


def _is_schedule(function):
    return inspect.isfunction(function) and not _is_optimizer(function)


def _is_source(cls):
    return (
        # By what it has: a corpus from outside need not inherit from anything here.
        isinstance(cls, type) and hasattr(cls, "read") and hasattr(cls, "fingerprint")
    )


SCORES = Choices(
    attn.SCORES,
    _is_score,
    "a score: a class with the decorator attn.score",
    maker=lambda cls: cls.init,
    # `init` takes key, h, d_q and d_k before the options.
    skip=4,
    build=_init,
    nested=ScoreChoice,
    aliases=aliases.SCORES,
)
NORMALISERS = Choices(
    attn.NORMALISERS,
    _is_normaliser,
    "a normaliser: a class with the decorator attn.normaliser",
    maker=lambda cls: cls.init,
    # `init` takes key and h before the options.
    skip=2,
    build=_init,
    aliases=aliases.NORMALISERS,
)


def _subclasses_of(base, known, near):
    """Returns the choices of values of a class, such as `attn.Positions`.

    An option that is annotated with that class is such a value too.
    """

    def build(choice):
        nested = choices.nested_in(choice.cls)
        options = {
            name: choices.value(x, name) if name in nested else x
            for name, x in choice.options
        }
        return choice.cls(**options)

    choices = Choices(
        known,
        lambda cls: isinstance(cls, type) and issubclass(cls, base),
        f"a subclass of {base.__module__.partition('.')[0]}.{base.__name__}",
        build=build,
        nested=base,
        aliases=near,
    )
    return choices


POSITIONS = _subclasses_of(attn.Positions, attn.POSITIONS, aliases.POSITIONS)
HEADS = _subclasses_of(attn.Heads, attn.HEADS, aliases.HEADS)
MIXERS = _subclasses_of(attn.Mixer, attn.MIXERS, aliases.MIXERS)
RESIDUALS = _subclasses_of(attn.Residual, attn.RESIDUALS, aliases.RESIDUALS)
NORMS = _subclasses_of(norms.Norm, norms.NORMS, aliases.NORMS)
FEED_FORWARDS = _subclasses_of(
    layers.FeedForward, layers.FEED_FORWARDS, aliases.FEED_FORWARDS
)
OF_MODELS = {
    "score": SCORES,
    "normaliser": NORMALISERS,
    attn.Positions: POSITIONS,
    attn.Heads: HEADS,
    attn.Residual: RESIDUALS,
    attn.Mixer: MIXERS,
    norms.Norm: NORMS,
    layers.FeedForward: FEED_FORWARDS,
}
"""The choices of a model's options, by what their fields say of them."""


def choices_of(field: dataclasses.Field) -> Choices | None:
    """Returns the choices of a setting, None where its values are no choices."""
    if "choice" in field.metadata:
        return OF_MODELS[field.metadata["choice"]]
    return field.metadata.get("choices")


OBJECTIVES = Choices(
    objectives.OBJECTIVES,
    lambda cls: isinstance(cls, type) and issubclass(cls, objectives.Objective),
    "a subclass of experiments.objectives.Objective",
    aliases=aliases.OBJECTIVES,
)
SOURCES = Choices(
    {},
    _is_source,
    "a source of text: a class with read and fingerprint, see experiments.data.corpora",
    # The constructor takes the settings of the data before the options.
    skip=1,
    # Settings only name the corpus: to make its source may read files.
    build=lambda choice: choice,
)
"""Corpora from outside; the project's own have settings in place of options."""
OPTIMIZERS = Choices(
    optim.OPTIMIZERS,
    _is_optimizer,
    "an optimizer: a function of learning_rate, and options, that returns an "
    "optax.GradientTransformation",
    hidden=("learning_rate", optim.MATRICES),
    build=lambda choice: optim.choose_optimizer(choice.cls, choice.options),
    aliases=aliases.OPTIMIZERS,
    shown=("adam", "adamw", "lion", "muon", "sgd"),
    others=", another optimizer of optax by its name",
)
SCHEDULES = Choices(
    optim.SCHEDULES,
    _is_schedule,
    "a schedule: a function of options that returns an optax.Schedule",
    hidden=optim.RUN,
    build=lambda choice: optim.choose_schedule(choice.cls, choice.options),
    aliases=aliases.SCHEDULES,
    shown=tuple(function.__name__ for function in optim.OWN_SCHEDULES),
    others=", a schedule of optax by its name",
)
METRICS = Choices(
    {},
    user_code.is_metric,
    "a subclass of experiments.evaluation.metrics.Metric",
)
"""Metrics from outside; every run has the project's own."""


def choice(choices: Choices, default: str, *others: str):
    """Returns a dataclass field for the text of a choice, or for one of some other words."""
    allowed = ", ".join((*others, choices.allowed))
    metadata = dict(allowed=allowed, choices=choices, others=others)
    return dataclasses.field(default=default, metadata=metadata)
