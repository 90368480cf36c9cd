"""States what a benchmark is, so that the command line can treat all alike."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console

from experiments.errors import UserError
from launch.bench.harness.libraries import Library


@dataclasses.dataclass(frozen=True)
class Request:
    """Holds what a person asks of a benchmark."""

    directory: Path
    """The folder for everything that is written."""
    console: rich.console.Console
    cases: Sequence[Any] = ()
    libraries: Mapping[str, Library] = dataclasses.field(default_factory=dict)
    rounds: int = 7
    """Turns of each library."""
    flags: Any = None
    """The parsed flags, for those that one benchmark alone defines."""


class Outcome(NamedTuple):
    """Holds what a benchmark wrote, and the exit status that follows from it."""

    files: list[Path]
    status: int = 0
    problem: str = ""
    """A line for stderr, where the status is not 0 and the tables do not say why."""


def no_flags() -> None:
    """Defines no flags."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Describes one benchmark: what it measures, how, and which flags it takes."""

    name: str
    """The word after `python -m launch.bench`."""
    run: Callable[[Request], Outcome]
    """Measures, shows and writes the tables."""
    cases: Sequence[Any]
    """Values with a `name`, of which --cases picks."""
    tiny: Sequence[Any]
    """The cases of --tiny, which take seconds."""
    libraries: Mapping[str, Library] = dataclasses.field(default_factory=dict)
    """The libraries that --peers knows."""
    compared: tuple[str, ...] = ()
    """The libraries that are compared by default."""
    rounds: int = 0
    """The default of --rounds; 0 where nothing is timed."""
    define_flags: Callable[[], None] = no_flags
    """Defines the flags that this benchmark alone has."""


def select(names: list[str] | None, cases: Sequence[Any]) -> list[Any]:
    """Returns the cases whose names begin with one of `names`, in their own order.

    None stands for all. Raises UserError for a name with which no case begins.
    """
    if names is None:
        return list(cases)
    known = ", ".join(case.name for case in cases)
    # --cases= names nothing, and is a mistake as well.
    for name in names or [""]:
        if not name or not any(case.name.startswith(name) for case in cases):
            raise UserError(f"no case begins with {name!r}; known: {known}")
    return [case for case in cases if case.name.startswith(tuple(names))]
