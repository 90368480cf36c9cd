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

from attn import config as models
from experiments.errors import hint
from experiments.settings import aliases
from experiments.settings.choices import TEXT, choices_of
from experiments.settings.corpora import CORPORA, OutsideData
from experiments.settings.fields import SettingsError, cut, hint_of, require, shown
from experiments.settings.schema import Rates, Settings
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
    "model": Union("kind", models.MODELS),
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
    values = {"model": _defaults("model", model), "data": _defaults("data", corpus)}
    for name in _groups():
        if name not in UNIONS:
            values[name] = _defaults(name)
    # ConfigDict's own types would not hold: once a field was None, it takes anything.
    return ml_collections.ConfigDict(values, type_safe=False)


def _defaults(group, kind=None):
    """Returns the default settings of a group, of a kind where there are several."""
    if not isinstance(default := _groups()[group], dict):
        return default.default
    fields = fields_of(group, kind)
    values = {name: _default_of(field) for name, field in fields.items()}
    return {UNIONS[group].key: kind, **values} if group in UNIONS else values


def _default_of(field):
    if "part" in field.metadata:
        return {}
    choices = choices_of(field)
    return choices.text_of(field.default) if choices else field.default


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
    return _build(values)


def _check_trusted(values):
    """Raises SettingsError for code from outside that would be run only now."""
    for key, field, text in _leaves(values):
        if choices_of(field) is None or not isinstance(text, str):
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


def _leaves(values, prefix=""):
    """Yields (dotted key, field, value) of nested values, as far as their keys are known."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif field := _setting_or_none(key):
            yield key, field, value


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
            values[name] = _defaults(name, _kind(union, group)) | group
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
            given = {".".join(key.split(".")[:2]) for key in changes}
            changed = [key for key in group if f"{name}.{key}" in given]
            _check_applies(name, union, group, changed)
            fields = _names_of(name, _kind(union, group))
            values[name] = {key: group[key] for key in group if key in fields}
    return values


def _check_applies(name, union, group, keys):
    """Raises SettingsError for a key that the group's kind lacks."""
    names = _names_of(name, _kind(union, group))
    for key in keys:
        if key in names:
            continue
        # A name that no kind has is misspelt, and is reported as such.
        _known_field(name, key, f"{name}.{key}")
        kinds = [kind for kind in union.all_classes() if key in fields_of(name, kind)]
        raise SettingsError(
            f"{name}.{key} does not apply to {name}.{union.key}={_kind(union, group)}; it "
            f"is of {', '.join(kinds)}"
        )


def _names_of(group, kind):
    """Returns the names of a kind's settings, the one that chooses it among them."""
    _class_of(group, kind)
    return {UNIONS[group].key, *fields_of(group, kind)}


def _kind(union, group):
    """Returns the name of the kind, by default the first."""
    return group.get(union.key, next(iter(union.classes)))


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
    """Returns a copy in which chosen classes and values are texts."""
    values = _copy(config)
    for key, field, value in list(_leaves(values)):
        _set(values, key, _as_text(field, value))
    return values


def plain(point: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a point as files hold it: a chosen class becomes the text that names it.

    Raises:
      OutsideError: a class that cannot be loaded again.
    """
    return {key: _as_text(_setting_or_none(key), value) for key, value in point.items()}


def _as_text(field, value):
    choices = choices_of(field) if field else None
    # What is no class and no value of one is refused later.
    is_value = dataclasses.is_dataclass(value) or isinstance(value, type)
    if choices is None or not is_value:
        return value
    return text_of(value) if isinstance(value, type) else choices.text_of(value)


def _setting_or_none(key):
    try:
        return setting(key)
    except SettingsError:
        return None


def _set(values, key, value):
    *path, name = key.split(".")
    inner = values
    for i, step in enumerate(path):
        inner = inner.setdefault(step, {})
        require(
            isinstance(inner, dict),
            f"{'.'.join(path[: i + 1])} must be a group of settings, not {shown(inner)}",
        )
    inner[name] = value


@functools.cache
def _groups():
    """Returns {name: fields} of the groups of settings, of the seed its one field."""
    groups = {}
    for field in dataclasses.fields(Settings):
        if field.name in UNIONS:
            groups[field.name] = {}
        elif dataclasses.is_dataclass(field.type) and field.type is not Rates:
            groups[field.name] = {x.name: x for x in dataclasses.fields(field.type)}
        elif field.type is not Rates:
            groups[field.name] = field
    return groups


@functools.cache
def fields_of(group: str, kind: str | None = None) -> dict[str, dataclasses.Field]:
    """Returns {name: field} of the settings of a group, of a kind where there are several."""
    if group not in UNIONS:
        return _groups()[group]
    cls = _class_of(group, kind)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if group == "model":
        rates = {field.name: field for field in dataclasses.fields(Rates)}
        fields |= {name: rates[name] for name in cls.numbers}
    return {name: x for name, x in fields.items() if name != UNIONS[group].key}


@functools.cache
def part_fields(part: str) -> dict[str, dataclasses.Field]:
    """Returns {name: field} of what may differ in a part of a model."""
    options = models.options_of_part(part)
    if part != "cross":
        options["N"] = models.Stacks.__dataclass_fields__["N"]
    return options


def known_fields() -> Iterator[tuple[str, str, dataclasses.Field]]:
    """Gives (dotted key, kind, field) of every setting.

    The kind is "" for settings that always apply; those of a kind of model or of a corpus
    come once for each that has them.
    """
    for group, fields in _groups().items():
        if isinstance(fields, dataclasses.Field):
            yield group, "", fields
            continue
        kinds = UNIONS[group].all_classes() if group in UNIONS else {"": None}
        for kind in kinds:
            if group in UNIONS:
                yield f"{group}.{UNIONS[group].key}", kind, _kind_field(group)
            for name, field in fields_of(group, kind or None).items():
                yield f"{group}.{name}", kind, field


@functools.cache
def _kind_field(group):
    """Returns the field of the setting that chooses among the kinds of a group."""
    union = UNIONS[group]
    if union.outside:
        return union.outside.__dataclass_fields__[union.key]
    names = tuple(union.all_classes())
    allowed = f"one of {', '.join(names)}"
    field = models.field(names[0], allowed, lambda value: union.class_of(value))
    field.type = str
    return field


def check_key(key: str) -> str:
    """Returns `key` if it is the dotted name of a setting of any kind.

    Raises:
      SettingsError: it is none; the message names what is known.
    """
    setting(key)
    return key


def setting(key: str) -> dataclasses.Field:
    """Returns the field of a setting of any kind, by its dotted name.

    Raises:
      SettingsError: there is none; the message names what is known.
    """
    require(
        isinstance(key, str),
        f"{shown(key)} is no setting: a dotted name is needed, such as model.h",
    )
    first, *rest = key.split(".")
    field = _known_field("", first, key)
    if isinstance(field, dict):
        require(rest, f"{cut(key)} is a group of settings, not one setting")
        field = _known_field(first, rest[0], key)
        first = f"{first}.{rest.pop(0)}"
    part = field.metadata.get("part")
    if part and rest and models.OF_LAYER.fullmatch(rest[0]):
        first = f"{first}.{rest.pop(0)}"
    if part:
        require(rest, f"{cut(key)} is a group of settings, not one setting")
        field = _known_in_part(first, part, rest.pop(0), key)
    require(not rest, f"{cut(key)}: {first} is a value, not a group of settings")
    return field


def _known_in_part(prefix, part, name, key):
    fields = part_fields(part)
    if name not in fields:
        known = ", ".join(fields)
        near = hint(name, fields)
        raise SettingsError(
            f"{cut(key)}: no such setting of {prefix}{near} (known: {known})"
        )
    return fields[name]


def _known_field(group, name, key):
    """Returns a field of that name in a group, of any kind; "" is the group of all."""
    fields = _fields_of_all_kinds(group)
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
def _fields_of_all_kinds(group):
    """Returns {name: field} of a group; of a name that several kinds have, one of theirs."""
    if not group:
        return _groups()
    prefix = f"{group}."
    return {
        key.removeprefix(prefix): field
        for key, _, field in known_fields()
        if key.startswith(prefix)
    }


def _build(values):
    """Makes Settings of checked values."""
    require(
        isinstance(values, Mapping),
        f"a config must be a group of settings, not {shown(values)}",
    )
    built = {}
    for group, value in values.items():
        fields = _known_field("", group, str(group))
        if isinstance(fields, dataclasses.Field):
            built[group] = _checked(fields, value, group)
            continue
        require(
            isinstance(value, Mapping),
            f"{group} must be a group of settings, not {shown(value)}",
        )
        if group == "model":
            built |= _built_model(value)
        elif group in UNIONS:
            cls = _class_of(group, _kind(UNIONS[group], value))
            own = {field.name: field for field in dataclasses.fields(cls)}
            built[group] = cls(**_checked_values(value, group, own))
        else:
            cls = Settings.__dataclass_fields__[group].type
            built[group] = cls(**_checked_values(value, group, fields))
    return Settings(**built)


def _built_model(values):
    """Returns the description of the model, and its rates of dropout."""
    kind = _kind(UNIONS["model"], values)
    cls = _class_of("model", kind)
    rest = {name: value for name, value in values.items() if name != "kind"}
    checked = _checked_values(rest, "model", fields_of("model", kind))
    rates = {name: checked.pop(name) for name in cls.numbers if name in checked}
    return {"model": cls(**checked), "rates": Rates(**rates)}


def _checked_values(values, prefix, fields):
    """Returns checked values by name, of a group or of a part of a model."""
    checked = {}
    for name, value in values.items():
        key = f"{prefix}.{name}"
        if name not in fields:
            # Raises for what no kind has.
            setting(key)
        if part := fields[name].metadata.get("part"):
            checked[name] = _checked_part(value, key, part)
        else:
            checked[name] = _checked(fields[name], value, key)
    return checked


def _checked_part(values, prefix, part):
    """Returns what a part of a model changes, and in which of its layers."""
    require(
        isinstance(values, Mapping),
        f"{prefix} must be a group of settings, not {shown(values)}",
    )
    checked = {}
    for name, value in values.items():
        key = f"{prefix}.{name}"
        if models.OF_LAYER.fullmatch(str(name)):
            checked[name] = _checked_part(value, key, part)
        else:
            checked[name] = _checked(setting(key), value, key)
    return checked


def _checked(field, value, key):
    if choices := choices_of(field):
        return _chosen(field, choices, value, key)
    number = field.type is float and type(value) is int
    require(
        # By type, because isinstance would take True for an int.
        type(value) is field.type or number,
        f"{key}={shown(value)} must be {field.type.__name__}, not "
        f"{type(value).__name__}",
    )
    if not field.metadata["accepts"](value):
        names = field.metadata.get("names", ())
        near = hint_of(value, names) if names else ""
        raise SettingsError(
            f"{key}={shown(value)} must be {field.metadata['allowed']}{near}"
        )
    # An int becomes a float where one is due, so that equal settings have one digest.
    return field.type(value)


def _chosen(field, choices, value, key):
    """Returns what a text, or a class, stands for: of a model the value, otherwise the text."""
    require(
        isinstance(value, str | type),
        f"{key}={shown(value)} must be str, not {type(value).__name__}",
    )
    if value in field.metadata["others"]:
        return value
    # A class may refuse its options only when the value is made.
    made = choices.value(value, key)
    return made if "choice" in field.metadata else choices.parse(value, key).text
