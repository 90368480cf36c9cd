"""What the settings of all corpora have in common."""

import dataclasses
from typing import ClassVar

from experiments.objectives import Objective, Translate


@dataclasses.dataclass(frozen=True)
class Data:
    """Holds the settings that every corpus has."""

    corpus: str
    """Where the text comes from. cldr: generated phrases; files: a text file for each
    language; tsv, csv, jsonl: files of rows; text: a text file without translations; tfds,
    huggingface: a data set of TensorFlow Datasets or Hugging Face; file.py:Name: a custom
    corpus; the others: generated tasks, see data/corpora/tasks.py."""

    asked: ClassVar[Objective] = Translate()
    """What is asked of a model."""
    sides: ClassVar[tuple[str, ...]] = ("text",)
    """Names of source and target, or of the one text."""
    # Every corpus has these two, as a setting or as what follows from others.
    vocabulary_size: ClassVar[int]
    max_length: ClassVar[int]

    @property
    def longest(self) -> int:
        """The most tokens of a text of any split, end mark included, as far as it is known."""
        return self.max_length

    def check(self) -> None:
        """Raises SettingsError for settings that contradict each other."""

    @property
    def bad_lines(self) -> str:
        """What follows where lines cannot be read; a setting of text that people wrote."""
        return "stop"

    @property
    def vocabulary(self) -> str:
        """Where the vocabulary comes from; a setting of natural language."""
        return "bpe"

    @property
    def language(self) -> str:
        """The language of the target, as "de" or "zh_Hans"; "" where it has none."""
        return ""

    @property
    def has_set_vocabulary(self) -> bool:
        """Whether the numbers of tokens and labels are set; else the corpus decides them."""
        return self.asked.targets != "labels" and self.vocabulary == "bpe"

    @property
    def labels(self) -> int:
        """The labels there are, at least where targets are such; a guess until they are read."""
        return 2 if self.asked.targets == "labels" else 0

    @property
    def chance(self) -> float | None:
        """The accuracy (0 to 1) of a guess among what may be the answer; None where unknown."""
        return None

    @property
    def tokenized_language(self) -> str:
        """The language of the target where the text is in Moses tokens, otherwise ""."""
        return ""
