"""States what a benchmark is, so that the command line can treat all alike."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console

from launch.bench.harness.libraries import BenchError, Library


@dataclasses.dataclass(frozen=True)
class Request:
    """Holds what a person asks of a benchmark."""

    directory: Path
    """The folder for everything that is written."""
    console: rich.console.Console
    cases: Sequence[Any] = ()
    """The cases to measure, of those that the benchmark has."""
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


def nothing() -> None:
    """Defines no flags."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Holds one benchmark: what it measures, how, and the table of the results.

    `cases` and `tiny` say what is measured. `run` measures it, shows and writes
    tables. `table` makes a table of what `run` has measured, so that it can be made
    of a record too. The rest says which flags the benchmark takes.
    """

    name: str
    """The word after `python -m launch.bench`."""
    cases: Sequence[Any]
    run: Callable[[Request], Outcome]
    table: Callable[..., Any]
    tiny: Sequence[Any] = ()
    """The cases of --tiny, which take seconds; no flag --tiny where there are none."""
    libraries: Mapping[str, Library] = dataclasses.field(default_factory=dict)
    """The libraries that --peers knows."""
    compared: tuple[str, ...] = ()
    """The libraries that are compared by default."""
    cases_flag: bool = False
    """True where --cases picks cases by their names."""
    rounds_flag: bool = False
    """True where --rounds sets the number of turns."""
    config_flag: bool = False
    """True where the benchmark needs --config."""
    define_flags: Callable[[], None] = nothing
    """Defines the flags that this benchmark alone has."""


def select(names: list[str] | None, cases: Sequence[Any]) -> list[Any]:
    """Returns the cases whose names begin with one of `names`, in their own order.

    None stands for all. Raises BenchError for a name with which no case begins.
    """
    if names is None:
        return list(cases)
    known = ", ".join(case.name for case in cases)
    # --cases= names nothing, and is a mistake as well.
    for name in names or [""]:
        if not name or not any(case.name.startswith(name) for case in cases):
            raise BenchError(f"no case begins with {name!r}; known: {known}")
    # In the cases' order, as those of one table stand together.
    return [case for case in cases if case.name.startswith(tuple(names))]
