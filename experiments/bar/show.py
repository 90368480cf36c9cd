"""Shows entries: the verdict on one, the table of all, and a page with its figure."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.bar import judge, logs, rules
from experiments.bar.logs import Log
from experiments.report.figures.points import Compared, Forest, forests
from experiments.report.figures.style import Picture
from experiments.report.formats import comparisons_csv
from experiments.report.html import render
from experiments.stats import wins
from experiments.stats.differences import Difference
from experiments.stats.summary import Summary, summarise
from experiments.system.files import write_text

HERE = Path(__file__).parent
README = HERE / "README.md"


class Row(NamedTuple):
    """Holds an entry with what it was judged to be."""

    log: Log
    standing: judge.Standing


def rows_of(entries: Sequence[Log]) -> list[Row]:
    """Returns the logs of a size, the first of which is base, with their standings."""
    if not entries:
        return []
    standings = judge.standings(
        {each.name: each.values() for each in entries}, entries[0].tasks
    )
    return [Row(each, standings[each.name]) for each in entries]


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
    summary = summary_of(log, task)
    count = len(log.values()[task.name])
    if summary is None:
        return "diverged"
    digits = 1 if task.unit == "%" else 3
    numbers = [x for x in (summary.mean, summary.spread) if x is not None]
    text = " ± ".join(f"{x:.{digits}f}" for x in numbers)
    return text if summary.n == count else f"{text} ({summary.n} of {count})"


def summary_of(log: Log, task: rules.Task) -> Summary | None:
    """Returns mean and spread of the runs that did not diverge, in the task's unit.

    None where all did.
    """
    values = [task.better * value for value in log.values()[task.name].values()]
    finite = [task.shown(value) for value in values if math.isfinite(value)]
    return summarise(finite) if finite else None


def wins_text(verdict: judge.Verdict) -> str:
    """Returns the share of wins with its interval, and p of the side that it is on."""
    return f"wins {_share_text(verdict)} %, p = {min(verdict.p):.2g}"


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Returns rows by their share of wins against base, the most first."""

    def share(row):
        against = row.standing.against_base
        return 0.5 if against is None else against.share

    return sorted(rows, key=share, reverse=True)


def headings(tasks: Sequence[rules.Task]) -> list[str]:
    """Returns the headings of the table."""
    return [
        "entry",
        "wins, %",
        "against base",
        *(f"{task.name}, {task.unit}" for task in tasks),
        "against the record",
        "seeds",
        "minutes",
    ]


def cells(row: Row) -> list[str]:
    """Returns what the table says of an entry; ▲ and ▼ are its better and worse tasks."""
    log, standing = row
    against, record = standing.against_base, standing.against_record
    of_tasks = []
    for task in log.tasks:
        word = against.tasks[task.name] if against else ""
        mark = {"better": " ▲", "worse": " ▼"}.get(word, "")
        of_tasks.append(mean_text(log, task).partition(" ±")[0] + mark)
    return [
        log.name,
        _share_text(against) if against else "50",
        against.word if against else "base",
        *of_tasks,
        f"{record.word}: {standing.record}" if record else "",
        f"{seeds_of(log)}",
        f"{minutes_of(log):.0f}",
    ]


def _share_text(verdict):
    share, low, high = (100 * x for x in (verdict.share, verdict.low, verdict.high))
    return f"{share:.0f} [{low:.0f}, {high:.0f}]"


def table(rows: Sequence[Row]) -> str:
    """Returns the table of entries in Markdown; who was the record is bold."""
    names = headings(rows[0].log.tasks)
    aligned = [
        "---",
        "---:",
        "---",
        *["---:"] * (len(names) - 6),
        "---",
        "---:",
        "---:",
    ]
    lines = [names, aligned]
    for row in ranked(rows):
        name, *others = cells(row)
        lines.append([f"**{name}**" if row.standing.is_record else name, *others])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def finding(rows: Sequence[Row]) -> str:
    """Returns in two sentences what the entries say."""
    words = [row.standing.against_base.word for row in rows[1:]]
    better, worse = words.count("better"), words.count("worse")
    line = (
        f"Entries beside base: {len(words)}, of which {better} better, {worse} worse, "
        f"{len(words) - better - worse} undecided."
    )
    record = [row for row in rows if row.standing.is_record][-1]
    if record.standing.against_base is None:
        return f"{line} Base is the record."
    return (
        f"{line} The record is {record.log.name}, whose runs win "
        f"{_share_text(record.standing.against_base)} % of their comparisons with base's."
    )


def page(rows: Sequence[Row]) -> str:
    """Returns a page of HTML on the entries of a size: finding, figure and table."""
    shown = ranked(rows)
    picture = figure(shown)
    return render(
        "bar.html.j2",
        (HERE / "bar.js",),
        folder=HERE,
        title=f"The bar, {rows[0].log.about['size']}",
        finding=finding(rows),
        picture=picture,
        data={"spots": {picture.name: picture.spots} if picture else {}},
        headings=headings(rows[0].log.tasks),
        rows=[cells(row) for row in shown],
        tasks=rows[0].log.tasks,
    )


def figure(rows: Sequence[Row]) -> Picture | None:
    """Draws each entry's share of wins against base, in all tasks and in each."""
    base = next(row.log for row in rows if row.standing.against_base is None)
    theirs = base.values()
    labels, compared = [], []
    for log, standing in rows:
        against = standing.against_base
        if against is not None:
            ends = (x - 0.5 for x in (against.share, against.low, against.high))
            shares = [
                wins.Contest([*by_seed.values()], [*theirs[task].values()]).share - 0.5
                for task, by_seed in log.values().items()
            ]
            difference = Difference(*ends, 0.0, 0.0, 0, 0.0, None)
            labels.append(log.name)
            compared.append(Compared(difference, against.word, shares))
    panel = Forest("wins against base", 100.0, compared, 52.0, "% of wins − 50")
    return forests(labels, [panel], "wins")


def write(size: str) -> list[Path]:
    """Writes the table into README.md, and data and page beside the logs; returns the files."""
    rows = rows_of(logs.read_all(size))
    files = {
        README: with_table(README.read_text(encoding="utf-8"), rows),
        logs.FOLDER / f"{size}.csv": as_csv(rows),
        logs.FOLDER / f"{size}.html": page(rows),
    }
    for path, content in files.items():
        write_text(path, content)
    return [*files]


def with_table(text: str, rows: Sequence[Row]) -> str:
    """Returns README's text with the finding and the table of a size between its marks."""
    begin, end = f"<!-- entries: {rows[0].log.about['size']} -->", "<!-- / -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{finding(rows)}\n\n{table(rows)}\n\n{end}{after}"


def seeds_of(log: Log) -> int:
    """Returns the number of seeds of each task."""
    return min(len(by_seed) for by_seed in log.values().values())


def minutes_of(log: Log) -> float:
    """Returns the minutes that all trials took, one after another."""
    return sum(run.seconds for run in log.runs) / 60


def as_csv(rows: Sequence[Row]) -> str:
    """Returns all that the table says, a line a task of an entry, and one for all tasks."""
    base = rows[0].log.values() if rows else {}
    return comparisons_csv([line for row in rows for line in _records(row, base)])


def _records(row, base):
    log, (record, against_record, against) = row
    changes = " ".join(f"{k}={x}" for k, x in log.about["changes"].items())
    values = log.values()
    for task in log.tasks:
        summary = summary_of(log, task)
        ours, theirs = values[task.name].values(), base[task.name].values()
        yield {
            "entry": log.name,
            "changes": changes,
            "date": log.about["date"],
            "task": task.name,
            "mean": summary and summary.mean,
            "sd": summary and summary.spread,
            "seeds": len(ours),
            "share_of_wins": wins.Contest([*ours], [*theirs]).share
            if against
            else None,
            "verdict": against and against.tasks[task.name],
            "record_then": record,
            "against_record": against_record and against_record.tasks[task.name],
        }
    whole = {"entry": log.name, "changes": changes, "date": log.about["date"]}
    whole |= {"task": "all", "seeds": seeds_of(log), "record_then": record}
    if against:
        whole |= {
            "share_of_wins": against.share,
            "verdict": against.word,
            "against_record": against_record.word,
            "low": against.low,
            "high": against.high,
            "p_better": against.p.better,
            "p_worse": against.p.worse,
        }
    yield whole
