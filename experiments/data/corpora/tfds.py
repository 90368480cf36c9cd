"""Translations of TensorFlow Datasets, such as wmt14_translate/de-en, read without TensorFlow.

They must be prepared as array_record, the one format that can be read at random and loses
nothing. `build` makes such a data set of any other corpus.
"""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds
import tensorflow_datasets.translate
from tensorflow_datasets.core.download import DownloadError

from experiments.data import corpora
from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.parallel import fingerprint
from experiments.settings import TfdsData

logging.getLogger("absl").setLevel(logging.WARNING)  # at INFO it tells of every file

FORMAT = tfds.core.FileFormat.ARRAY_RECORD


class Source:
    """`data.dataset`, in `data.directory` or TFDS's own place; `data.train` and so on are
    splits, "train[:10%]" too.

    Raises CorpusError for a data set or split that is unknown or not prepared, for
    languages that it has not, and where fewer pairs can be read than it says that it has.
    """

    def __init__(self, data: TfdsData):
        self._data = data
        self._splits = {}
        builder = _builder(data)
        languages = set(builder.info.features or ())
        if missing := [
            language
            for language in (data.source, data.target)
            if language not in languages
        ]:
            raise CorpusError(
                f"data.dataset={data.dataset} has no {' and no '.join(missing)} (it has "
                f"{', '.join(sorted(languages))}); set data.source and data.target"
            )
        for split, name in zip(
            SPLITS, (data.train, data.validation, data.test), strict=True
        ):
            try:
                records = builder.as_data_source(name)
            except (KeyError, NotImplementedError, ValueError):
                raise CorpusError(_missing(data, builder, split, name)) from None
            known = builder.info.splits
            self._splits[split] = (
                records,
                known[name].num_examples if known else len(records),
            )
        self._files = sorted(
            path for path in Path(builder.data_dir).glob("*") if path.is_file()
        )

    def fingerprint(self) -> str:
        data = self._data
        # The languages too, or the other direction would be the same corpus.
        names = (data.source, data.target, data.train, data.validation, data.test)
        return fingerprint(self._files, names)

    def read(self, split: str) -> Iterator[Pairs]:
        records, promised = self._splits[split]
        # TFDS's parquet reader is known to lose records in silence.
        if len(records) != promised:
            raise CorpusError(
                f"{self._data.dataset}, {split}: {len(records)} pairs can be read of the "
                f"{promised} that it is said to have; prepare the data set again"
            )
        for first in range(0, promised, BLOCK):
            # PyTorch's protocol for many records at a time, which TFDS's sources have.
            block = records.__getitems__(range(first, min(first + BLOCK, promised)))
            sides = []
            for language in (self._data.source, self._data.target):
                sides.append([_text(record[language]) for record in block])
            yield Pairs(*sides)

    def place(self, split: str, i: int) -> str:
        return f"{self._data.dataset}, {split}, pair {i}"


def build(
    source: corpora.Source, languages: tuple[str, str], directory: Path, name: str
) -> Path:
    """Writes all pairs of `source` as the data set `name` into `directory`, and returns its
    own folder there.

    Raises CorpusError for a name that TFDS has for another data set, and for a folder that
    is there already.
    """
    if name in tfds.list_builders(with_community_datasets=False):
        raise CorpusError(
            f"{name} is the name of a data set that TensorFlow Datasets has; choose another"
        )
    if (directory / name).exists():
        raise CorpusError(
            f"{directory / name} is there already; choose another name or folder"
        )

    def examples(split):
        number = 0
        for pairs in source.read(split):
            for pair in zip(*pairs, strict=True):
                yield number, dict(zip(languages, pair, strict=True))
                number += 1

    # Unregistered, because TFDS refuses a second class of the same name.
    class Written(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.Translation(languages=languages),
                supervised_keys=languages,
                # In order, so that pair i of the data set is pair i of the source.
                disable_shuffling=True,
            )

        def _split_generators(self, _):
            return {split: examples(split) for split in SPLITS}

        # Abstract in TFDS, though the splits are generators already.
        def _generate_examples(self):
            raise NotImplementedError

    Written.name = name
    tfds.disable_progress_bar()
    builder = Written(data_dir=directory, file_format=FORMAT)
    with contextlib.redirect_stdout(io.StringIO()):  # it speaks of downloads
        builder.download_and_prepare()
    return Path(builder.data_dir)


def download(data: TfdsData) -> Path:
    """Fetches and prepares `data.dataset` as array_record where that is not done, and
    returns its folder.

    Raises CorpusError for a data set that is unknown, prepared in another format already,
    or not to be had.
    """
    builder = _builder(data, file_format=FORMAT)
    try:
        builder.download_and_prepare()
    except (OSError, DownloadError) as error:
        raise CorpusError(
            f"data.dataset={data.dataset} cannot be fetched and prepared in {builder.data_dir}: "
            f"{_line(error)}; the same command tries again"
        ) from None
    return Path(builder.data_dir)


def _builder(data, **how):
    directory = data.directory or None
    try:
        builder = tfds.builder(data.dataset, data_dir=directory, **how)
    except ValueError as error:  # of which DatasetNotFoundError is one
        where = f"in data.directory={directory} or " if directory else ""
        raise CorpusError(
            f"data.dataset={data.dataset!r}: no such data set {where}among those of "
            f"TensorFlow Datasets: {_line(error)}"
        ) from None
    # A data set that is not prepared has no splits, and its format is open.
    if builder.info.splits and builder.info.file_format != FORMAT:
        raise CorpusError(
            f"{builder.data_dir} is in the format {builder.info.file_format.value}; "
            f"{_prepare(data)}"
        )
    return builder


def _missing(data, builder, split, name):
    if not builder.info.splits:
        return (
            f"data.dataset={data.dataset} is not prepared in {builder.data_dir}; "
            f"{_prepare(data)}"
        )
    splits = ", ".join(sorted(builder.info.splits))
    return (
        f"data.{split}={name}: no such split of {data.dataset} (it has {splits}); set "
        f"data.{split}"
    )


def _prepare(data):
    command = (
        "prepare it as array_record: python -m launch.data download "
        f"--config.data.dataset={data.dataset}"
    )
    if data.directory:
        command += f" --config.data.directory={data.directory}"
    return command


def _text(text) -> str:
    # Bytes that are no UTF-8 are named with their pair (`lines.fault`).
    return text.decode(errors="surrogateescape") if isinstance(text, bytes) else text


def _line(error):
    return str(error).strip().splitlines()[0]
