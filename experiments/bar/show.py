"""Shows entries: the verdict on one, the table of all, and a page with its figure."""

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.bar import judge, rules
from experiments.bar.log import Log

README = Path(__file__).parent / "README.md"


class Row(NamedTuple):
    """Holds an entry with what it was judged to be."""

    log: Log
    standing: judge.Standing


def rows_of(logs: Sequence[Log]) -> list[Row]:
    """Returns logs of a size, the first of which is base, with their standings."""
    if not logs:
        return []
    standings = judge.standings(
        {each.name: each.values() for each in logs}, logs[0].tasks
    )
    return [Row(each, standings[each.name]) for each in logs]


def verdict(entry: Log, others: Sequence[Log]) -> list[str]:
    """Returns lines on an entry, task by task and in the whole, beside base and record."""
    rows = rows_of(others)
    if not rows:
        return [f"{entry.name} is the first entry, which others are compared with"]
    record = [row.log for row in rows if row.standing.is_record][-1]
    opponents = list({each.name: each for each in (rows[0].log, record)}.values())
    verdicts = [
        judge.judge(entry.values(), each.values(), entry.tasks) for each in opponents
    ]
    names = [entry.name, *(each.name for each in opponents)]
    lines = ["  ".join([" " * 14, *(f"{name[:22]:>22}" for name in names)])]
    for task in entry.tasks:
        cells = [mean_text(each, task) for each in (entry, *opponents)]
        words = [each.tasks[task.name] for each in verdicts]
        lines.append(
            "  ".join(
                [
                    f"{task.name:14}",
                    *(f"{cell:>22}" for cell in cells),
                    ", ".join(words),
                ]
            )
        )
    for each, found in zip(opponents, verdicts, strict=True):
        lines.append(f"against {each.name}: {wins_text(found)}, {found.word}")
    if verdicts[-1].word == "better":
        lines.append(f"{entry.name} beats the record")
    return lines


def mean_text(log: Log, task: rules.Task) -> str:
    """Returns mean ± standard deviation over seeds in a task, in its unit."""
    values = [task.better * value for value in log.values()[task.name].values()]
    finite = [task.shown(value) for value in values if abs(value) != float("inf")]
    if not finite:
        return "diverged"
    digits = 1 if task.unit == "%" else 3
    spread = f" ± {statistics.stdev(finite):.{digits}f}" if len(finite) > 1 else ""
    some = f" ({len(finite)} of {len(values)})" if len(finite) < len(values) else ""
    return f"{statistics.mean(finite):.{digits}f}{spread}{some}"


def wins_text(verdict: judge.Verdict) -> str:
    """Returns the share of wins with its interval and p."""
    p = min(1.0, 2 * min(verdict.p))
    return (
        f"wins {100 * verdict.share:.0f} % [{100 * verdict.low:.0f}, "
        f"{100 * verdict.high:.0f}], p = {p:.2g}"
    )


HEADINGS = ("entry", "date", "seeds", "minutes", "wins, %", "base", "record then")


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Returns rows by their share of wins against base, the most first."""

    def share(row):
        against = row.standing.against_base
        return 0.5 if against is None else against.share

    return sorted(rows, key=share, reverse=True)


def table(rows: Sequence[Row]) -> str:
    """Returns the table of entries in Markdown."""
    tasks = rows[0].log.tasks
    heads = ["entry", *(f"{task.name}, {task.unit}" for task in tasks)]
    heads += ["wins against base, %", "base", "the record then", "seeds", "minutes"]
    lines = [heads, ["---", *["---:"] * (len(tasks) + 1), "---", "---", "---:", "---:"]]
    for row in ranked(rows):
        against = row.standing.against_base
        cells = [f"**{row.log.name}**" if row.standing.is_record else row.log.name]
        for task in tasks:
            word = against.tasks[task.name] if against else "undecided"
            mark = {"better": " ▲", "worse": " ▼"}.get(word, "")
            cells.append(mean_text(row.log, task).partition(" ±")[0] + mark)
        cells += _cells_of_verdicts(row)
        cells += [str(seeds_of(row.log)), f"{minutes_of(row.log):.0f}"]
        lines.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells_of_verdicts(row):
    against = row.standing.against_base
    if against is None:
        return ["50", "", ""]
    share, low, high = (100 * x for x in (against.share, against.low, against.high))
    record = row.standing.against_record
    return [
        f"{share:.0f} [{low:.0f}, {high:.0f}]",
        against.word,
        f"{record.word} than {row.standing.record}"
        if record.word != "undecided"
        else f"undecided ({row.standing.record})",
    ]


def seeds_of(log: Log) -> int:
    """Returns the number of seeds of each task."""
    return min(len(by_seed) for by_seed in log.values().values())


def minutes_of(log: Log) -> float:
    """Returns the minutes that all trials took, one after another."""
    return sum(run.seconds for run in log.runs) / 60


def as_csv(rows: Sequence[Row]) -> str:
    """Returns all that the table says, a line a task of an entry, and one for all tasks."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(
        "entry,changes,date,task,mean,sd,seeds,share_of_wins,low,high,p,verdict,"
        "record_then,against_record".split(",")
    )
    for log, standing in rows:
        changes = " ".join(f"{k}={x}" for k, x in log.about["changes"].items())
        about = [log.name, changes, log.about["date"]]
        against, record = standing.against_base, standing.against_record
        for task in log.tasks:
            values = [*log.values()[task.name].values()]
            shown = [task.shown(task.better * value) for value in values]
            word = against.tasks[task.name] if against else ""
            of_record = record.tasks[task.name] if record else ""
            mean, sd = statistics.mean(shown), statistics.stdev(shown)
            row = [*about, task.name, mean, sd, len(values), "", "", "", "", word]
            table.writerow([*row, standing.record, of_record])
        whole = ["", "", seeds_of(log)]
        if against:
            p = min(1.0, 2 * min(against.p))
            whole += [against.share, against.low, against.high, p, against.word]
            whole += [standing.record, record.word]
        else:
            whole += [0.5, "", "", "", "", "", ""]
        table.writerow([*about, "all", *whole])
    return lines.getvalue()
