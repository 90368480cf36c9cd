"""Table 1 of the paper, measured: what mixes positions, its time and memory over n and d, its sequential operations,
and the path between positions.

    per layer                complexity   sequential   path
    self-attention           O(n²·d)      O(1)         O(1)
    restricted to r          O(r·n·d)     O(1)         O(n/r)
    recurrence               O(n·d²)      O(n)         O(n)
    convolution, k taps      O(k·n·d²)    O(1)         O(n/k), for taps that are neighbours
    separable convolution    O(k·n·d + n·d²)

Exponents are slopes of a line through log time over log n or log d, in a range where the term that is looked for
dominates: each form of attention also has 4·n·d² of projections, so n is large beside d. For sequential operations the
compiled program is read: the trips of its longest loop, and 1 where there is none; for lengths at which attention is
computed at once (beyond, it walks blocks, which do not wait for each other). A path is found through gradients: which
positions the output of one application depends on at all, and how often it has to be applied until all are reached.
"""

import dataclasses
import functools
import io
import re
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import rich.console
from matplotlib.figure import Figure

from attn import Convolution, Mask, MultiHeadAttention, Recurrence
from experiments.figures import line_style
from experiments.files import write_bytes, write_json, write_text
from launch.bench import rounds
from launch.bench.grids import Grid, markdown, show

R = 16
"""What restricted attention reaches to each side."""
TAPS = 3
SHORT = (16, 32, 64, 128)
"""Lengths at which sequential operations are counted, and the first three for paths."""
PAUSE = 0.02
EVERYTHING = Mask()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A row of the table. The sizes are (n, d) of what is timed: over n at one d, over d at one n."""

    name: str
    paper: tuple[str, str, str]
    expected: tuple[int, int]
    """The exponents of n and d in the term that dominates there."""
    over_n: tuple[tuple[int, int], ...]
    over_d: tuple[tuple[int, int], ...]
    build: object
    """d -> module; called with x, and x again where it attends, and `mask`."""
    mask: Mask = EVERYTHING
    batch: int = 1
    """Sequences at once: a recurrence of one alone waits for its matrices to come from memory, and measures caches."""


def _attention(d):
    return MultiHeadAttention(d, 1, d, d)


def _sizes(ns, ds, d, n):
    return tuple((each, d) for each in ns), tuple((n, each) for each in ds)


KINDS = (
    Kind("self-attention", ("O(n²·d)", "O(1)", "O(1)"), (2, 1),
         *_sizes((2048, 4096, 8192, 16384), (16, 32, 64, 128), 32, 4096), _attention),
    Kind(f"restricted, r = {R}", ("O(r·n·d)", "O(1)", "O(n/r)"), (1, 1),
         *_sizes((4096, 8192, 16384, 32768), (16, 32, 64), 32, 8192), _attention, Mask.window(R, R)),
    Kind("recurrence", ("O(n·d²)", "O(n)", "O(n)"), (1, 2),
         *_sizes((64, 128, 256, 512), (256, 512, 1024, 2048), 256, 16), Recurrence, batch=16),
    Kind(f"convolution, {TAPS} taps", ("O(k·n·d²)", "O(1)", "O(n/k)"), (1, 2),
         *_sizes((512, 1024, 2048, 4096), (256, 512, 1024, 2048), 128, 256),
         functools.partial(Convolution, radius=TAPS // 2)),
    Kind(f"separable, {TAPS} taps", ("O(k·n·d + n·d²)", "O(1)", "O(n/k)"), (1, 2),
         *_sizes((1024, 2048, 4096, 8192), (512, 1024, 2048, 4096), 128, 256),
         functools.partial(Convolution, radius=TAPS // 2, separable=True)),
)


def run(turns: int, directory: Path, console: rich.console.Console) -> list[Path]:
    """Times all kinds at all sizes in turns, forward. Shows and writes the table and the picture; returns the files."""
    seconds, memory = {}, {}
    for kind in KINDS:
        with console.status(kind.name):
            sizes = dict.fromkeys((*kind.over_n, *kind.over_d))
            seconds[kind.name], memory[kind.name] = timed(kind, sizes, turns)
    table = grid(seconds, memory)
    written = [directory / name for name in ("table.md", "results.json", "layers.png")]
    write_text(written[0], f"# Table 1 of the paper, measured\n\n{rounds.where()}\n\n{markdown(table)}")
    write_json(written[1], {**rounds.circumstances("layers"), "layers": {
        kind.name: [dict(n=n, d=d, seconds=each, temporary_bytes=memory[kind.name][n, d])
                    for (n, d), each in seconds[kind.name].items()] for kind in KINDS}})
    write_bytes(written[2], picture(seconds))
    show(table, console)
    return written


def timed(kind: Kind, sizes, turns: int):
    """({(n, d): seconds of each turn}, {(n, d): temporary bytes}) of forward passes, the sizes taking turns."""
    programs = {size: compiled(kind, *size) for size in sizes}
    found = {size: [] for size in sizes}
    for turn in range(turns + 1):  # the first warms
        for size, (call, arguments) in programs.items():
            time.sleep(PAUSE)
            begin = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            if turn:
                found[size].append(time.perf_counter() - begin)
    return found, {size: call.memory_analysis().temp_size_in_bytes for size, (call, _) in programs.items()}


def compiled(kind: Kind, n: int, d: int):
    """(the compiled layer, what it is called with)."""
    module, x = kind.build(d), jax.random.normal(jax.random.key(0), (kind.batch, n, d))
    variables = jax.jit(functools.partial(_call, module.init, kind))(jax.random.key(1), x)
    return jax.jit(functools.partial(_call, module.apply, kind)).lower(variables, x).compile(), (variables, x)


def _call(function, kind, first, x):
    attends = kind.build is _attention
    return function(first, x, x, kind.mask) if attends else function(first, x, kind.mask)


def sequential(kind: Kind, n: int) -> int:
    """The trips of the longest loop in the compiled layer, 1 where there is none."""
    text = compiled(kind, n, 8)[0].as_text()
    return max([1, *map(int, re.findall(r'known_trip_count["\s:={]+n["\s:]+(\d+)', text))])


def path(kind: Kind, n: int) -> int:
    """How often the layer has to be applied until every output depends on every input, or, of a recurrence, on every
    input before; one application of that is one step of its cell, at all positions at once."""
    x, module = jax.random.normal(jax.random.key(0), (n, 4)), kind.build(4)
    variables = _call(module.init, kind, jax.random.key(1), x)
    if isinstance(module, Recurrence):
        def step(states, x):
            before = jnp.roll(states, 1, axis=0).at[0].set(0)
            return module.apply(variables, before, x, method=lambda own, *at: own.forward.one(*at)[1])

        hop, reached = _depends(lambda states: step(states, x), x), _depends(lambda x: step(jnp.ones_like(x), x), x)
        wanted = np.tri(n, dtype=bool)
    else:
        hop = reached = _depends(functools.partial(_call, module.apply, kind, variables), x)
        wanted = np.ones((n, n), bool)
    times = 1
    while not reached[wanted].all():
        reached, times = reached | (hop @ reached), times + 1
        if times > n:
            raise AssertionError(f"{kind.name}: {n} applications do not reach every position")
    return times


def _depends(function, x):
    """(n, n): whether row i of what the function gives depends on row j of x."""
    return np.abs(np.asarray(jax.jacobian(function)(x))).sum((1, 3)) > 0


def exponent(values: dict[int, float]) -> tuple[float, float]:
    """Slope and its standard error of log value over log size."""
    x, y = np.log(list(values)), np.log(list(values.values()))
    slope, level = np.polyfit(x, y, 1)
    spread = ((y - slope * x - level) ** 2).sum() / max(1, len(x) - 2)
    return float(slope), float((spread / ((x - x.mean()) ** 2).sum()) ** 0.5)


def grid(seconds, memory) -> Grid:
    """Exponents with their standard errors beside those of the term that dominates, and what was counted."""
    table = Grid("layers", ("", "paper", "time over n", "time over d", "memory over n", "sequential", "path"))
    table.notes += [
        "exponent ± standard error, in brackets that of the paper's term; attention of either form keeps blocks of its "
        "weights alone, so that its memory grows with n where the paper's grows with n²",
        f"for n = {', '.join(map(str, SHORT))}, in brackets the paper's", "the same, for the first three"]
    for kind in KINDS:
        over = [_over(seconds[kind.name], sizes, statistics.median) for sizes in (kind.over_n, kind.over_d)]
        table.rows.append((
            kind.name, kind.paper[0],
            *(f"{_fit(own)} ({wanted})" for own, wanted in zip(over, kind.expected, strict=True)),
            _fit(_over(memory[kind.name], kind.over_n, float)),
            f"{', '.join(str(sequential(kind, n)) for n in SHORT)} ({kind.paper[1]})",
            f"{', '.join(str(path(kind, n)) for n in SHORT[:3])} ({kind.paper[2]})"))
    return table


def _over(found, sizes, value):
    """{n or d, whichever differs: value} at the sizes (n, d)."""
    which = 0 if sizes[0][1] == sizes[1][1] else 1
    return {size[which]: value(found[size]) for size in sizes}


def _fit(values):
    return "{:.2f} ± {:.2f}".format(*exponent(values))


def picture(seconds) -> bytes:
    """PNG: time over n and over d, log-log, a line a kind."""
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "axes.grid.which": "major", "grid.alpha": 0.3,
                                "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}):
        figure = Figure(figsize=(9, 4), layout="constrained")
        for ax, name, sizes in zip(figure.subplots(1, 2), "nd", ("over_n", "over_d"), strict=True):
            for row, kind in enumerate(KINDS):
                colour, dashes = line_style(row)
                own = _over(seconds[kind.name], getattr(kind, sizes), statistics.median)
                held = getattr(kind, sizes)[0][1 if name == "n" else 0]
                ax.plot(own.keys(), [1e3 * each for each in own.values()], color=colour, marker="o", markersize=4,
                        linestyle=(0, dashes) if dashes else "-",
                        label=f"{kind.name}, {'d' if name == 'n' else 'n'} = {held}: {exponent(own)[0]:.2f}")
            ax.set(xscale="log", yscale="log", xlabel=name, ylabel="ms" if name == "n" else "")
            ax.set_xscale("log", base=2)
            ax.legend(fontsize=7, title="exponent")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
