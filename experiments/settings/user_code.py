"""Code from outside: classes, functions and metrics that a setting names by their place.

A place is a file, `path/to/file.py:Name`, or a module that can be imported, `module:Name`.
Once loaded it is written with the first digits of its source's SHA-256 behind an @, so that
settings with another source are other settings: `/home/me/scores.py:Cosine@1f2e3d4c`. Only
the one file counts, and not what it imports.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError, hint
from experiments.settings.fields import SettingsError


class OutsideError(SettingsError):
    """Raised for code from outside that cannot be run, or may not be."""


DIGITS = 8
"""Hexadecimal digits of a source's hash that a setting shows."""


class Outside(NamedTuple):
    """Holds a class from outside, and the source that it was loaded from."""

    place: str
    """The file's absolute path, or the module's name."""
    name: str
    cls: Any
    """The class, or function; of a metric its value."""
    file: Path
    source: bytes

    @property
    def sha256(self) -> str:
        """The hash of the source, in hexadecimal digits."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def text(self) -> str:
        """The class as a setting names it."""
        return f"{self.place}:{self.name}@{self.sha256[:DIGITS]}"


def load(place: str, name: str, digits: str = "") -> Outside:
    """Returns the class `name` of a file or module.

    Each version of a file is loaded once in a process. The same call in another process
    loads the same class again, so it can be sent by its text.

    Raises:
      OutsideError: there is no such file, module or class, it fails when it is run, or its
        source's hash does not begin with `digits`.
    """
    module, file, source = load_file(place) if is_file(place) else _load_module(place)
    cls = vars(module).get(name)
    known = isinstance(cls, type) or inspect.isfunction(cls) or is_metric(cls)
    if not known:
        has = [key for key, value in vars(module).items() if _is_own(value, module)]
        near = hint(name, has)
        raise OutsideError(
            f"{place}:{name}: no class or function {name} there (it has "
            f"{', '.join(has) or 'none'}){near}"
        )
    outside = Outside(str(file) if is_file(place) else place, name, cls, file, source)
    if not outside.sha256.startswith(digits):
        raise OutsideError(
            f"{place}:{name}@{digits}: its source has changed and is now "
            f"{outside.sha256[:DIGITS]}; restore it, or leave out @{digits}"
        )
    # From now on a config.json may name it, because someone has asked for it.
    _loaded.add((outside.place, outside.name))
    if isinstance(cls, type):
        _origins[cls] = outside
    return outside


def origin_of(cls: type) -> Outside:
    """Returns where a class from outside comes from.

    Raises:
      OutsideError: a class that cannot be loaded again by its name.
    """
    return _origins.get(cls) or load_text(text_of(cls))


def own_names(place: str) -> dict[str, Any]:
    """Returns the classes and metrics of a file or module by name.

    Raises:
      OutsideError: there is no such file or module, or it fails when it is run.
    """
    module, _, _ = load_file(place) if is_file(place) else _load_module(place)
    return {
        name: value
        for name, value in vars(module).items()
        if _is_own(value, module) or is_metric(value)
    }


def load_text(text: str) -> Outside:
    """Returns the class that "file.py:Name" or "module:Name" names.

    Raises:
      OutsideError: as `load`, and for another text.
    """
    # The last colon counts, because a path may have others.
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise OutsideError(
            f"{text}: code from outside is named as path/to/file.py:Name"
        )
    return load(place, name)


def is_metric(value: Any) -> bool:
    """Returns whether a value is a subclass of `experiments.evaluation.metrics.Metric`."""
    # By what it has: the settings do not know the evaluation.
    return isinstance(value, type) and hasattr(value, "of_corpus")


_loaded: set[tuple[str, str]] = set()
_origins: dict[type, Outside] = {}


def is_loaded(place: str, name: str) -> bool:
    """Returns whether this process has run that code already."""
    if is_file(place):
        place = str(Path(place).expanduser().resolve())
    return (place, name) in _loaded


def is_file(place: str) -> bool:
    """Returns whether a place is a file's path and not a module's name."""
    return place.endswith(".py") or "/" in place


def text_of(cls: type) -> str:
    """Returns a class's name for a setting: its module, or else its file, and its name.

    Raises:
      OutsideError: a class that cannot be loaded again by its name.
    """
    place = cls.__module__
    file = _file_of(cls)
    module = sys.modules.get(place)
    # In another process, __main__ is another module.
    importable = place != "__main__" and _find_spec(place) is not None
    if not importable or getattr(module, cls.__qualname__, None) is not cls:
        if file is None:
            raise OutsideError(
                f"{cls.__qualname__}: the file of this class is not known; name it as "
                "file.py:Name"
            )
        place = str(Path(file).resolve())
    if "." in cls.__qualname__:
        raise OutsideError(
            f"{cls.__qualname__} is inside of {cls.__qualname__.split('.')[0]}; move it to "
            "the top of its file, from where other processes can load it"
        )
    return f"{place}:{cls.__qualname__}"


def _find_spec(name):
    """Returns how a module would be imported afresh, or None where it cannot be."""
    try:
        return importlib.util.find_spec(name)
    # A module that was not imported the usual way may have no __spec__: a ValueError.
    except (ImportError, ValueError):
        return None


def _file_of(cls):
    """Returns the file of a class: a config file's module may be unknown to Python."""
    for value in vars(cls).values():
        # A function knows its file, even where its module is not in sys.modules; a
        # class method holds it, and a decorator wraps it.
        function = inspect.unwrap(getattr(value, "__func__", value))
        code = getattr(function, "__code__", None)
        if code is not None and Path(code.co_filename).is_file():
            return code.co_filename
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None)


def _is_own(value, module):
    named = isinstance(value, type) or inspect.isfunction(value)
    return named and value.__module__ == module.__name__


def load_file(place: str) -> tuple[types.ModuleType, Path, bytes]:
    """Returns a file as a module, its absolute path and its source.

    Raises:
      OutsideError: it cannot be read, or fails when it is run.
    """
    path = Path(place).expanduser().resolve()
    # Reading from a pipe could wait for ever.
    if path.exists() and not path.is_file():
        raise OutsideError(f"{path}: no file, and so no source")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise OutsideError(f"{path}: cannot be read ({error.strerror})") from None
    return _run_file(path, source), path, source


@functools.cache
def _run_file(path, source):
    """Runs a file as a module; equal content is run once."""
    # With the hash in their names, two versions of a file are two modules.
    name = f"outside_{path.stem}_{hashlib.sha256(source).hexdigest()[:DIGITS]}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses look their module up, so it must be known before it is run.
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise OutsideError(failure(path, error)) from error
    return module


def _load_module(place):
    if any(not part.isidentifier() for part in place.split(".")):
        raise OutsideError(f"{place}: neither a module's name nor a file.py")
    if _find_spec(place) is None:
        raise OutsideError(
            f"{place}: no such module; a file is named as path/to/file.py:Name"
        )
    try:
        module = importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise OutsideError(failure(place, error)) from error
    file = getattr(module, "__file__", None)
    if file is None:
        raise OutsideError(
            f"{place}: this module has no file, and so no source to keep"
        )
    return module, Path(file), _read_once(file)


@functools.cache
def _read_once(file):
    """Returns the source of an imported module, as it was when it was first asked for."""
    return Path(file).read_bytes()


def failure(place: Path | str, error: BaseException) -> str:
    """Returns one line on an error of a file or module: "place:line: type: message"."""
    # Of the traceback, only lines of the user's own file help to mend it.
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(place)
    ]
    # Code that cannot be compiled has no frame in the traceback.
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    if isinstance(error, UserError):
        # It is one line for people already.
        return str(error)
    where = f":{lines[-1]}" if lines else ""
    return f"{place}{where}: {type(error).__name__}: {error}"
