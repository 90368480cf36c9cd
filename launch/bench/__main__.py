"""Compares attention, training and decoding with those of other libraries, on the CPU.

python -m launch.bench attention [--peers=attn,jax.nn,flax,textbook,torch] [--cases=dot-512,additive] [--rounds=7]
python -m launch.bench train [--peers=attn,attn:as-torch,torch,torch:as-paper,flax,flax:as-torch] [--rounds=7]
python -m launch.bench decode [--peers=attn,transformers,ctranslate2] [--cases=batch-32] [--rounds=7]
python -m launch.bench conformance [--peers=attn:reference,attn:tiled,attn:jax_nn,jax.nn,flax,torch]
python -m launch.bench fidelity
python -m launch.bench sweep --config=FILE --sweep=NAMES [--seeds=N] [--only=ROWS] [--ways=sweep,one-by-one,cold]
python -m launch.bench overhead --config=FILE [--rounds=7]
python -m launch.bench data --config=FILE [--pairs=300000,1200000]
python -m launch.bench layers [--rounds=7]

The first three time attention, a training step and translation, in turns, and write tables and every timing; the fourth
tries each line of attention's contract on each library, and says what it found. The fifth holds the Transformer to
torch.nn.Transformer of the same weights, and ends with status 1 where they differ. The last four are of this project
alone: a sweep in different ways, what the runner costs beside the bare step, text on its way to batches, and the
paper's Table 1. Each writes into --directory, by default runs/bench/COMMAND. Other libraries take part where they are
installed: pip install '.[bench]'.
"""

import sys
from pathlib import Path

import jax
import rich.console
from absl import flags

from experiments import pages, settings, sweep
from launch import command
from launch.bench import (
    attention,
    cases,
    conformance,
    data,
    decoding,
    fidelity,
    layers,
    overhead,
    peers,
    sweeps,
    training,
)

PEERS = {"attention": ["attn", "jax.nn", "flax", "textbook", "torch"],
         "train": ["attn", "attn:as-torch", "torch", "torch:as-paper", "flax", "flax:as-torch"],
         "decode": ["attn", "transformers", "ctranslate2"],
         "conformance": ["attn:reference", "attn:tiled", "attn:jax_nn", "jax.nn", "flax", "torch"]}
CASES = {"attention": cases.CASES, "decode": decoding.CASES}
OWN = ("sweep", "overhead", "data")
COMMANDS = (*PEERS, "fidelity", *OWN, "layers")
WIDTH = 140  # of the tables where they are not drawn on a terminal


def main(name: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    console = rich.console.Console(width=None if sys.stdout.isatty() else WIDTH)
    directory, agree = Path(flags.FLAGS.directory), True
    try:
        if name == "fidelity":
            written, agree = fidelity.run(directory, console)
        elif name == "layers":
            written = layers.run(flags.FLAGS.rounds, directory, console)
        elif name in OWN:
            written = own(name, directory, console)
        else:
            written = compare(name, directory, console)
    except peers.BenchError as error:
        command.mistake(error)
    except KeyboardInterrupt:
        print(f"interrupted; the tables that were done are in {directory}", file=sys.stderr)
        sys.exit(130)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)
    sys.exit(0 if agree else 1)


def compare(name: str, directory: Path, console: rich.console.Console) -> list[Path]:
    values = flags.FLAGS
    chosen = peers.check(name, values.peers)
    if name == "conformance":
        return conformance.run(chosen, directory, console)
    if name == "train":
        return training.run(chosen, values.rounds, directory, console)
    run = {"attention": attention.run, "decode": decoding.run}[name]
    return run(chosen, cases.select(values.cases, CASES[name]), values.rounds, directory, console)


def own(name: str, directory: Path, console: rich.console.Console) -> list[Path]:
    values = flags.FLAGS
    if values.config is None:
        command.mistake("--config=FILE is needed, such as --config=experiments/configs/quick.py")
    if name == "overhead":
        return overhead.run(settings.resolve(values.config), values.rounds, directory, console)
    if name == "data":
        return data.run(settings.resolve(values.config), list(map(int, values.pairs)), directory, console)
    known = sweep.sweeps(sweep.load(command.config_path()))
    points = sweep.select(sweep.expand(known, values.sweep, values.config, values.seeds), values.only)
    more = [f"--only={values.only}", *([f"--seeds={values.seeds}"] if values.seeds else [])]
    config = [word for word in sys.argv[1:] if word.lstrip("-").startswith("config")]
    return sweeps.run(config, ",".join(values.sweep), more, sweep.plan(values.config, points),
                      values.ways, directory, console)


def define_flags(name: str) -> None:
    """The flags of one command: a flag of the other is an unknown one."""
    if name in PEERS:
        flags.DEFINE_list("peers", PEERS[name], f"Who is compared, of {', '.join(peers.ADAPTERS[name])}")
    flags.DEFINE_string("directory", f"runs/bench/{name}", "The directory for everything that is written")
    if name in CASES:
        flags.DEFINE_list("cases", None, "Names of cases, or how they begin; by default all")
    if name in OWN:
        command.define_config()
    if name == "sweep":
        flags.DEFINE_list("sweep", [], "Names of the config's sweeps; their product is run")
        flags.DEFINE_integer("seeds", None, "Run each point with so many seeds, from 0 on", lower_bound=1)
        flags.DEFINE_string("only", "", "Run the points with this text in label or name")
        flags.DEFINE_list("ways", list(sweeps.WAYS), "How the sweep is run: also workers=N and lanes=N")
    if name == "data":
        flags.DEFINE_list("pairs", ["300000", "1200000"], "Sizes of the corpora that are made")
    if name in (*CASES, "train", "overhead", "layers"):
        flags.DEFINE_integer("rounds", 7, "Turns of each peer; slow cases take fewer", lower_bound=1)


if __name__ == "__main__":
    pages.use_huge_pages()  # for the workers
    NAME = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in COMMANDS else ""
    if NAME:
        define_flags(NAME)
    elif not [word for word in sys.argv[1:] if word.startswith("--help")]:
        command.mistake(f"python -m launch.bench COMMAND, where COMMAND is {' or '.join(COMMANDS)}")
    command.start(lambda: main(NAME))
