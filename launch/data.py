"""Looks at corpora, and makes data sets of them.

python -m launch.data describe --config=FILE
python -m launch.data build --config=FILE --name=NAME --directory=DIR
python -m launch.data download --config=FILE

`describe` reads the config's corpus and shows how many pairs it has, how long they are, which are repeated or in the
training set and the test set too, and some of them. `build` writes it as a data set of TensorFlow Datasets, NAME in the
folder DIR, to be read with --config.data.corpus=tfds --config.data.dataset=NAME --config.data.directory=DIR. `download`
lets TensorFlow Datasets fetch and prepare the data set data.dataset, as array_record.
"""

import re
import sys
from pathlib import Path

import rich.console
from absl import flags

from experiments.data import corpora, summary
from experiments.data.dataset import prepare
from experiments.settings import Settings, resolve
from launch import command

COMMANDS = ("describe", "build", "download")
WIDTH = 140  # of tables where they are not drawn on a terminal


def main(name: str) -> None:
    config = flags.FLAGS["config"].value
    if config is None:
        command.mistake(
            "--config=FILE is needed, such as --config=experiments/configs/quick.py"
        )
    {"describe": describe, "build": build, "download": download}[name](resolve(config))


def describe(settings: Settings) -> None:
    data, console = (
        settings.data,
        rich.console.Console(width=None if sys.stdout.isatty() else WIDTH),
    )
    prepared = prepare(data)
    found = summary.describe(corpora.open(data), prepared)
    sides = (data.source, data.target) if data.has_translations else ("text",)
    console.print(summary.table(found, sides))
    console.print(summary.examples(found), soft_wrap=True)
    print(
        f"{prepared.vocabulary().size:,} tokens; batches of {settings.training.batch_size} rows of "
        f"{settings.training.sequence_length} tokens hold {summary.packing(prepared, settings):.1%} real ones\n"
        f"kept in {prepared.directory}"
    )


def build(settings: Settings) -> None:
    name, directory = flags.FLAGS.name, flags.FLAGS.directory
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name or ""):
        command.mistake(
            f"--name={name or ''}: a data set's name has small letters, digits and _, such as --name=news"
        )
    if not directory:
        command.mistake("--directory=DIR is needed, the folder for the data set")
    from experiments.data.corpora import tfds

    data = settings.data
    path = tfds.build(
        corpora.open(data), (data.source, data.target), Path(directory), name
    )
    print(
        f"{path}\nread it with --config.data.corpus=tfds --config.data.dataset={name} "
        f"--config.data.directory={directory} --config.data.validation=validation"
    )


def download(settings: Settings) -> None:
    from experiments.data.corpora import tfds

    print(tfds.download(settings.data))


if __name__ == "__main__":
    NAME = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in COMMANDS else ""
    command.define_config()
    if NAME == "build":
        flags.DEFINE_string("name", None, "What the data set is called")
        flags.DEFINE_string(
            "directory", None, "The folder for data sets, TFDS's data_dir"
        )
    if not NAME and not [word for word in sys.argv[1:] if word.startswith("--help")]:
        command.mistake(
            f"python -m launch.data COMMAND, where COMMAND is {' or '.join(COMMANDS)}"
        )
    command.start(lambda: main(NAME))
