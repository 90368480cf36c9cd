"""Compares attention, training and decoding with other libraries, on the CPU.

python -m launch.bench attention [--peers=attn,torch] [--cases=dot-512,additive]
python -m launch.bench train [--peers=attn,attn:as-torch,torch,torch:as-paper]
python -m launch.bench decode [--peers=attn,transformers] [--cases=batch-32]
python -m launch.bench conformance [--peers=attn:reference,attn:tiled,jax.nn]
python -m launch.bench fidelity
python -m launch.bench layers
python -m launch.bench growth
python -m launch.bench sweep --config=FILE --sweep=NAMES [--seeds=N] [--only=ROWS]
python -m launch.bench overhead --config=FILE
python -m launch.bench data --config=FILE [--pairs=300000,1200000]
python -m launch.bench verdicts [--tables=4000] [--cases=20-rows-2-seeds]
python -m launch.bench compile [--for=v5e,v5e-4,h100] [--config=FILE --sweep=NAMES]

The first three time attention, a training step and translation, in turns, and write
tables and every timing; the fourth tries each line of attention's contract on each
library, and says what it saw. fidelity holds the Transformer to torch.nn.Transformer
of the same weights, and ends with status 1 where they differ. The others are about
this project alone: the paper's Table 1, how time and memory grow, a sweep in different
ways (--ways), what the runner costs beside the bare step, text on its way to batches,
how often a report's verdicts are right, by simulation, and what compilers for TPUs and
GPUs, which need not be there, say of attention and of every config's programs.

Each writes into --directory, by default runs/bench/NAME. --rounds sets the turns, and
--tiny measures the smallest sizes, to see that all works. Other libraries take part
where they are installed: pip install '.[bench]'. launch/bench/README.md says more.
"""

import importlib
import sys
from pathlib import Path

import rich.console
from absl import flags

from experiments.system import huge_pages
from experiments.system.console import print_line, stdout_console
from launch import command, config_flag
from launch.bench.harness import libraries
from launch.bench.harness.benchmark import Benchmark, Outcome, Request, select

BENCHMARKS = {
    "attention": "attention.command",
    "train": "training.command",
    "decode": "decoding.command",
    "conformance": "conformance.command",
    "fidelity": "fidelity.command",
    "sweep": "runner.sweeps",
    "overhead": "runner.overhead",
    "data": "runner.data",
    "layers": "table1.command",
    "growth": "growth.command",
    "verdicts": "verdicts.command",
    "compile": "compile.command",
}
"""Modules of `launch.bench` by the names of their benchmarks; the one asked for is imported."""
WIDTH = 140
"""Width of the tables where they are not drawn on a terminal."""


def load(name: str) -> Benchmark:
    """Returns a benchmark of `BENCHMARKS`."""
    return importlib.import_module(f"launch.bench.{BENCHMARKS[name]}").BENCHMARK


def main(benchmark: Benchmark) -> None:
    """Runs the benchmark as the flags say, and ends the process with its status."""
    import jax

    # The libraries are compared on the CPU, where all of them run.
    jax.config.update("jax_platforms", "cpu")
    # A file has no width of its own, and 80 characters would cut the tables.
    console = stdout_console(WIDTH)
    directory = Path(flags.FLAGS.directory)
    try:
        outcome = benchmark.run(request(benchmark, directory, console))
    except libraries.BenchError as error:
        command.mistake(error)
    except KeyboardInterrupt:
        message = f"interrupted; the tables that were done are in {directory}"
        print(message, file=sys.stderr)
        # The status that shells give a command which SIGINT ended: 128 + 2.
        sys.exit(130)
    finish(outcome, console)


def request(
    benchmark: Benchmark, directory: Path, console: rich.console.Console
) -> Request:
    """Reads the flags; raises BenchError for names that are not known."""
    values = flags.FLAGS
    chosen = {}
    if benchmark.libraries:
        chosen = libraries.select(values.peers, benchmark.libraries)
    cases = benchmark.cases
    if benchmark.tiny and values.tiny:
        cases = benchmark.tiny
    if benchmark.cases_flag:
        cases = select(values.cases, cases)
    return Request(
        directory=directory,
        console=console,
        cases=cases,
        libraries=chosen,
        rounds=values.rounds if benchmark.rounds_flag else 1,
        flags=values,
    )


def finish(outcome: Outcome, console: rich.console.Console) -> None:
    """Names the files, says what is wrong, and ends the process."""
    # No wrapping: a path that is cut cannot be copied.
    lines = "\n".join(map(str, outcome.files))
    print_line(console, lines)
    if outcome.problem:
        print(f"error: {outcome.problem}", file=sys.stderr)
    sys.exit(outcome.status)


def define_flags(benchmark: Benchmark) -> None:
    """Defines the flags of one benchmark: a flag of another is an unknown one."""
    folder = f"runs/bench/{benchmark.name}"
    help_text = "The directory for everything that is written"
    flags.DEFINE_string("directory", folder, help_text)
    command.check_directory("directory")
    if benchmark.libraries:
        known = f"Libraries to compare, of {', '.join(benchmark.libraries)}"
        flags.DEFINE_list("peers", list(benchmark.compared), known)
    if benchmark.tiny:
        flags.DEFINE_bool("tiny", False, "Measure the smallest sizes, in seconds")
    if benchmark.cases_flag:
        help_text = "Names of cases, or how they begin; by default all"
        flags.DEFINE_list("cases", None, help_text)
    if benchmark.rounds_flag:
        help_text = "Turns of each library; slow cases take fewer"
        flags.DEFINE_integer("rounds", 7, help_text, lower_bound=1)
    if benchmark.config_flag:
        config_flag.define_config()
    benchmark.define_flags()


def cli() -> None:
    """Runs the command `attn-bench`; the first argument names the benchmark."""
    # Workers inherit the environment; malloc reads it when a process starts.
    huge_pages.use_huge_pages()
    # absl parses flags only, so the name has to leave the command line first.
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    benchmark = None
    if name in BENCHMARKS:
        sys.argv.pop(1)
        benchmark = load(name)
        define_flags(benchmark)
    elif not any(word.startswith("--help") for word in sys.argv[1:]):
        known = " or ".join(BENCHMARKS)
        command.mistake(f"python -m launch.bench COMMAND, where COMMAND is {known}")
    needs_config = benchmark is not None and benchmark.config_flag
    required = ("config",) if needs_config else ()
    command.start(lambda: main(benchmark), required=required)


if __name__ == "__main__":
    cli()
