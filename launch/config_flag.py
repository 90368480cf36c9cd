"""The flag --config, and --config.GROUP.NAME=VALUE for every setting.

A config is a file anywhere, or one of the project's own by its name alone: quick or
quick.py, whatever the current folder is. What follows a colon is its get_config's argument.
"""

import inspect
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

import experiments
from experiments.errors import UserError, hint

if TYPE_CHECKING:
    import ml_collections

PACKAGED = Path(experiments.__file__).parent / "configs"
"""The folder of the project's own configs, wherever it is installed."""

LONGEST_PATH = 200
"""Characters of a path that a message shows."""

PREFIX = "config."
"""What the flags of settings begin with."""


class Experiment(NamedTuple):
    """Holds what --config names, and what the flags of settings say."""

    path: str
    """The config file, with the argument of its get_config."""
    module: ModuleType
    config: "ml_collections.ConfigDict"
    """The file's config with the flags on top."""
    overrides: dict[str, Any]
    """What the flags set: {"model.h": 2} for --config.model.h=2."""


def define_config(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --config."""
    flags.DEFINE_string(
        "config",
        None,
        "The experiment: a config file's path, or one of the project's by name, as quick",
        flag_values=values,
    )


def define_settings(
    arguments: Sequence[str], values: flags.FlagValues = flags.FLAGS
) -> None:
    """Defines a flag for each setting that the arguments name, as --config.model.h.

    Raises UserError for a setting that does not exist, and for one without `config.`.
    """
    if "config" not in values:
        return
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name in values:
            continue
        if name.startswith(PREFIX):
            _define_setting(name, values)
        elif keys := _settings_of(name):
            from experiments.settings import aliases

            form = aliases.OPTIONS.get(name, "={}").partition("=")[2]
            given = form.format(value or "VALUE")
            # In quotes where a shell would take brackets for its own.
            flags_of = [shlex.quote(f"--{PREFIX}{key}={given}") for key in keys]
            raise UserError(
                f"{argument}: {name} is a setting; write {' or '.join(flags_of)}"
            )


def _define_setting(name, values):
    # Not at the top: it imports JAX, and most mistakes in flags need not wait for that.
    from experiments.settings.resolve import setting

    kind = setting(name.removeprefix(PREFIX)).type
    define = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        bool: flags.DEFINE_bool,
    }.get(kind, flags.DEFINE_string)
    define(name, None, "A setting", flag_values=values)


def _settings_of(name):
    """Returns the settings that a flag without `config.` may mean, as model.h, h or lr."""
    from experiments.settings import SettingsError, check_key, settings_named

    if "." not in name:
        return settings_named(name)
    try:
        return [check_key(name)]
    except SettingsError:
        return []


def check_file(given: str | None) -> None:
    """Raises UserError where --config names no file."""
    if given is None or os.path.isfile(find_config(given).partition(":")[0]):
        return
    known = _known_configs()
    near = hint(Path(given.partition(":")[0]).stem, known)
    raise UserError(
        f"--config={shortened(given)}: no such file{near} (the project's own, by name: "
        f"{', '.join(known)})"
    )


def load(values: flags.FlagValues = flags.FLAGS) -> None:
    """Loads the file that --config names, for `experiment`, which returns it.

    Raises UserError where it makes no config.
    """
    from experiments.settings import override
    from experiments.sweep.points import load_config

    given = values["config"].value
    path = find_config(given)
    file, _, argument = path.partition(":")
    module = load_config(path)
    config = _get_config(module, file, argument)
    overrides = {
        name.removeprefix(PREFIX): value
        for name, value in values.flag_values_dict().items()
        if name.startswith(PREFIX) and value is not None
    }
    try:
        config = override(config, overrides)
    except RecursionError as error:
        raise UserError(
            f"--config={given}: the config holds itself, or is nested too deeply"
        ) from error
    values["config"].experiment = Experiment(path, module, config, overrides)


def experiment(values: flags.FlagValues = flags.FLAGS) -> Experiment:
    """Returns what `load` has loaded."""
    return values["config"].experiment


def _get_config(module, file, argument):
    """Calls the get_config of a config file."""
    import ml_collections

    from experiments.settings.user_code import failure

    if not hasattr(module, "get_config"):
        raise UserError(f"--config={file}: it has no function get_config")
    arguments = [argument] if argument else []
    try:
        inspect.signature(module.get_config).bind(*arguments)
    except TypeError as error:
        raise UserError(
            f"--config={file}:{argument}: {file} takes no argument: leave out :{argument}"
            if argument
            else f"--config={file}: {file} needs an argument: write {file}:ARGUMENT"
        ) from error
    try:
        config = module.get_config(*arguments)
    # A config file is a program, and may raise anything.
    except (Exception, SystemExit) as error:
        raise UserError(failure(module.__file__, error)) from error
    if not isinstance(config, ml_collections.ConfigDict):
        kind = type(config).__name__
        raise UserError(
            f"--config={file}: get_config() must return a ConfigDict, not {kind}"
        )
    return config


def find_config(text: str) -> str:
    """Returns the path that `text` names, with its argument after the colon.

    A file that exists comes first. Otherwise quick, quick.py and experiments/configs/quick.py
    are the project's own.
    """
    path, colon, argument = text.partition(":")
    if os.path.isfile(path):
        return text
    folder, name = os.path.split(path)
    own = PACKAGED / f"{name.removesuffix('.py')}.py"
    if name and folder in ("", "experiments/configs") and own.is_file():
        inside = os.path.relpath(own)
        # From another folder the whole path is the shorter one.
        found = str(own) if inside.startswith("..") else inside
        return f"{found}{colon}{argument}"
    return text


NEEDED = {
    "invalid literal for int()": "a whole number, such as 3",
    "could not convert string to float": "a number, such as 0.5",
    "Non-boolean argument to boolean flag": "True or False",
}
"""What flags say of a value, by what Python and absl say of it."""


def message_of(error: flags.Error) -> str:
    """Returns absl's message; for a value of another type, one for people."""
    text = str(error).strip()
    for theirs, needed in NEEDED.items():
        # absl shows one of these in brackets and quotes.
        start, found, _ = text.replace("('", "").partition(f": {theirs}")
        if found and start.startswith("flag "):
            return f"{start.removeprefix('flag ')} must be {needed}"
    return text


def shortened(path: str) -> str:
    """Returns a path, of a very long one its beginning and its end."""
    if len(path) <= LONGEST_PATH:
        return path
    half = LONGEST_PATH // 2
    return f"{path[:half]}…{path[-half:]}"


def _known_configs():
    """Returns the names of the project's own configs."""
    names = sorted(path.stem for path in PACKAGED.glob("*.py"))
    names.remove("__init__")
    return names
