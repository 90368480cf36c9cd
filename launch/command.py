"""Flags and errors that all commands share.

A user's mistake ends as `error: ...` on stderr with exit status 2, before any work
where that is possible. Settings are imported where they are used: they know attn, and so
JAX, which takes time that a mistake in the flags need not wait for.
"""

import errno
import functools
import gc
import logging
import math
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from absl import app, flags

from experiments.errors import UserError, hint, one_line
from experiments.system.signals import LINE, STATUS, Interrupted, Interruption
from experiments.training.supervisor import supervise
from experiments.training.trackers import mistake_in
from launch import config_flag
from launch.config_flag import shortened

DISK = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose another place",
    errno.EACCES: "give the right to it",
    errno.EPERM: "give the right to it",
    errno.ENOTDIR: "choose another place",
    errno.ENOENT: "choose another place",
    errno.EIO: "check the disk",
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

DTYPES = {"JAX_ENABLE_X64": "0", "JAX_NUMPY_DTYPE_PROMOTION": "standard"}
"""What JAX takes dtypes from where code names none, and what a command runs with."""

HELP = {"--help", "-help", "-h", "-?"}


def start(
    main,
    required: Sequence[str] = (),
    unless: Mapping[str, str] = MappingProxyType({}),
    takes_words: bool = False,
) -> None:
    """Runs `main()` after parsing the flags; turns a user's mistake into one line.

    `required` are the names of flags that must be given; `unless` names for some of them a
    flag with which they need not be. With `takes_words` main is given the words that are no
    flags, which are a mistake otherwise.
    """
    open_streams()
    # By default Python's collector looks through all that JAX has traced again and again: a
    # tenth of the time to a first step, and it finds nothing.
    gc.set_threshold(50_000, 20, 50)
    escape_output()
    quiet_jax()
    set_dtypes()
    if HELP & set(sys.argv[1:]):
        # launch.data gives a partial, which has no module of its own.
        module = sys.modules[getattr(main, "func", main).__module__]
        return without_traceback(lambda: print(_help(module, required)))
    parse = functools.partial(
        _parse, required=required, unless=unless, takes_words=takes_words
    )

    def run(left):
        given = [left[1:]] if takes_words else []
        without_traceback(functools.partial(main, *given))

    app.run(run, flags_parser=parse)


def run_as_one_of(hosts: str | None, run) -> None:
    """Calls `run(interruption)`; with `hosts` in a child, as one of several processes."""
    interruption = Interruption()
    if hosts is None:
        with interruption.listening():
            return run(interruption)
    supervise(alone=hosts != "auto")
    try:
        with interruption.listening([signal.SIGTERM], alone=False):
            run(interruption)
    except Interrupted:
        # The parent prints the line.
        sys.exit(STATUS)


def open_streams() -> None:
    """Opens standard streams that cron or a container has closed, to read and keep nothing.

    The next file to be opened would otherwise have a closed one's number, and get what is
    printed into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes the least number that is free.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w"))


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


def set_dtypes() -> None:
    """Has JAX, which is not imported yet, choose dtypes as the settings of a trial mean it.

    The processes that this one starts do too, and need not say so again.
    """
    for name, own in DTYPES.items():
        asked = os.environ.get(name, own)
        os.environ[name] = own
        if asked.lower() not in (own, "false", "off", "no", "f", "n", ""):
            print(
                f"note: without {name}={asked}: a trial computes in training.precision",
                file=sys.stderr,
            )


def define_workdir(
    words: str = "The directory for everything that is written",
) -> flags.FlagHolder[str]:
    """Defines --workdir."""
    flag = flags.DEFINE_string("workdir", None, words)
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
    if "://" in value:
        # Locks, checkpoints and results need what only a file system promises.
        raise flags.ValidationError(
            "it must be on a file system, for locks and renames; mount the bucket or copy "
            "the directory there afterwards"
        )
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
        "Custom classes that the model may run, as path/to/scores.py:Cosine",
    )


def define_mixed_code() -> flags.FlagHolder[bool]:
    """Defines --mixed_code, for tables whose trials several codes have made."""
    return flags.DEFINE_bool(
        "mixed_code", False, "Compare trials of different code as if one had made them"
    )


def define_tracker() -> flags.FlagHolder[list[str]]:
    """Defines --tracker, and refuses what cannot be used."""
    flag = flags.DEFINE_list(
        "tracker",
        [],
        "Where numbers are shown too: tensorboard, wandb, or both with a comma",
    )

    def check(names):
        # Before the corpus is read, as it is used only after that.
        if names and (wrong := mistake_in(names)):
            raise flags.ValidationError(wrong)
        return True

    flags.register_validator("tracker", check)
    return flag


def load_metrics(texts: list[str]) -> list:
    """Returns the metrics that --metric names. Raises SettingsError for what is none."""
    from experiments.settings.choices import METRICS

    return [METRICS.value(text, "metric") for text in texts]


def load_outside(texts: list[str]) -> None:
    """Runs the code that --outside names."""
    from experiments.settings import load_text

    for text in texts:
        load_text(text)


def mistake(message: object, status: int = 2) -> None:
    """Says what is wrong and ends the process with this status."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(status)


def define_question() -> dict[str, flags.FlagHolder]:
    """Defines --base, --within and --pairs: which rows a report compares with which."""
    return {
        "base": flags.DEFINE_string(
            "base",
            None,
            "The row that others are compared with: its label, its name, or settings that it "
            "has, as score=scaled_dot; without it, what the sweep asks, else its base",
        ),
        "within": flags.DEFINE_list(
            "within", None, "Settings in which a row and its base are to agree, as d_k"
        ),
        "pairs": flags.DEFINE_list(
            "pairs",
            None,
            "In place of a base, pairs of rows, as 'one head:base', or a setting of which all "
            "pairs are compared, as score",
        ),
    }


def read_question(holders: Mapping[str, flags.FlagHolder]):
    """Returns the Question of these flags; None where none is given."""
    from experiments.report.questions import Question

    given = {
        name: holder.value
        for name, holder in holders.items()
        if holder.value is not None
    }
    return Question.of(given) if given else None


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
            mistake(
                f"--interest={entry}: {key!r} is no metric; {', '.join(known)} are"
                f"{hint(key, known)}"
            )
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


def _help(module, required) -> str:
    """Returns the description of a command and its flags, those that it needs first."""
    values = flags.FLAGS
    known = {}
    for name, own in values.flags_by_module_dict().items():
        # The command's own module has the name of its file; others of ours define the
        # flags that commands share. Libraries have flags too, which are not for users.
        if name == sys.argv[0] or name.split(".")[0] == "launch":
            known |= {flag.name: flag for flag in own}
    # Tests of commands define the flags of several.
    known = {name: flag for name, flag in known.items() if name in values}
    needed = [name for name in required if name in known]
    others = [name for name in known if name not in needed]
    lines = [module.__doc__.strip()]
    for title, names in (("Required:", needed), ("Flags:", others)):
        if names:
            lines += ["", title, *(_described(known[name]) for name in names)]
    if "config" in known:
        lines.append(
            "  --config.GROUP.NAME=VALUE: any setting; python -m launch.settings lists them"
        )
    return "\n".join(lines)


def _described(flag):
    """Returns a line of help on a flag."""
    default = flag.default
    if isinstance(default, list):
        default = ",".join(map(str, default))
    shown = "" if default in (None, "", False) else f" (default: {default})"
    # absl's own words for flags that may be given several times stand on lines of their own.
    words = " ".join(flag.help.split())
    return f"  --{flag.name}: {words}{shown}"


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
    if isinstance(workdir, list):
        workdir = workdir[0]
    where = os.fsdecode(error.filename or workdir or os.getcwd())
    remedy = DISK.get(error.errno, "choose another place")
    return f"{shortened(where)}: {error.strerror}; {remedy}, and give the command again"


def _parse(arguments, required=(), unless=MappingProxyType({}), takes_words=False):
    """Parses the flags, as `app.run` asks; ends with a usage error for a mistake."""
    values = flags.FLAGS
    try:
        # Before absl parses, whose messages leave out what is known.
        config_flag.define_settings(arguments[1:], values)
        left = values(arguments)
        config = values["config"].value if "config" in values else None
        config_flag.check_file(config)
        if not takes_words:
            _check_words(left[1:])
        _check_required(
            [
                name
                for name in required
                if name not in unless or not values[unless[name]].value
            ]
        )
        if config is not None:
            config_flag.load(values)
    except UserError as error:
        mistake(error)
    except flags.Error as error:
        mistake(config_flag.message_of(error))
    return left


def _check_words(words):
    """Raises UserError for a word that is no flag, such as a config without --config=."""
    if not words:
        return
    is_config = "config" in flags.FLAGS and os.path.isfile(
        config_flag.find_config(words[0]).partition(":")[0]
    )
    remedy = (
        f"write --config={words[0]}"
        if is_config
        else "flags look like --name=value (--help lists them)"
    )
    raise UserError(f"{words[0]!r} is no flag; {remedy}")


EXAMPLES = {
    "config": ("FILE", "quick"),
    "workdir": ("DIR", "runs/one"),
    "name": ("NAME", "news"),
    "directory": ("DIR", "data"),
}
"""For flags that commands need: what they hold, and an example."""


def _check_required(names):
    """Raises UserError that names all flags that are missing at once."""
    missing = [name for name in names if flags.FLAGS[name].value is None]
    if not missing:
        return
    needed = " and ".join(f"--{name}={EXAMPLES[name][0]}" for name in missing)
    example = " ".join(f"--{name}={EXAMPLES[name][1]}" for name in missing)
    verb = "are" if len(missing) > 1 else "is"
    raise UserError(f"{needed} {verb} needed, such as {example} (--help says more)")
