"""What the settings of all corpora have in common."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Data:
    """Holds the settings that every corpus has."""

    corpus: str
    """Where the text comes from. cldr: generated phrases; files: a text file for each
    language; tsv, csv, jsonl: files of rows; text: a text file without translations; tfds,
    huggingface: a data set of TensorFlow Datasets or Hugging Face; file.py:Name: a custom
    corpus; the others: generated tasks, see data/corpora/tasks.py."""

    has_translations: ClassVar[bool] = True
    """False for text of one language, which only a language model can use."""
    labelled: ClassVar[bool] = False
    """True where the target has the answer to each symbol of the source in its place, "_"
    where none is asked: a language model reads the source and gives those answers."""
    sides: ClassVar[tuple[str, ...]] = ("text",)
    """Names of source and target, or of the one text."""
    # Every corpus has these two, as a setting or as what follows from others.
    vocabulary_size: ClassVar[int]
    max_length: ClassVar[int]

    def check(self) -> None:
        """Raises SettingsError for settings that contradict each other."""

    @property
    def bad_lines(self) -> str:
        """What follows where lines cannot be read; a setting of text that people wrote."""
        return "stop"

    @property
    def language(self) -> str:
        """The language of the target, as "de" or "zh_Hans"; "" where it has none."""
        return ""

    @property
    def has_answers(self) -> bool:
        """Whether targets are answers, each word right or wrong, and no translations."""
        return self.labelled

    @property
    def has_set_vocabulary(self) -> bool:
        """Whether `vocabulary_size` is the size; else the corpus decides once it is read."""
        return True

    @property
    def tokenized_language(self) -> str:
        """The language of the target where the text is in Moses tokens, otherwise ""."""
        return ""
