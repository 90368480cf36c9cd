"""Looks at corpora, and makes data sets of them.

    python -m launch.data describe --config=quick
    python -m launch.data build --config=quick --name=phrases --directory=data
    python -m launch.data download --config=wmt14_ende

`describe` reads the config's corpus and shows how many pairs it has, how long they are,
which are repeated or in the training set and the test set too, and some of them.
`build` writes it as a data set of TensorFlow Datasets, NAME in the folder DIR, to be
read with --config.data.corpus=tfds --config.data.dataset=NAME
--config.data.directory=DIR. `download` lets TensorFlow Datasets fetch and prepare the
data set data.dataset, as array_record.
"""

import functools
import re
import sys
from pathlib import Path

from absl import flags

from experiments.data import corpora, summary
from experiments.data.dataset import prepare
from experiments.settings import Settings, resolve
from experiments.system.console import stdout_console
from launch import command, config_flag

COMMANDS = ("describe", "build", "download")
WIDTH = 140
"""Characters a line where output is no terminal."""


def main(name: str) -> None:
    settings = resolve(config_flag.experiment().config)
    {"describe": describe, "build": build, "download": download}[name](settings)


def describe(settings: Settings) -> None:
    """Prints a corpus: sizes, lengths, what is repeated, samples, and how well it packs."""
    data = settings.data
    # A file has no width of its own, and 80 characters would cut the table.
    console = stdout_console(WIDTH)
    prepared = prepare(data)
    found = summary.describe(corpora.open(data), prepared)
    console.print(summary.table(found, data.sides))
    console.print(summary.examples(found), soft_wrap=True)
    for line in prepared.warnings():
        print(line)
    print(
        f"{prepared.vocabulary().size:,} tokens; "
        f"batches of {settings.training.batch_size} rows of "
        f"{settings.training.sequence_length} tokens "
        f"hold {summary.packing(prepared, settings):.1%} real ones\n"
        f"kept in {prepared.directory}"
    )


def build(settings: Settings) -> None:
    """Writes the corpus as a data set of TensorFlow Datasets."""
    name = flags.FLAGS.name
    directory = flags.FLAGS.directory
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name or ""):
        command.mistake(
            f"--name={name or ''}: a data set's name has small letters, digits and _, "
            "such as --name=news"
        )
    # Not at the top: TensorFlow Datasets takes time to import, and few need it.
    from experiments.data.corpora import tfds

    data = settings.data
    path = tfds.build(corpora.open(data), data.sides, Path(directory), name)
    print(
        f"{path}\nread it with --config.data.corpus=tfds --config.data.dataset={name} "
        f"--config.data.directory={directory} --config.data.validation=validation"
    )


def download(settings: Settings) -> None:
    """Lets TensorFlow Datasets fetch and prepare the data set."""
    from experiments.data.corpora import tfds

    print(tfds.download(settings.data))


def cli() -> None:
    """Runs the command `attn-data`; the first argument names what to do."""
    # absl parses flags only, so the name has to leave the command line first.
    name = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in COMMANDS else ""
    config_flag.define_config()
    required = ("config",)
    # The other commands do not know these, and refuse them.
    if name == "build":
        required += ("name", "directory")
        flags.DEFINE_string("name", None, "The name of the data set")
        flags.DEFINE_string(
            "directory", None, "The folder for data sets, TFDS's data_dir"
        )
    asks_for_help = any(word.startswith("--help") for word in sys.argv[1:])
    if not name and not asks_for_help:
        command.mistake(
            f"python -m launch.data COMMAND, where COMMAND is {' or '.join(COMMANDS)}"
        )
    command.start(functools.partial(main, name), required=required)


if __name__ == "__main__":
    cli()
