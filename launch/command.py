"""Flags and errors that all commands share.

A user's mistake ends as `error: ...` on stderr with exit status 2, before any work
where that is possible. Settings are imported where they are used: they know attn, and so
JAX, which takes time that a mistake in the flags need not wait for.
"""

import contextlib
import errno
import importlib
import logging
import math
import os
import select
import sys
import traceback
from typing import Any

import ml_collections
from absl import app, flags
from ml_collections import config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from experiments.errors import UserError, one_line
from experiments.system.signals import LINE, STATUS, Interrupted

DISK = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose another place",
    errno.EACCES: "give the right to it",
    errno.EPERM: "give the right to it",
    errno.ENOTDIR: "choose another place",
    errno.ENOENT: "choose another place",
    errno.EIO: "look after the disk",
    errno.ELOOP: "remove the link",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EISDIR: "move that directory away",
    errno.EEXIST: "move it away",
    errno.ENOTEMPTY: "move it away",
    errno.EMFILE: "allow more open files",
    errno.ENFILE: "allow more open files",
    errno.ESTALE: "mount it again",
}
"""The remedy for errors of the file system, which are no mistake of this program."""

STDOUT = 1
"""The file descriptor of standard output."""

LONGEST_PATH = 200
"""Characters of a path that a message shows."""

HELP = {"--help", "-help", "-h", "-?"}


def start(main) -> None:
    """Runs `main()` after parsing the flags; turns a user's mistake into one line."""
    escape_output()
    quiet_jax()
    if HELP & set(sys.argv[1:]):
        # launch.data gives a partial, which has no module of its own.
        module = sys.modules[getattr(main, "func", main).__module__]
        return without_traceback(lambda: print(_help(module)))
    app.run(lambda _: without_traceback(main), flags_parser=_parse)


def escape_output() -> None:
    """Makes the output show what its encoding lacks as an escape, as \\xb1 for ±.

    Without it a command would end in an error where the output is ASCII or Latin-1.
    """
    for stream in (sys.stdout, sys.stderr):
        # A notebook's streams take any character, and have no such method.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def quiet_jax() -> None:
    """Keeps JAX from reporting every accelerator that is not there."""
    logging.getLogger("jax").setLevel(logging.WARNING)


def define_config(values: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder:
    """Defines --config, and --config.key=value for every setting."""
    flag = config_flags.DEFINE_config_file(
        "config",
        None,
        "The experiment, as experiments/configs/quick.py",
        flag_values=values,
    )
    # DEFINE_config_file takes no parser.
    values["config"].parser = ConfigParser("config")
    return flag


class ConfigParser(ConfigFileFlagParser):
    """Loads a config file so that flags may set what other kinds of models have too.

    `--config.model.kind=rnn --config.model.cell=gru` is then possible on a Transformer's
    config. `_parse` leaves out what does not belong to the kind in the end.
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

        return with_all_settings(self.config)


def define_workdir() -> flags.FlagHolder[str]:
    """Defines --workdir, which must be given."""
    flag = flags.DEFINE_string(
        "workdir", None, "The directory for everything that is written", required=True
    )
    check_directory("workdir")
    return flag


def check_directory(name: str) -> None:
    """Makes the flag `name` refuse what no directory can be called.

    An empty name would be the current directory: a shell leaves it of an unset variable.
    """
    flags.register_validator(name, _is_directory_name)


def _is_directory_name(value):
    """Raises ValidationError for an empty name and for one that is too long."""
    if value is None:
        return True
    if not value.strip():
        raise flags.ValidationError("it is empty; name a directory, . for this one")
    try:
        os.lstat(value)
    except OSError as error:
        # Any other error may be gone when the directory is used, or on another host.
        if error.errno == errno.ENAMETOOLONG:
            raise flags.ValidationError("the name is too long") from None
    return True


def define_outside() -> flags.FlagHolder[list[str]]:
    """Defines --outside, which allows code that a model's directory names."""
    return flags.DEFINE_list(
        "outside",
        [],
        "Classes from outside that the model may run, as path/to/scores.py:Cosine",
    )


def load_metrics(texts: list[str]) -> list:
    """Returns the metrics that --metric names. Raises SettingsError for what is none."""
    from experiments.settings.choices import METRICS

    return [METRICS.value(text, "metric") for text in texts]


def load_outside(texts: list[str]) -> None:
    """Runs the code that --outside names."""
    from experiments.settings import load_text

    for text in texts:
        load_text(text)


def config_path() -> str:
    """The config file's path, as given."""
    return flags.FLAGS["config"].config_filename


def overrides() -> dict[str, Any]:
    """Returns what flags set: {"model.h": 2} for --config.model.h=2."""
    return config_flags.get_override_values(flags.FLAGS["config"])


def mistake(message: object, status: int = 2) -> None:
    """Says what is wrong and ends the process with this status."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(status)


def define_interest():
    """Defines --interest, of which `read_interest` makes numbers."""
    return flags.DEFINE_list(
        "interest",
        [],
        "The smallest differences that matter, in the table's units, as bleu:0.5,chrf:1",
    )


def read_interest(entries: list[str], metrics) -> dict[str, float]:
    """Returns {metric key: difference} of entries such as "bleu:0.5".

    Ends with a usage error for another metric, or what is no number above 0.
    """
    interest = {}
    known = [metric.key for metric in metrics]
    for entry in entries:
        key, _, text = entry.partition(":")
        if key not in known:
            mistake(f"--interest={entry}: {key!r} is no metric; {', '.join(known)} are")
        try:
            size = float(text)
        except ValueError:
            size = math.nan
        if not 0 < size < math.inf:
            mistake(
                f"--interest={entry}: {text!r} is no number above 0; write {key}:0.5, in the "
                "units of the table"
            )
        interest[key] = size
    return interest


def _help(module) -> str:
    """Returns the description of a command and its flags, those shared by commands first."""
    values = flags.FLAGS
    shared = [values[name] for name in ("config", "workdir") if name in values]
    own = values.get_key_flags_for_module(module.__name__)
    lines = [module.__doc__.strip(), "", "Flags:"]
    for flag in {flag.name: flag for flag in [*shared, *own]}.values():
        default = (
            "" if flag.default in (None, "", False) else f" (default: {flag.default})"
        )
        lines.append(f"  --{flag.name}: {flag.help}{default}")
    if "config" in values:
        lines.append("  --config.GROUP.NAME=VALUE: any setting of the config")
    return "\n".join(lines)


def without_traceback(main):
    """Runs `main()`; turns what a user can mend into one line and the error's status."""
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        mistake(error, error.status)
    except BrokenPipeError:
        if not _is_unread(STDOUT):
            raise
        # What reads it, such as `head`, wants no more; Python's own flush would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        sys.exit(1)  # as Python itself does, and rich
    except OSError as error:
        # Without a path it may be anything, such as a broken pipe.
        if error.errno not in DISK and error.filename is None:
            raise
        mistake(_message_of_disk(error))
    except Interrupted:
        print(LINE, file=sys.stderr)
        sys.exit(STATUS)
    except KeyboardInterrupt:
        print(LINE, file=sys.stderr)
        # The status that shells give a command which SIGINT ended: 128 + 2.
        sys.exit(130)


def _is_unread(number):
    """Returns whether the file descriptor is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(number, 0)
    return bool(poll.poll(0))


def _message_of_disk(error):
    """Says at which path the file system failed, and what to do."""
    workdir = flags.FLAGS["workdir"].value if "workdir" in flags.FLAGS else None
    where = os.fsdecode(error.filename or workdir or os.getcwd())
    remedy = DISK.get(error.errno, "choose another place")
    return (
        f"{_shortened(where)}: {error.strerror}; {remedy}, "
        "and the same command goes on from here"
    )


def _shortened(path):
    """Returns a path, of a very long one its beginning and its end."""
    if len(path) <= LONGEST_PATH:
        return path
    half = LONGEST_PATH // 2
    return f"{path[:half]}…{path[-half:]}"


@contextlib.contextmanager
def _silenced(logger):
    """Makes a logger log nothing in this `with` block."""
    refuse = lambda record: False
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def _parse(arguments):
    try:
        # Before absl parses, whose messages leave out what is known.
        _check_config_arguments(arguments)
        left = flags.FLAGS(arguments)
        _check_config(arguments)
        if _config_given(arguments):
            flag = flags.FLAGS["config"]
            from experiments.settings import override

            # From the file's config: the flag's own has the settings of all kinds.
            flag.value = override(flag.parser.config, overrides())
    except Exception as error:  # a config file is a program, and may raise anything
        mistake(_message_of(error, _config_given(arguments) or ""))
    if len(left) > 1:
        mistake(
            f"{left[1]!r} is no flag; flags look like --name=value (--help lists them)"
        )
    return left


def _check_config_arguments(arguments):
    """Refuses a mistyped key with the keys that are known, which ml_collections leaves out."""
    for argument in arguments[1:]:
        name, _, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name.startswith("config."):
            from experiments.settings import check_key

            check_key(name.removeprefix("config."))
    given = _config_given(arguments)
    if given is not None and not os.path.isfile(given.split(":")[0]):
        raise UserError(f"--config={_shortened(given)}: no such file{_known_configs()}")


def _check_config(arguments):
    """ml_collections lets get_config() return anything, and keeps an OSError in it for later."""
    given = _config_given(arguments)
    if given is None:
        return
    config = flags.FLAGS["config"].value
    if not isinstance(config, ml_collections.ConfigDict):
        # ml_collections keeps an OSError of the file and raises it at the first access.
        getattr(config, "model", None)
        kind = type(config).__name__
        raise UserError(
            f"--config={given}: get_config() must return a ConfigDict, not {kind}"
        )


def _config_given(arguments) -> str | None:
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


def _message_of(error, given) -> str:
    """Returns one line that says what is wrong with the flags, or where in the config file."""
    path = os.path.abspath(given.split(":")[0])
    # ml_collections may have wrapped what the config file raised.
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    for link in chain:
        if lines := _lines_in(path, link):
            where = f"--config={given}: line {lines[-1]}"
            return f"{where}: {type(link).__name__}: {link}"
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return f"--config={given}: the config holds itself, or is nested too deeply"
    if "config file" in str(error):  # ml_collections' message is a whole traceback
        return f"--config={given}: {chain[-1]}"
    return (
        str(error).strip()
        if isinstance(error, flags.Error)
        else f"--config={given}: {error}"
    )


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


def _known_configs():
    # Where it is installed by pip there is no checkout to look into.
    folder = os.path.dirname(importlib.import_module("experiments.configs").__file__)
    names = sorted(
        n for n in os.listdir(folder) if n.endswith(".py") and n != "__init__.py"
    )
    return f" (in {os.path.relpath(folder)}: {', '.join(names)})"
