"""Compares attention with that of other libraries, on the CPU.

python -m launch.bench attention [--peers=attn,jax.nn,flax,textbook,torch] [--cases=dot-512,additive] [--rounds=7]
python -m launch.bench conformance [--peers=attn:reference,attn:tiled,attn:jax_nn,jax.nn,flax,torch]

The first times them, in turns, and writes tables, a picture and every timing; the second tries each line of attention's
contract on each of them, and says what it found. Both write into --directory, by default runs/bench/COMMAND. PyTorch
takes part where it is installed: pip install '.[bench]'.
"""

import sys
from pathlib import Path

import jax
import rich.console
from absl import flags

from experiments import machine
from launch import command
from launch.bench import attention, cases, conformance, peers

PEERS = {"attention": ["attn", "jax.nn", "flax", "textbook", "torch"],
         "conformance": ["attn:reference", "attn:tiled", "attn:jax_nn", "jax.nn", "flax", "torch"]}
WIDTH = 140  # of the tables where they are not drawn on a terminal


def main(name: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    console = rich.console.Console(width=None if sys.stdout.isatty() else WIDTH)
    values, directory = flags.FLAGS, Path(flags.FLAGS.directory)
    try:
        chosen = peers.check(values.peers)
        if name == "attention":
            written = attention.run(chosen, cases.select(values.cases), values.rounds, directory, console)
        else:
            written = conformance.run(chosen, directory, console)
    except peers.BenchError as error:
        command.mistake(error)
    except KeyboardInterrupt:
        print(f"interrupted; the tables that were done are in {directory}", file=sys.stderr)
        sys.exit(130)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)


def define_flags(name: str) -> None:
    """The flags of one command: a flag of the other is an unknown one."""
    flags.DEFINE_list("peers", PEERS[name], f"Who is compared, of {', '.join(peers.ADAPTERS)}")
    flags.DEFINE_string("directory", f"runs/bench/{name}", "The directory for everything that is written")
    if name == "attention":
        flags.DEFINE_list("cases", None, "Names of cases, or how they begin; by default all")
        flags.DEFINE_integer("rounds", 7, "Turns of each peer; slow cases take fewer", lower_bound=1)


if __name__ == "__main__":
    machine.use_huge_pages()  # for the workers
    NAME = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in PEERS else ""
    if NAME:
        define_flags(NAME)
    elif not [word for word in sys.argv[1:] if word.startswith("--help")]:
        command.mistake(f"python -m launch.bench COMMAND, where COMMAND is {' or '.join(PEERS)}")
    command.start(lambda: main(NAME))
