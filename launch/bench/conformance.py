"""Puts each library to each line of attention's contract, in a process of its own, and says what it does.

No verdict is written down anywhere: each is computed when the command runs.
"""

import dataclasses
from pathlib import Path

import rich.console

from experiments.files import write_json, write_text
from launch.bench import rounds
from launch.bench.grids import Grid, markdown, show
from launch.bench.probes import LINES, Verdict, attempt
from launch.bench.workers import Failed


def run(names: list[str], directory: Path, console: rich.console.Console) -> list[Path]:
    """Tries every line on the peers `names`, shows the table, writes it into `directory` and returns the files."""
    verdicts = {line: {} for line in LINES}
    with rounds.workers("conformance", names) as workers:
        for name in names:
            with console.status(name) as status:
                for number, line in enumerate(LINES, 1):
                    status.update(f"{name}: {line} ({number} of {len(LINES)})")
                    verdicts[line][name] = _ask(workers.get(name), line)
    table = grid(verdicts)
    show(table, console)
    written = [directory / "conformance.md", directory / "conformance.json"]
    write_text(written[0], f"# Conformance\n\n{rounds.where()}\n\n{markdown(table)}")
    write_json(written[1], {
        **rounds.circumstances("conformance"),
        "lines": {line: {name: dataclasses.asdict(verdict) for name, verdict in found.items()}
                  for line, found in verdicts.items()}})
    return written


def _ask(worker, line):
    if worker is None:
        return Verdict("absent", "not installed")
    try:
        return worker.call(attempt, line)
    except Failed as error:
        return Verdict("cannot", str(error))


def grid(verdicts: dict[str, dict[str, Verdict]]) -> Grid:
    """The table line × library; a footnote says what was found."""
    found = Grid("Attention's contract", ("", *next(iter(verdicts.values()))))
    for line, by_name in verdicts.items():
        found.rows.append((line, *(v.kind if not v.finding else found.noted(v.kind, v.finding)
                                   for v in by_name.values())))
    return found
