"""Times text on its way to batches: on first sight, from what is kept on disk, and for a training step."""

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

from experiments import machine, training
from experiments.batches import Batches, excerpt
from experiments.corpora import cldr
from experiments.files import write_json, write_text
from experiments.population import Lanes
from experiments.prepared import prepare
from experiments.processes import Process
from experiments.settings import Data, Settings
from launch.bench import rounds
from launch.bench.grids import Grid, markdown, show
from launch.bench.rounds import number

PHRASES = 20_000
STEPS = 64


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one stage; `memory` is the most bytes that the process had of its own at any time, files mapped left out."""

    seconds: float
    pairs: int
    memory: int
    real: float | None = None
    """Share of the batches' positions that are no padding."""


def run(settings: Settings, counts: list[int], directory: Path, console: rich.console.Console) -> list[Path]:
    """Shows and writes a table for corpora of `counts` pairs, made of CLDR phrases; returns the files.

    Each stage runs in a process of its own. One that begins with an empty cache reads the text, trains a vocabulary and
    cuts all into pieces; the next finds that on the disk, and packs one epoch into batches, of which each is gathered.
    """
    found, sizes = {}, {}
    for count in counts:
        with tempfile.TemporaryDirectory() as temporary, console.status(f"{count:,} pairs"):
            folder = Path(temporary)
            write(folder, count)
            data = dataclasses.replace(settings.data, corpus="files", directory=temporary, train="train",
                                       validation="val", test="test")
            sized = dataclasses.replace(settings, data=data)
            found[f"{count:,} pairs, first sight"] = _alone(folder, first, data)
            found[f"{count:,} pairs, an epoch from the disk"] = _alone(folder, epoch, sized)
            sizes[count] = sum(path.stat().st_size for path in (folder / "cache").rglob("*"))
            host, step = _alone(folder, feeding, sized)
    table = Grid("pairs of sentences", ("", "s", "pairs a second", "MiB of memory", "real pieces"))
    for name, one in found.items():
        table.rows.append((name, number(one.seconds), f"{one.pairs / one.seconds:,.0f}", f"{one.memory / 2**20:,.0f}",
                           "" if one.real is None else f"{one.real:.1%}"))
    said = (f"A training step of this config takes {1e3 * step:.3g} ms here; for its batch the host works "
            f"{1e3 * host:.3g} ms, while the step before is under way.")
    written = [directory / "table.md", directory / "results.json"]
    write_text(written[0], f"# Text to batches\n\n{rounds.where()}\n\n{markdown(table)}\n{said}\n")
    write_json(written[1], {**rounds.circumstances("data"), "settings": settings.to_dict(), "bytes_on_disk": sizes,
                            "host": host, "step": step,
                            "stages": {name: dataclasses.asdict(one) for name, one in found.items()}})
    show(table, console)
    console.print(said, highlight=False, soft_wrap=True)
    return written


def write(folder: Path, count: int) -> None:
    """Parallel files of `count` pairs for training, each of two CLDR phrases and a number, so that none are alike."""
    phrases = cldr.generate(pairs=PHRASES, heldout=500)
    rng = random.Random(0)
    for stem, pairs in (("val", phrases.validation), ("test", phrases.test)):
        for language, side in zip(("en", "de"), pairs, strict=True):
            (folder / f"{stem}.{language}").write_text("".join(line + "\n" for line in side))
    chosen = [(rng.randrange(PHRASES), rng.randrange(PHRASES)) for _ in range(100_000)]
    for language, side in zip(("en", "de"), phrases.train, strict=True):
        with (folder / f"train.{language}").open("w") as file:
            for start in range(0, count, len(chosen)):
                file.writelines(f"{side[i]} {start + n} {side[j]}\n"
                                for n, (i, j) in enumerate(itertools.islice(chosen, count - start)))


def first(data: Data) -> Timing:
    return _timed(lambda: (sum(prepare(data).counts[name] for name in ("train", "train_empty")), None))


def epoch(settings: Settings) -> Timing:
    """All batches of an epoch, as a step gathers them that finds the corpus too large for its device."""
    return _timed(functools.partial(_epoch, settings))


def _epoch(settings):
    t, prepared = settings.training, prepare(settings.data)
    stream = Batches(prepared.train, rows=t.rows, row_pieces=t.row_pieces, seed=settings.seed, by_length=t.by_length)
    pairs = batches = 0
    while stream.epoch == 0:
        slots = stream.take(min(STEPS, stream.batches_in_part - stream.batch) or 1)[None]
        if stream.epoch:
            break
        needed, _ = excerpt(prepared.train, slots, t.row_pieces)
        pairs += int((slots >= 0).sum())
        batches += slots.shape[1]
    pieces = sum(int(side.lengths.sum()) for side in prepared.train)
    assert needed.source.ids.any() and pairs == len(prepared.train.source.lengths)
    return pairs, pieces / (2 * batches * t.rows * t.row_pieces)


def feeding(settings: Settings) -> tuple[float, float]:
    """Seconds of a training step, first what the host needs for its batch: planned, gathered, and on the device."""
    machine.use_compile_cache()
    t, prepared, found = settings.training, prepare(settings.data), []
    stream = Batches(prepared.train, rows=t.rows, row_pieces=t.row_pieces, seed=settings.seed, by_length=t.by_length)
    for _ in range(7):
        begin = time.perf_counter()
        needed, _ = excerpt(prepared.train, stream.take(STEPS)[None], t.row_pieces)
        jax.block_until_ready(Lanes().share(needed))
        found.append((time.perf_counter() - begin) / STEPS)
    return statistics.median(found), training.measure(settings, prepared, 1).step


def _alone(folder, stage, argument):
    process = Process(_begin, str(folder / "cache"))
    try:
        return process.submit(stage, argument).result()
    finally:
        process.stop()


def _begin(cache):
    os.environ["XDG_CACHE_HOME"] = cache


def _timed(stage) -> Timing:
    most, done = [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            most[0] = max(most[0], _own_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    begin = time.perf_counter()
    try:
        pairs, real = stage()
    finally:
        seconds = time.perf_counter() - begin
        done.set()
        watching.join()
    return Timing(seconds, pairs, most[0], real)


def _own_memory() -> int:
    """Bytes of this process that are no files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024
