"""Describes every setting: its default, what it may be, and its words in the source."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from experiments.settings import choices
from experiments.settings.resolve import UNIONS, known_fields, part_fields
from experiments.settings.schema import Rates, Settings


class Description(NamedTuple):
    """Holds what there is to know of a setting."""

    key: str
    """The dotted name, as model.h."""
    kinds: tuple[str, ...]
    """The kinds of models, or the corpora, that have it; () where all have."""
    default: str
    allowed: str
    words: str


class Option(NamedTuple):
    """Holds a choice that has a name, with its options as they are written."""

    key: str
    """The kind of choice, as score."""
    written: str
    words: str


WORDS = {
    "model": "The model: transformer, an encoder-decoder; rnn, the recurrent encoder-decoder "
    "with attention; language, a decoder by itself, which models the target side; classifier, an "
    "encoder with attention pooling, which labels the source.",
    "data": "",
}
"""What the settings say that choose among kinds, where no source does."""

CHOICES = {
    "score": choices.SCORES,
    "normaliser": choices.NORMALISERS,
    "positions": choices.POSITIONS,
    "heads": choices.HEADS,
    "residual": choices.RESIDUALS,
    "feed_forward": choices.FEED_FORWARDS,
    "norm": choices.NORMS,
    "mixing": choices.MIXERS,
    "optimizer": choices.OPTIMIZERS,
    "schedule": choices.SCHEDULES,
    "objective": choices.OBJECTIVES,
}
"""The choices of the library, by the last part of the settings that hold them."""


def settings() -> list[Description]:
    """Returns a description of every setting, in the order of `schema.Settings`.

    A setting that kinds of models share is described once, and again for kinds in which its
    default, its range or its words differ.
    """
    kinds = {}
    for key, kind, field in known_fields():
        group, _, name = key.rpartition(".")
        union = UNIONS.get(group)
        if union and name == union.key:
            # It is described once: each class allows its own name alone.
            continue
        cls = _class_of(group, kind, name)
        described = (key, _default(field), _allowed(field))
        kinds.setdefault((*described, words_of(cls, name)), []).append(kind)
    result = [_of_union(name) for name in UNIONS]
    for (key, default, allowed, words), names in kinds.items():
        group = key.rpartition(".")[0]
        everywhere = group not in UNIONS or set(names) == set(_kinds(group))
        shown = () if everywhere else tuple(names)
        result.append(Description(key, shown, default, allowed, words))
    # By group and then as they stand in the source.
    order = [field.name for field in dataclasses.fields(Settings)]
    return sorted(result, key=lambda d: order.index(d.key.partition(".")[0]))


def options() -> list[Option]:
    """Returns each choice of the library with its options and what its docstring says."""
    described = []
    for key, known in CHOICES.items():
        for name in known.shown or known.known:
            cls = known.known[name]
            parameters = known.parameters(cls).values()
            written = ", ".join(f"{p.name}={_shown(p.default)}" for p in parameters)
            text = f"{name}({written})" if written else name
            described.append(Option(key, text, _first_paragraph(cls)))
    return described


@functools.cache
def words_of(cls: type, name: str) -> str:
    """Returns the text below a field in the source of `cls`, else in that of a parent."""
    for parent in cls.__mro__:
        if words := _all_words(parent).get(name):
            return words
    return ""


@functools.cache
def _all_words(cls) -> Mapping[str, str]:
    """Returns the texts below the fields in a dataclass's own source."""
    if not dataclasses.is_dataclass(cls):
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    words = {}
    for field, text in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            words[field.target.id] = " ".join(text.value.value.split())
    return words


def _of_union(group):
    """Returns the description of the setting that chooses among classes."""
    union = UNIONS[group]
    kinds = _kinds(group)
    words = WORDS[group] or words_of(next(iter(union.classes.values())), union.key)
    allowed = f"one of {', '.join(kinds)}"
    return Description(f"{group}.{union.key}", (), kinds[0], allowed, words)


def _kinds(group):
    return list(UNIONS[group].all_classes())


def _class_of(group, kind, name):
    """Returns the dataclass in whose source a setting is described."""
    if group == "model" and name in Rates.__dataclass_fields__:
        return Rates
    if group in UNIONS:
        return UNIONS[group].all_classes()[kind]
    fields = {field.name: field.type for field in dataclasses.fields(Settings)}
    return fields[group] if group else Settings


def _default(field):
    """Returns a setting's default as it is written."""
    if "part" in field.metadata:
        return "{}"
    known = choices.choices_of(field)
    return known.text_of(field.default) if known else _shown(field.default)


def _allowed(field):
    """Says what a setting may be."""
    if part := field.metadata.get("part"):
        return f"model.{part}.NAME of " + ", ".join(part_fields(part))
    if "choice" not in field.metadata:
        return field.metadata["allowed"]
    known = choices.choices_of(field)
    return ", ".join((*field.metadata["others"], known.allowed))


def _shown(default):
    if default is inspect.Parameter.empty:
        return "…"
    return '""' if default == "" else str(default)


def _first_paragraph(cls):
    # A class without a docstring has the one that dataclasses make, a signature.
    own = vars(sys.modules[cls.__module__]).get(cls.__name__, cls).__doc__ or ""
    return " ".join(inspect.cleandoc(own).partition("\n\n")[0].split())
