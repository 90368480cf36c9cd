"""Times text on its way to batches: at first, from the cache, and for a training step.

Each stage runs in a process of its own. The first begins with an empty cache, reads
the text, trains a vocabulary and cuts all into tokens. The next finds that on the
disk, and packs one epoch into batches, of which each is gathered.
"""

import dataclasses
import functools
import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

import jax
import rich.console
from absl import flags

from experiments import settings
from experiments.data.batches import excerpt
from experiments.data.corpora import cldr
from experiments.data.dataset import prepare
from experiments.settings import Data, FilesData, Settings
from experiments.system import machine
from experiments.system.console import print_line
from experiments.system.process import Process
from experiments.training import speed
from experiments.training.trial_run import batches_of
from experiments.trial.lanes import Lanes
from launch.bench.harness import record
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.table import Table, number, show

PAIRS = (300_000, 1_200_000)
SOURCE = "en"
TARGET = "de"
PHRASES = 20_000
"""Distinct CLDR phrases that the sentences are joined from."""
COMBINATIONS = 100_000
STEPS = 64
"""Batches that are gathered at once."""
REPEATS = 7
WATCH = 0.02
"""Seconds between two looks at the memory."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Holds what one stage took."""

    seconds: float
    pairs: int
    memory: int
    """The most bytes that the process had of its own, without files mapped."""
    real: float | None = None
    """The share of the batches' positions that are no padding."""


def define_flags() -> None:
    """Defines --pairs."""
    default = [str(count) for count in PAIRS]
    flags.DEFINE_list("pairs", default, "Sizes of the corpora that are made")


def measure(request: Request) -> Outcome:
    """Times the corpora on the config that the flags name."""
    run_settings = settings.resolve(request.flags.config)
    counts = [int(count) for count in request.flags.pairs]
    files = time_corpora(run_settings, counts, request.directory, request.console)
    return Outcome(files)


def time_corpora(
    settings: Settings,
    counts: list[int],
    directory: Path,
    console: rich.console.Console,
) -> list[Path]:
    """Times corpora of `counts` pairs, made of CLDR phrases.

    Shows and writes the table; returns the files.
    """
    timings = {}
    bytes_on_disk = {}
    for count in counts:
        with (
            # Removed before the next size, because millions of pairs take room.
            tempfile.TemporaryDirectory() as temporary,
            console.status(f"{count:,} pairs"),
        ):
            folder = Path(temporary)
            write_corpus(folder, count)
            # A process each: what one has in memory would hide what the next one reads.
            sized = on_files(settings, temporary)
            first_sight = in_process(folder, first, sized.data)
            timings[f"{count:,} pairs, first sight"] = first_sight
            from_disk = in_process(folder, epoch, sized)
            timings[f"{count:,} pairs, an epoch from the disk"] = from_disk
            files = (folder / "cache").rglob("*")
            bytes_on_disk[count] = sum(path.stat().st_size for path in files)
            host, step = in_process(folder, feeding, sized)
    filled = table(timings)
    remark = (
        f"A training step of this config takes {1e3 * step:.3g} ms here; for its batch "
        f"the host works {1e3 * host:.3g} ms, while the step before is under way."
    )
    stages = {name: dataclasses.asdict(timing) for name, timing in timings.items()}
    written = record.write(
        directory,
        "data",
        title="Text to batches",
        tables=[filled],
        results={
            "settings": settings.to_dict(),
            "bytes_on_disk": bytes_on_disk,
            "host": host,
            "step": step,
            "stages": stages,
        },
        remark=remark,
    )
    show(filled, console)
    print_line(console, remark)
    return written


def on_files(settings: Settings, directory: str) -> Settings:
    """Returns the settings with the corpus that `write_corpus` made in a directory."""
    data = FilesData(
        vocabulary_size=settings.data.vocabulary_size,
        max_length=settings.data.max_length,
        source=SOURCE,
        target=TARGET,
        directory=directory,
        train="train",
        validation="val",
        test="test",
    )
    return dataclasses.replace(settings, data=data)


def table(timings: dict[str, Timing]) -> Table:
    """Returns the table, a row a stage."""
    headings = ("", "s", "pairs a second", "MiB of memory", "real tokens")
    filled = Table("pairs of sentences", headings)
    for name, timing in timings.items():
        row = (
            name,
            number(timing.seconds),
            f"{timing.pairs / timing.seconds:,.0f}",
            f"{timing.memory / 2**20:,.0f}",
            "" if timing.real is None else f"{timing.real:.1%}",
        )
        filled.rows.append(row)
    return filled


def write_corpus(folder: Path, count: int) -> None:
    """Writes parallel files with `count` training pairs.

    Each is two CLDR phrases and a number, so that no two are alike.
    """
    phrases = cldr.generate(pairs=PHRASES, heldout=500)
    _write_heldout(folder, "val", phrases.validation)
    _write_heldout(folder, "test", phrases.test)
    rng = random.Random(0)
    # Chosen before, because both languages have the same pairs and are written in turn.
    chosen = []
    for _ in range(COMBINATIONS):
        chosen.append((rng.randrange(PHRASES), rng.randrange(PHRASES)))
    for language, side in zip((SOURCE, TARGET), phrases.train, strict=True):
        with (folder / f"train.{language}").open("w") as file:
            pairs = itertools.islice(itertools.cycle(chosen), count)
            for n, (i, j) in enumerate(pairs):
                file.write(f"{side[i]} {n} {side[j]}\n")


def _write_heldout(folder, stem, sides):
    for language, side in zip((SOURCE, TARGET), sides, strict=True):
        text = "".join(line + "\n" for line in side)
        (folder / f"{stem}.{language}").write_text(text)


def first(data: Data) -> Timing:
    """Times the preparation of a corpus that is not in the cache."""

    def stage():
        counts = prepare(data).counts
        return counts["train"] + counts["train_empty"], None

    return _timed(stage)


def epoch(settings: Settings) -> Timing:
    """Times all batches of an epoch.

    They are gathered as for a corpus that is too large for its device.
    """
    return _timed(functools.partial(_epoch, settings))


def _epoch(settings):
    t = settings.training
    prepared = prepare(settings.data)
    train = prepared.train
    stream = batches_of(prepared, t, settings.seed)
    pairs = 0
    batches = 0
    # The stream has no end: it begins the next epoch by itself.
    while stream.epoch == 0:
        left = stream.batches_in_part - stream.batch
        # Where a part is used up, one batch more opens the next or ends the epoch.
        slots = stream.take(min(STEPS, left) or 1)[None]
        if stream.epoch:
            break
        needed, _ = excerpt(train, slots, t.sequence_length)
        pairs += int((slots >= 0).sum())
        batches += slots.shape[1]
    tokens = sum(int(side.lengths.sum()) for side in train)
    # A stage that gathered nothing, or not all, would look fast.
    assert needed.source.ids.any()
    assert pairs == len(train.source.lengths)
    return pairs, tokens / (2 * batches * t.batch_size * t.sequence_length)


def feeding(settings: Settings) -> tuple[float, float]:
    """Returns (the host's seconds for a batch, the seconds of a training step).

    The host plans the batch, gathers it, and brings it to the device.
    """
    machine.use_compile_cache()
    prepared = prepare(settings.data)
    stream = batches_of(prepared, settings.training, settings.seed)
    row_length = settings.training.sequence_length
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        # As the loop does it for a corpus that is too large for its device.
        needed, _ = excerpt(prepared.train, stream.take(STEPS)[None], row_length)
        jax.block_until_ready(Lanes().share(needed))
        seconds.append((time.perf_counter() - begin) / STEPS)
    step = speed.measure(settings, prepared, 1).step
    return statistics.median(seconds), step


def in_process(folder: Path, stage, argument):
    """Returns `stage(argument)` of a process of its own, whose cache is in the folder."""
    process = Process(_begin, str(folder / "cache"))
    try:
        return process.submit(stage, argument).result()
    finally:
        process.stop()


def _begin(cache):
    # A cache of this benchmark's own, which is empty at first.
    os.environ["XDG_CACHE_HOME"] = cache


def _timed(stage) -> Timing:
    """Runs `stage()`, which returns (pairs, real), and watches the memory."""
    peak = 0
    done = threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(WATCH):
            peak = max(peak, _anonymous_memory())

    # By looking: the kernel keeps a peak only of all memory, mapped files included.
    watching = threading.Thread(target=watch)
    watching.start()
    begin = time.perf_counter()
    try:
        pairs, real = stage()
    finally:
        seconds = time.perf_counter() - begin
        done.set()
        watching.join()
    return Timing(seconds, pairs, peak, real)


def _anonymous_memory() -> int:
    """Returns the bytes of this process that are no files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    # The system may drop a mapped file's pages at any time, so they do not count.
    return int(fields["RssAnon"].split()[0]) * 1024


BENCHMARK = Benchmark(
    name="data",
    cases=PAIRS,
    run=measure,
    table=table,
    config_flag=True,
    define_flags=define_flags,
)
