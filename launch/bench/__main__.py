"""Compares attention, training and decoding with other libraries, on the CPU.

python -m launch.bench attention [--peers=attn,torch] [--cases=dot-512,additive]
python -m launch.bench training [--peers=attn,attn:as-torch,torch,torch:as-paper]
python -m launch.bench cold_start [--peers=attn,torch]
python -m launch.bench decoding [--peers=attn,ctranslate2] [--cases=batch-32]
python -m launch.bench conformance [--peers=attn:reference,jax.nn]
python -m launch.bench fidelity
python -m launch.bench verdicts [--tables=4000] [--cases=20-rows-2-seeds]
python -m launch.bench bar [--entries=4000]
python -m launch.bench compile [--for=v5e,v5e-4,h100] [--cases="quick step"]
python -m launch.bench device [--minutes=3]

The first four time attention, a training step, the way to its first and translation, in
turns, and write tables and every timing; conformance tries each line of attention's
contract on each library. fidelity holds the Transformer to torch.nn.Transformer of the
same weights, and ends with status 1 where they differ. verdicts says by simulation how
often a report's verdicts are right, bar how often entries at the bar beat a record,
compile what compilers for TPUs and GPUs, which need
not be there, say of attention and of every config's programs, and device measures all
that a lent GPU is asked, in the given minutes.

Each writes into --directory, by default runs/bench/NAME. --rounds sets the turns, and
--tiny measures the smallest sizes, to see that all works. Other libraries take part
where they are installed: pip install '.[bench]'. launch/bench/README.md says more.
"""

import importlib
import sys
from pathlib import Path

from absl import flags

from experiments.system import huge_pages
from experiments.system.console import print_line, stdout_console
from launch import command
from launch.bench.harness import libraries
from launch.bench.harness.benchmark import Benchmark, Request, select

BENCHMARKS = {
    "attention": "attention.cases",
    "training": "training.command",
    "cold_start": "cold_start",
    "decoding": "decoding.case",
    "conformance": "conformance",
    "fidelity": "fidelity.command",
    "verdicts": "verdicts.command",
    "bar": "bar",
    "compile": "compile.command",
    "device": "device",
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

    # This process compares on the CPU; those of libraries use JAX_PLATFORMS' device.
    jax.config.update("jax_platforms", "cpu")
    values = flags.FLAGS
    cases = benchmark.tiny if values.tiny else benchmark.cases
    chosen = {}
    if benchmark.libraries:
        chosen = libraries.select(values.peers, benchmark.libraries)
    request = Request(
        directory=Path(values.directory),
        # A file has no width of its own, and 80 characters would cut the tables.
        console=stdout_console(WIDTH),
        cases=select(values.cases, cases),
        libraries=chosen,
        rounds=values.rounds if benchmark.rounds else 1,
        flags=values,
    )
    outcome = benchmark.run(request)
    # No wrapping: a path that is cut cannot be copied.
    print_line(request.console, "\n".join(map(str, outcome.files)))
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
    flags.DEFINE_bool("tiny", False, "Measure the smallest sizes, in seconds")
    help_text = "Names of cases, or how they begin; by default all"
    flags.DEFINE_list("cases", None, help_text)
    if benchmark.rounds:
        help_text = "Turns of each library; slow cases take fewer"
        flags.DEFINE_integer("rounds", benchmark.rounds, help_text, lower_bound=1)
    benchmark.define_flags()


def cli() -> None:
    """Runs a benchmark; the first argument names it."""
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
    command.start(lambda: main(benchmark))


if __name__ == "__main__":
    cli()
