"""Parallel text files: line i of `train.en` is translated by line i of `train.de`; plain or gzipped, UTF-8.

Only a newline, with or without a carriage return before it, ends a line. Characters that Unicode also counts as line
breaks (U+2028, U+0085, form feed) occur within sentences of real corpora, and splitting at them would shift every
pair after.
"""

import gzip
import zlib
from pathlib import Path

from experiments.corpora import SPLITS, Corpus, CorpusError, Pairs

_BOM = b"\xef\xbb\xbf"


def read(directory: str, source: str, target: str, train: str, validation: str, test: str) -> Corpus:
    """Reads `<directory>/<train>.<source>` or `<train>.<source>.gz`, `<train>.<target>`, and so on.

    Pairs with an empty side are dropped; `counts["train_empty"]`, `counts["validation_empty"]` and
    `counts["test_empty"]` say how many.

    Raises:
        CorpusError: a missing or empty file, files of unequal length, invalid UTF-8, a NUL character. The message
            names the file, the line where there is one, and what to do.
    """
    splits, counts = [], {}
    for split, stem in zip(SPLITS, (train, validation, test), strict=True):
        pairs = _pairs(Path(directory), stem, source, target)
        kept = [(s, t) for s, t in zip(*pairs, strict=True) if s.strip() and t.strip()]
        if not kept:
            raise CorpusError(f"{directory}/{stem}: every pair of {source} and {target} has an empty side; give text")
        splits.append(Pairs(*map(list, zip(*kept, strict=True))))
        counts[split], counts[f"{split}_empty"] = len(kept), len(pairs.source) - len(kept)
    return Corpus(*splits, counts)


def _pairs(directory, stem, source, target) -> Pairs:
    paths = [_find(directory, f"{stem}.{language}") for language in (source, target)]
    sides = [_lines(path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise CorpusError(
            f"{paths[0]} has {len(sides[0])} lines but {paths[1]} has {len(sides[1])}; "
            "line i of one must translate line i of the other"
        )
    return Pairs(*sides)


def _find(directory, name) -> Path:
    if not directory.is_dir():
        raise CorpusError(f"{directory}: no such folder; data.directory must hold the text files")
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    there = ", ".join(sorted(path.name for path in directory.iterdir() if path.is_file())) or "no files"
    raise CorpusError(
        f"{directory / name}: no such file, plain or .gz (the folder has {there}); "
        "data.train, data.validation and data.test name the files, data.source and data.target their endings"
    )


def _lines(path) -> list[str]:
    data = _bytes(path).removeprefix(_BOM)
    if not data:
        raise CorpusError(f"{path}: the file is empty; give one sentence a line")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}:{_line(data, error.start)}: invalid UTF-8 (byte 0x{data[error.start]:02x}); convert it to UTF-8"
        ) from None
    if "\0" in text:
        raise CorpusError(f"{path}:{_line(data, data.index(0))}: NUL character; is this a text file? Remove it")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _bytes(path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: damaged or no gzip file ({error}); compress it again") from None


def _line(data, index) -> int:
    return data.count(b"\n", 0, index) + 1
