"""What every command has in common: flags, and errors of one clear line.

A user's mistake ends as `error: ...` on stderr with exit status 2, before any work where that is possible.
"""

import importlib
import logging
import os
import sys

from absl import app, flags
from ml_collections import config_flags

from experiments.corpora import CorpusError
from experiments.files import LockedError
from experiments.ledger import LedgerError
from experiments.population import DeviceError
from experiments.records import WorkdirError
from experiments.settings import SettingsError, check_key
from experiments.sweep import SweepError
from experiments.tokens import VocabularyError

MISTAKES = (CorpusError, DeviceError, LedgerError, LockedError, SettingsError, SweepError, VocabularyError,
            WorkdirError)


def start(main) -> None:
    """Runs `main()` after parsing the flags; turns a user's mistake into one line."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # at INFO it tells of every accelerator that is not there
    app.run(lambda _: _without_traceback(main), flags_parser=_parse)


def define_config() -> flags.FlagHolder:
    """The --config flag, with --config.key=value for every setting."""
    return config_flags.DEFINE_config_file("config", None, "The experiment, as experiments/configs/quick.py")


def define_workdir() -> flags.FlagHolder[str]:
    return flags.DEFINE_string("workdir", None, "The directory for everything that is written", required=True)


def config_path() -> str:
    """The config file's path, as given."""
    return flags.FLAGS["config"].config_filename


def overridden() -> set[str]:
    """The settings that the command line gives: "model.h" for --config.model.h=2."""
    return set(config_flags.get_override_values(flags.FLAGS["config"]))


def mistake(message: object) -> None:
    """Says what is wrong and ends the process with status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _without_traceback(main):
    try:
        return main()
    except MISTAKES as error:
        mistake(error)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _parse(arguments):
    try:
        _check_config_arguments(arguments)
        left = flags.FLAGS(arguments)
    except (flags.Error, *MISTAKES) as error:
        mistake(str(error).strip())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        mistake(f"--config: {error}")
    if len(left) > 1:
        mistake(f"{left[1]!r} is no flag; flags look like --name=value (--help lists them)")
    return left


def _check_config_arguments(arguments):
    """ml_collections' own complaint about a mistyped key names nothing that is known; this one does."""
    for argument in arguments[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name.startswith("config."):
            check_key(name.removeprefix("config."))
        if name == "config" and value and not os.path.isfile(value.split(":")[0]):
            mistake(f"--config={value}: no such file{_known_configs()}")


def _known_configs():
    folder = os.path.dirname(importlib.import_module("experiments.configs").__file__)
    names = sorted(n for n in os.listdir(folder) if n.endswith(".py") and n != "__init__.py")
    return f" (in {os.path.relpath(folder)}: {', '.join(names)})"
