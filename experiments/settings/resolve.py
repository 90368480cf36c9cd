"""ConfigDict -> frozen, checked dataclasses: the door that every experiment comes in by.

A config file fills an `ml_collections.ConfigDict` (start from `default_config()`),
`resolve()` turns it into `Settings`, and the rest of the code trusts those.

A kind of model, and a corpus, has its own settings. A setting that does not apply to the
kind is refused, so that none is ignored in silence.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_collections

from experiments.errors import hint
from experiments.settings import aliases
from experiments.settings.choices import TEXT
from experiments.settings.corpora import CORPORA, OutsideData
from experiments.settings.fields import SettingsError, cut, hint_of, require, shown
from experiments.settings.model import MODELS
from experiments.settings.schema import Settings
from experiments.settings.user_code import OutsideError, is_loaded, text_of

# It is a default argument, which all calls share, so nobody may change it.
NOTHING = MappingProxyType({})


class Union(NamedTuple):
    """Says that a group of settings is one of several dataclasses."""

    key: str
    """The setting that chooses, such as kind."""
    classes: Mapping[str, type]
    outside: type | None = None
    """The dataclass of a choice from outside, where there may be one."""

    def class_of(self, kind) -> type | None:
        """Returns the dataclass of a kind, None for an unknown one."""
        if isinstance(kind, str) and kind in self.classes:
            return self.classes[kind]
        from_outside = isinstance(kind, type) or (isinstance(kind, str) and ":" in kind)
        return self.outside if from_outside else None

    def all_classes(self) -> dict[str, type]:
        """Returns the dataclasses by kind, that for choices from outside among them."""
        return {**self.classes, **({OUTSIDE: self.outside} if self.outside else {})}


OUTSIDE = "file.py:Name"
"""How messages show a kind from outside."""

UNIONS = {
    "model": Union("kind", MODELS),
    "data": Union("corpus", CORPORA, OutsideData),
}


def default_config(
    model: str = "transformer", corpus: str = "cldr"
) -> ml_collections.ConfigDict:
    """Returns a ConfigDict to start a config file from.

    It has every setting of that kind of model and that corpus, at its default. Its values
    have no fixed types: `resolve` checks them.

    Raises:
      SettingsError: an unknown kind or corpus.
    """
    values = {}
    for field in dataclasses.fields(Settings):
        values[field.name] = field.default
    values["model"] = _class_of("model", model)()
    values["data"] = _class_of("data", corpus)()
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            values[name] = dataclasses.asdict(value)
    # ConfigDict's own types would not hold: once a field was None, it takes anything.
    return ml_collections.ConfigDict(values, type_safe=False)


def resolve(
    config: Mapping[str, Any] | ml_collections.ConfigDict,
    point: Mapping[str, Any] = NOTHING,
    overrides: Mapping[str, Any] = NOTHING,
    *,
    trusted: bool = True,
) -> Settings:
    """Returns the Settings of `config` with flags and a point on top, see `override`.

    Args:
      config: groups of settings; those that are left out have their defaults.
      point: a sweep's flat `{dotted key: value}`; it is stronger than `overrides`.
      overrides: the settings that flags give, in the same form.
      trusted: False for a config.json, which must not start code from outside that this
        process has not run already.

    Raises:
      SettingsError: an unknown key, a value of the wrong type or out of range, a setting
        that does not apply, or settings that contradict each other.
    """
    values = _changed(config, {**overrides, **point})
    if not trusted:
        _check_trusted(values)
    return _build(Settings, values, "")


def _check_trusted(values):
    """Raises SettingsError for code from outside that would be run only now."""
    for key, _, field in known_fields():
        group, _, name = key.rpartition(".")
        inner = values.get(group)
        text = inner.get(name) if isinstance(inner, dict) else None
        if "choices" not in field.metadata or not isinstance(text, str):
            continue
        # Only the text is looked at, because to parse a choice runs its code.
        match = TEXT.fullmatch(text)
        if match and match["place"]:
            place = f"{match['place']}:{match['name']}"
            if not is_loaded(match["place"], match["name"]):
                raise OutsideError(
                    f"{key}={shown(text)} is code from outside, which is run only where "
                    f"it is asked for: --outside={place}"
                )


def override(
    config: Mapping[str, Any] | ml_collections.ConfigDict, changes: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """Returns a copy of `config` with the flat `{dotted key: value}` on top.

    Where a change switches model.kind or data.corpus, the settings of `config` that the new
    kind lacks are left out, as they were the other kind's; the others stay, and those that
    it has beside them have their defaults.

    Raises:
      SettingsError: an unknown key, or one that does not apply to the kind.
    """
    values = _changed(config, changes)
    for name, union in UNIONS.items():
        group = values.get(name)
        if isinstance(group, dict):
            defaults = dataclasses.asdict(_class_in(name, union, group)())
            values[name] = defaults | group
    return ml_collections.ConfigDict(values, type_safe=False)


def with_all_settings(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy of `config` that has the settings of all kinds of models and corpora.

    It is for flags, which can only set what is there; it cannot be resolved.
    """
    values = _copy_with_texts(config)
    for name, union in UNIONS.items():
        if isinstance(values.setdefault(name, {}), dict):
            defaults = {}
            for cls in union.all_classes().values():
                # Of a name that several kinds have, the default of the first kind
                # stands.
                defaults = dataclasses.asdict(cls()) | defaults
            values[name] = defaults | values[name]
    return ml_collections.ConfigDict(values, type_safe=False)


def _changed(config, changes):
    """Returns nested values; what `override` says of kinds holds."""
    values = _copy_with_texts(config)
    for name, union in UNIONS.items():
        if isinstance(values.get(name), dict):
            # The config is held to the kind that it names itself; after the changes,
            # what only that kind has is dropped.
            _check_applies(name, union, values[name], values[name])
    for key, value in plain(changes).items():
        _set(values, check_key(key), value)
    for name, union in UNIONS.items():
        group = values.get(name)
        if isinstance(group, dict):
            changed = [key for key in group if f"{name}.{key}" in changes]
            _check_applies(name, union, group, changed)
            fields = _field_names(_class_in(name, union, group))
            values[name] = {key: group[key] for key in group if key in fields}
    return values


def _check_applies(name, union, group, keys):
    """Raises SettingsError for a key that the group's kind lacks."""
    cls = _class_in(name, union, group)
    for key in keys:
        if key in _field_names(cls):
            continue
        # A name that no kind has is misspelt, and is reported as such.
        _known_field(name, key, f"{name}.{key}")
        kinds = [
            kind
            for kind, cls in union.all_classes().items()
            if key in _field_names(cls)
        ]
        raise SettingsError(
            f"{name}.{key} does not apply to {name}.{union.key}={_kind(union, group)}; it "
            f"is of {', '.join(kinds)}"
        )


def _field_names(cls):
    return [field.name for field in dataclasses.fields(cls)]


def _kind(union, group):
    """Returns the name of the kind, by default the first."""
    return group.get(union.key, next(iter(union.classes)))


def _class_in(name, union, group):
    return _class_of(name, _kind(union, group))


def _class_of(name, kind):
    """Returns the dataclass of a kind. Raises SettingsError for an unknown one."""
    union = UNIONS[name]
    cls = union.class_of(kind)
    if cls is None:
        known = union.all_classes()
        near = hint_of(kind, known)
        raise SettingsError(
            f"{name}.{union.key}={shown(kind)} must be one of {', '.join(known)}{near}"
        )
    return cls


def _copy(values):
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    require(
        isinstance(values, Mapping),
        f"a config must be a ConfigDict of settings, not {shown(values)}",
    )
    return {
        key: _copy(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def _copy_with_texts(config):
    """Returns a copy in which chosen classes are texts."""
    values = _copy(config)
    for name in UNIONS:
        if isinstance(values.get(name), dict):
            flat = {f"{name}.{key}": value for key, value in values[name].items()}
            texts = plain(flat)
            for key in values[name]:
                values[name][key] = texts[f"{name}.{key}"]
    return values


def plain(point: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a point as files hold it: a chosen class becomes the text that names it.

    Raises:
      OutsideError: a class that cannot be loaded again.
    """
    keys = _choice_keys()
    return {
        key: text_of(value) if key in keys and isinstance(value, type) else value
        for key, value in point.items()
    }


@functools.cache
def _choice_keys():
    """Returns the dotted keys of settings that may be classes."""
    return {key for key, _, field in known_fields() if "choices" in field.metadata}


def _set(values, key, value):
    group, _, name = key.rpartition(".")
    if not group:
        values[name] = value
        return
    group_values = values.setdefault(group, {})
    require(
        isinstance(group_values, dict),
        f"{group} must be a group of settings, not {shown(group_values)}",
    )
    group_values[name] = value


def known_fields() -> Iterator[tuple[str, str, dataclasses.Field]]:
    """Gives (dotted key, kind, field) of every setting.

    The kind is "" for settings that always apply; those of a kind of model or of a corpus
    come once for each that has them.
    """
    for field in dataclasses.fields(Settings):
        for kind, cls in _kinds(field).items():
            if cls is None:
                yield field.name, "", field
                continue
            for inner in dataclasses.fields(cls):
                yield f"{field.name}.{inner.name}", kind, inner


def _kinds(field):
    """Returns the dataclasses that a field of Settings may hold; None for a number."""
    if field.name in UNIONS:
        return UNIONS[field.name].all_classes()
    return {"": field.type if dataclasses.is_dataclass(field.type) else None}


def check_key(key: str) -> str:
    """Returns `key` if it is the dotted name of a setting of any kind.

    Raises:
      SettingsError: it is none; the message names what is known.
    """
    require(
        isinstance(key, str),
        f"{shown(key)} is no setting: a dotted name is needed, such as model.h",
    )
    first, *rest = key.split(".")
    field = _known_field("", first, key)
    if dataclasses.is_dataclass(field.type):
        require(rest, f"{cut(key)} is a group of settings, not one setting")
        _known_field(first, rest[0], key)
        first = f"{first}.{rest.pop(0)}"
    require(not rest, f"{cut(key)}: {first} is a value, not a group of settings")
    return key


def _known_field(group, name, key):
    """Returns a field of that name in a group, of any kind; "" is the group of all."""
    fields = _fields_of(group)
    prefix = group and f"{group}."
    if name not in fields:
        meant = {key: text.format("…") for key, text in aliases.OPTIONS.items()}
        near = hint(name, (), aliases.KEYS | meant) or hint(name, fields, prefix=prefix)
        known = ", ".join(prefix + name for name in fields)
        raise SettingsError(f"{cut(key)}: no such setting{near} (known: {known})")
    return fields[name]


def settings_named(name: str) -> list[str]:
    """Returns the dotted keys of settings that end in `name`, or that it is an alias of."""
    keys = dict.fromkeys(key for key, _, _ in known_fields())
    found = [key for key in keys if key.rpartition(".")[2] == name]
    alias = aliases.KEYS.get(name) or aliases.OPTIONS.get(name, "").partition("=")[0]
    return found or ([alias] if alias else [])


@functools.cache
def _fields_of(group):
    """Returns {name: field} of a group; of a name that several kinds have, one of theirs."""
    if not group:
        return {field.name: field for field in dataclasses.fields(Settings)}
    prefix = f"{group}."
    return {
        field.name: field
        for known, _, field in known_fields()
        if known.startswith(prefix)
    }


def _build(cls, values, path):
    """Makes a dataclass of checked values."""
    require(
        isinstance(values, Mapping),
        f"{path[:-1]} must be a group of settings, not {shown(values)}",
    )
    built = {}
    for name, value in values.items():
        field = _known_field(path[:-1], name, f"{path}{name}")
        if not dataclasses.is_dataclass(field.type):
            built[name] = _checked(_own_field(cls, name), value, f"{path}{name}")
            continue
        group = field.type
        if name in UNIONS and isinstance(value, Mapping):
            group = _class_in(name, UNIONS[name], value)
        built[name] = _build(group, value, f"{name}.")
    return cls(**built)


def _own_field(cls, name):
    """Returns the field of this very kind: its range may be narrower than another's."""
    return next(field for field in dataclasses.fields(cls) if field.name == name)


def _checked(field, value, key):
    if "canonical" in field.metadata:
        return field.metadata["canonical"](value, key)
    number = field.type is float and type(value) is int
    require(
        # By type, because isinstance would take True for an int.
        type(value) is field.type or number,
        f"{key}={shown(value)} must be {field.type.__name__}, not "
        f"{type(value).__name__}",
    )
    if not field.metadata["accepts"](value):
        near = field.metadata["hint_for"](value)
        raise SettingsError(
            f"{key}={shown(value)} must be {field.metadata['allowed']}{near}"
        )
    # An int becomes a float where one is due, so that equal settings have one digest.
    return field.type(value)
