"""The flag --config, and --config.GROUP.NAME=VALUE for every setting.

A config is a file anywhere, or one of the project's own by its name alone: quick or
quick.py, whatever the current folder is. What follows a colon is its get_config's argument.
"""

import contextlib
import logging
import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

import experiments
from experiments.errors import UserError, hint

PACKAGED = Path(experiments.__file__).parent / "configs"
"""The folder of the project's own configs, wherever it is installed."""

LONGEST_PATH = 200
"""Characters of a path that a message shows."""


def define_config(values: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder:
    """Defines --config, and --config.key=value for every setting."""
    flag = config_flags.DEFINE_config_file(
        "config",
        None,
        "The experiment: a config file's path, or one of the project's by name, as quick",
        flag_values=values,
    )
    # DEFINE_config_file takes no parser.
    values["config"].parser = ConfigParser("config")
    return flag


class ConfigParser(ConfigFileFlagParser):
    """Loads a config file so that flags may set what other kinds of models have too.

    `--config.model.kind=rnn --config.model.cell=gru` is then possible on a Transformer's
    config. `apply_overrides` leaves out what does not belong to the kind in the end.
    """

    def parse(self, path):
        """Returns the file's config with the settings of all kinds.

        Raises UserError for a config that ends the program.
        """
        try:
            # ml_collections warns of None, which is an error here.
            with _silenced(logging.getLogger("absl")):
                self.config = super().parse(path)
        except SystemExit as error:
            # The command would otherwise end with the config's status, and in silence.
            raise UserError(f"it ends the program by exit({error.code})") from error
        if not isinstance(self.config, ml_collections.ConfigDict):
            return self.config
        from experiments.settings import with_all_settings

        names = (argument.lstrip("-").partition("=")[0] for argument in sys.argv[1:])
        given = [name for name in names if name.startswith("config.")]
        return with_all_settings(
            self.config, [name.removeprefix("config.") for name in given]
        )


def config_path() -> str:
    """Returns the config file's path, with the argument of its get_config."""
    return flags.FLAGS["config"].config_filename


def overrides() -> dict[str, Any]:
    """Returns what flags set: {"model.h": 2} for --config.model.h=2."""
    return config_flags.get_override_values(flags.FLAGS["config"])


def with_paths(arguments: list[str]) -> list[str]:
    """Returns the command line with paths for the names of the project's own configs."""
    changed = list(arguments)
    for i, argument in enumerate(arguments[1:], 1):
        name, equals, value = argument.partition("=")
        if name not in ("-config", "--config"):
            continue
        if equals:
            changed[i] = f"{name}={find_config(value)}"
        elif i + 1 < len(arguments):
            changed[i + 1] = find_config(arguments[i + 1])
    return changed


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


def check_arguments(arguments: list[str], values: flags.FlagValues) -> None:
    """Refuses, before absl parses, what absl and ml_collections would explain badly.

    Raises UserError for a setting that does not exist, for one without `config.` before it,
    and for a config file that does not exist.
    """
    takes_settings = "config" in values
    for argument in arguments[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            continue
        if name.startswith("config."):
            from experiments.settings import check_key

            # It lists the keys that are known, which ml_collections leaves out.
            check_key(name.removeprefix("config."))
        elif takes_settings and name not in values and (keys := _settings_of(name)):
            from experiments.settings import aliases

            form = aliases.OPTIONS.get(name, "={}").partition("=")[2]
            given = form.format(value or "VALUE")
            # In quotes where a shell would take brackets for its own.
            flags_of = [shlex.quote(f"--config.{key}={given}") for key in keys]
            raise UserError(
                f"{argument}: {name} is a setting; write {' or '.join(flags_of)}"
            )
    given = given_config(arguments)
    if given is not None and not os.path.isfile(given.split(":")[0]):
        name = os.path.basename(given.split(":")[0]).removesuffix(".py")
        near = hint(name, _known_configs())
        known = ", ".join(_known_configs())
        raise UserError(
            f"--config={shortened(given)}: no such file{near} (the project's own, by name: "
            f"{known})"
        )


def _settings_of(name):
    """Returns the settings that a flag without `config.` may mean, as model.h, h or lr."""
    from experiments.settings import SettingsError, check_key, settings_named

    if "." not in name:
        return settings_named(name)
    try:
        return [check_key(name)]
    except SettingsError:
        return []


def apply_overrides(given: str) -> None:
    """Makes the flag's value the file's own config with the flags on top.

    Raises UserError for a get_config() that returns no ConfigDict.
    """
    flag = flags.FLAGS["config"]
    if not isinstance(flag.value, ml_collections.ConfigDict):
        # ml_collections keeps an OSError of the file and raises it at the first access.
        getattr(flag.value, "model", None)
        kind = type(flag.value).__name__
        raise UserError(
            f"--config={given}: get_config() must return a ConfigDict, not {kind}"
        )
    from experiments.settings import override

    # From the file's config: the flag's own has the settings of all kinds.
    flag.value = override(flag.parser.config, overrides())


def given_config(arguments: list[str]) -> str | None:
    """Returns the value of --config, None where there is none."""
    # By hand, as this is asked before absl has parsed, and after it has failed to.
    values = [
        following if argument.lstrip("-") == "config" else argument.partition("=")[2]
        for argument, following in zip(
            arguments[1:], [*arguments[2:], ""], strict=False
        )
        if argument.startswith("-")
        and argument.lstrip("-").partition("=")[0] == "config"
    ]
    # absl takes the last of several too.
    return values[-1] if values else None


def message_of(error: Exception, given: str) -> str:
    """Returns one line that says what is wrong with the flags, or where in the config file."""
    path = os.path.abspath(given.split(":")[0])
    # ml_collections may have wrapped what the config file raised.
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    for link in chain:
        if lines := _lines_in(path, link):
            # A config may refuse its argument with a line for people.
            if isinstance(link, UserError):
                return str(link)
            where = f"--config={given}: line {lines[-1]}"
            return f"{where}: {type(link).__name__}: {link}"
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return f"--config={given}: the config holds itself, or is nested too deeply"
    if "config file" in str(error):  # ml_collections' message is a whole traceback
        return _message_of_loading(chain[-1], given)
    if isinstance(error, flags.Error):
        return _message_of_flag(str(error).strip())
    return f"--config={given}: {error}"


def _message_of_loading(error, given):
    """Says why get_config could not be called."""
    path, _, argument = given.partition(":")
    if isinstance(error, TypeError) and "get_config() takes 0" in str(error):
        return f"--config={given}: {path} takes no argument: leave out :{argument}"
    if isinstance(error, TypeError) and "get_config() missing" in str(error):
        return f"--config={given}: {path} needs an argument: write {path}:ARGUMENT"
    return f"--config={given}: {error}"


PYTHONS_WORDS = {
    "invalid literal for int()": "a whole number, such as 3",
    "could not convert string to float": "a number, such as 0.5",
    "Non-boolean argument to boolean flag": "True or False",
}
"""What flags say of a value, by what Python and absl say of it."""


def _message_of_flag(text):
    """Returns absl's message; for a value of another type, one for people."""
    for theirs, needed in PYTHONS_WORDS.items():
        # absl shows one of these in brackets and quotes.
        start, found, _ = text.replace("('", "").partition(f": {theirs}")
        if found and start.startswith("flag "):
            return f"{start.removeprefix('flag ')} must be {needed}"
    return text


def _lines_in(path, error):
    """Returns the lines of the file `path` that an error passed through, the last one last."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        frame.lineno for frame in frames if os.path.abspath(frame.filename) == path
    ]
    # A syntax error passes through no line of the file that has it.
    if isinstance(error, SyntaxError) and os.path.abspath(error.filename or "") == path:
        lines.append(error.lineno)
    return lines


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


@contextlib.contextmanager
def _silenced(logger):
    """Makes a logger log nothing in this `with` block."""
    refuse = lambda record: False
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
