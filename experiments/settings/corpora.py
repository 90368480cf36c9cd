"""Settings of the data: a dataclass for each corpus; those of tasks are in `tasks`.

Their readers are in `experiments.data.corpora`. On the command line all are `data.NAME`.
"""

import dataclasses
from typing import ClassVar

from experiments.objectives import Continue, Objective
from experiments.settings import fields
from experiments.settings.choices import OBJECTIVES, SOURCES, Choice, choice
from experiments.settings.data import Data
from experiments.settings.fields import require
from experiments.settings.tasks import TASKS

SMALLEST_VOCABULARY = 361
"""Control tokens, single bytes, pairs of digits and the blank: what a text of digits has."""


@dataclasses.dataclass(frozen=True)
class LanguageData(Data):
    """Holds the settings of natural language, whose vocabulary is trained on its text."""

    vocabulary: str = fields.path("bpe")
    """Where the tokens come from, which both languages share. bpe: trained on the training
    text; characters: each of its characters; or a file of sentencepiece, or a trained model's
    directory."""
    vocabulary_size: int = fields.at_least(SMALLEST_VOCABULARY, 800, 10**6)
    """Tokens of a trained vocabulary, the most that one of characters may have, and a guess
    where it is another model's."""
    max_length: int = fields.at_least(2, 48, 2**20)
    """Longest sentence, in tokens with the end mark. Training pairs with a longer side are
    dropped and counted; corpus=text cuts longer lines into parts."""


@dataclasses.dataclass(frozen=True)
class WrittenData(LanguageData):
    """Holds the settings of text that people wrote, some lines of which may be bad."""

    bad_lines: str = fields.one_of(("stop", "skip"), "stop")
    """What to do with lines that cannot be read, such as invalid UTF-8, a row with another
    number of columns or a missing text. stop: raise an error, once all is read, that counts
    them and names the first five; skip: leave their pairs out, with a warning."""


@dataclasses.dataclass(frozen=True)
class ParallelData(LanguageData):
    """Holds the settings of all corpora of translations."""

    source: str = fields.name("en")
    """Language of the source: a CLDR locale, or the ending of the file `train.en`."""
    target: str = fields.name("de")
    """Language of the target, likewise. It chooses the tokenizer of BLEU."""

    @property
    def sides(self) -> tuple[str, ...]:
        return (self.source, self.target)

    @property
    def language(self) -> str:
        return self.target

    def check(self) -> None:
        require(
            self.source != self.target,
            f"data.source and data.target are both {self.source!r}",
        )


@dataclasses.dataclass(frozen=True)
class CldrData(ParallelData):
    """Holds the settings of phrases that are generated from CLDR, the default corpus."""

    corpus: str = fields.one_of(("cldr",), "cldr")
    pairs: int = fields.at_least(100, 40_000, 10**7)
    """Distinct training pairs to generate."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Pairs to generate for validation, and as many for the test."""
    concatenate: int = fields.at_least(1, 1, 64)
    """Number of held-out pairs in a row that are joined into one, at most; above 1, training
    joins one or two. It tests sentences longer than those of training, with fewer pairs."""
    # It is not the trial's seed, so that trials of all seeds have one corpus.
    corpus_seed: int = fields.at_least(0, 0)
    """Seed of the texts."""


@dataclasses.dataclass(frozen=True)
class RealData(ParallelData, WrittenData):
    """Holds the settings of translations, or answers, that people wrote."""

    tokenized: bool = fields.flag(False)
    """Whether the text is in Moses tokens already. BLEU is then of these tokens, and
    `bleu_detokenized` of both sides detokenised."""

    objective: str = choice(OBJECTIVES, "translate")
    """What is asked of a model. translate: to write the target, or, of a language model, to
    continue it; write: as translate, but targets are answers, which have accuracy and neither
    BLEU nor chrF; answer: an answer or _ in the target for each word of the source; label: to
    give a label to the source, the whole target."""

    @property
    def asked(self) -> Objective:
        return OBJECTIVES.value(self.objective, "data.objective")

    @property
    def tokenized_language(self) -> str:
        return self.target if self.tokenized else ""


@dataclasses.dataclass(frozen=True)
class FilesData(RealData):
    """Holds the settings of parallel text files: a line translates the same line."""

    corpus: str = fields.one_of(("files",), "files")
    directory: str = fields.directory("")
    """Folder of `train.en`, `train.de` and so on, plain or .gz; required."""
    train: str = fields.name("train")
    """Name of the training files, without the language."""
    validation: str = fields.name("val")
    """Name of the validation files, without the language."""
    test: str = fields.name("test")
    """Name of the test files, without the language."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Pairs held out from training where `validation` or `test` has the name of `train`. Pairs
    that share a sentence stay together, so there may be fewer."""

    def check(self) -> None:
        super().check()
        _require_directory(self)


@dataclasses.dataclass(frozen=True)
class TableData(RealData):
    """Holds the settings of files of rows, of which two columns are used."""

    directory: str = fields.directory("")
    """Folder of the files, plain or .gz; required."""
    train: str = fields.name("train.tsv")
    """Name of the training file."""
    validation: str = fields.name("val.tsv")
    """Name of the validation file."""
    test: str = fields.name("test.tsv")
    """Name of the test file."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Pairs held out from training where `validation` or `test` has the name of `train`. Pairs
    that share a sentence stay together, so there may be fewer."""
    source_column: str = fields.column("0")
    """Column of the source: its number from 0 on, or its name in the files' first line."""
    target_column: str = fields.column("1")
    """Column of the target, likewise."""

    has_header: ClassVar[bool] = False
    """Whether the first row of a file names the columns, and is no pair."""
    delimiter: ClassVar[str] = "tab"

    def check(self) -> None:
        super().check()
        _require_directory(self)
        require(
            self.source_column != self.target_column,
            f"data.source_column and data.target_column are both {self.source_column!r}",
        )


@dataclasses.dataclass(frozen=True)
class HeaderData(TableData):
    """Holds the settings of files of rows that may begin with a header."""

    header: bool = fields.flag(False)
    """Whether the first row names the columns, as it must where a column is given by name."""

    @property
    def has_header(self) -> bool:
        columns = (self.source_column, self.target_column)
        return self.header or not all(map(is_number, columns))


@dataclasses.dataclass(frozen=True)
class TsvData(HeaderData):
    """Holds the settings of files with tab-separated columns, in which quotes are text."""

    corpus: str = fields.one_of(("tsv",), "tsv")


@dataclasses.dataclass(frozen=True)
class CsvData(HeaderData):
    """Holds the settings of CSV files, whose fields may stand in double quotes."""

    corpus: str = fields.one_of(("csv",), "csv")
    train: str = fields.name("train.csv")
    """Name of the training file."""
    validation: str = fields.name("val.csv")
    """Name of the validation file."""
    test: str = fields.name("test.csv")
    """Name of the test file."""
    delimiter: str = fields.one_of(("comma", "semicolon", "tab"), "comma")
    """The character between columns."""


@dataclasses.dataclass(frozen=True)
class JsonLinesData(TableData):
    """Holds the settings of files with an object of JSON on each line."""

    corpus: str = fields.one_of(("jsonl",), "jsonl")
    train: str = fields.name("train.jsonl")
    """Name of the training file."""
    validation: str = fields.name("val.jsonl")
    """Name of the validation file."""
    test: str = fields.name("test.jsonl")
    """Name of the test file."""
    source_column: str = fields.column("source")
    """Key of the source."""
    target_column: str = fields.column("target")
    """Key of the target."""


@dataclasses.dataclass(frozen=True)
class TextData(WrittenData):
    """Holds the settings of plain text without translations: a line is a text."""

    corpus: str = fields.one_of(("text",), "text")
    directory: str = fields.directory("")
    """Folder of the files, plain or .gz; required."""
    train: str = fields.name("train")
    """Name of the training file."""
    validation: str = fields.name("val")
    """Name of the validation file."""
    test: str = fields.name("test")
    """Name of the test file."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Lines held out for validation, and as many for the test, from the end of the file,
    where all three are the same file."""
    lines: str = fields.one_of(("texts", "stream"), "texts")
    """What lines are. texts: each is a text by itself; stream: all are one text, in which ↵
    stands for a line's end, and parts of data.max_length tokens go on from line to line."""

    asked: ClassVar[Objective] = Continue()

    def check(self) -> None:
        _require_directory(self)


@dataclasses.dataclass(frozen=True)
class TfdsData(RealData):
    """Holds the settings of a data set of TensorFlow Datasets."""

    corpus: str = fields.one_of(("tfds",), "tfds")
    dataset: str = fields.matching(
        "",
        "a data set of TFDS, as wmt14_translate/de-en",
        # name/config:version, as TFDS writes it.
        r"(\w+(/[\w-]+)?(:[\w.*]+)?)?",
    )
    """Name of the data set, such as wmt14_translate/de-en; required."""
    directory: str = fields.directory("")
    """TFDS's data_dir; "" for its default."""
    train: str = fields.name("train")
    """Split for training, such as train[:10%]."""
    validation: str = fields.name("validation")
    """Split for validation."""
    test: str = fields.name("test")
    """Split for the test."""

    def check(self) -> None:
        super().check()
        require(
            self.dataset,
            f"data.dataset={self.dataset!r}: data.corpus=tfds needs the name of a data set, "
            "such as wmt14_translate/de-en",
        )


@dataclasses.dataclass(frozen=True)
class HuggingFaceData(RealData):
    """Holds the settings of a data set of Hugging Face's `datasets`."""

    corpus: str = fields.one_of(("huggingface",), "huggingface")
    dataset: str = fields.directory("")
    """Name of the data set on the hub, such as wmt/wmt14, or a folder that save_to_disk has
    written; required. Its rows have a column `translation`, or a column a language."""
    subset: str = fields.directory("")
    """Name of the part of the data set, such as de-en; "" for none."""
    train: str = fields.name("train")
    """Split for training."""
    validation: str = fields.name("validation")
    """Split for validation."""
    test: str = fields.name("test")
    """Split for the test."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Pairs held out from training where `validation` or `test` has the name of `train`. Pairs
    that share a sentence stay together, so there may be fewer."""

    def check(self) -> None:
        super().check()
        require(
            self.dataset,
            f"data.dataset={self.dataset!r}: data.corpus=huggingface needs the name of a data "
            "set, such as wmt/wmt14, or a folder",
        )


@dataclasses.dataclass(frozen=True)
class OutsideData(RealData):
    """Holds the settings of a custom corpus, which may have options of its own.

    It is named as `module:Name` or `file.py:Name(option=value)`, see
    `experiments.data.corpora.Source`.
    """

    corpus: str = choice(SOURCES, "")
    objective: str = choice(OBJECTIVES, "own", "own")
    """What is asked of a model, as for other corpora; own: what the corpus's class says by
    its attribute `objective`, translate where it has none."""

    @property
    def source_choice(self) -> Choice:
        """The class that reads the corpus, and its options."""
        return SOURCES.parse(self.corpus, "data.corpus")

    @property
    def asked(self) -> Objective:
        if self.objective != "own":
            return super().asked
        cls = self.source_choice.cls
        for name, meant in (("labelled", "answer"), ("answers", "write")):
            require(
                not hasattr(cls, name),
                f"data.corpus={self.corpus}: {name} = True is objective = {meant!r} now",
            )
        own = getattr(cls, "objective", "translate")
        return OBJECTIVES.value(own, f"data.corpus={self.corpus}: objective")

    def check(self) -> None:
        super().check()
        require(
            self.vocabulary == "bpe" or not self._has_symbols,
            f"data.vocabulary={self.vocabulary} does not apply: data.corpus={self.corpus} has "
            "symbols, which are its vocabulary",
        )

    @property
    def has_set_vocabulary(self) -> bool:
        return super().has_set_vocabulary and not self._has_symbols

    @property
    def _has_symbols(self):
        return hasattr(self.source_choice.cls, "symbols")


CORPORA = {
    "cldr": CldrData,
    "files": FilesData,
    "tsv": TsvData,
    "csv": CsvData,
    "jsonl": JsonLinesData,
    "text": TextData,
    "tfds": TfdsData,
    "huggingface": HuggingFaceData,
    **TASKS,
}
"""The corpora by name."""


def is_number(column: str) -> bool:
    """Returns whether a column is given by its number."""
    # isdigit alone also takes characters that int refuses, such as ².
    return column.isascii() and column.isdigit()


def _require_directory(data):
    require(
        # Every field here needs a default, so a path that is missing is "".
        data.directory,
        f"data.corpus={data.corpus} needs data.directory, the folder that holds the text "
        "files",
    )
