"""Data sets of Hugging Face's `datasets`: from the hub, or saved to a folder.

A row has the pair in a column `translation`, {"en": ..., "de": ...}, as translations on the
hub have, or in two columns that are named as the languages.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.data.lines import Bad, fault
from experiments.settings import HuggingFaceData

MISSING = (
    "data.corpus=huggingface needs the package datasets; install it with "
    "pip install '.[datasets]'"
)


class Source:
    """Reads the splits of a data set.

    Validation or test with the name of the training split is held out from that, see
    `heldout`.

    Raises:
      CorpusError: `datasets` is not installed, or there is no such data set, split or
        column. The message names it and the remedy.
    """

    def __init__(self, data: HuggingFaceData):
        if importlib.util.find_spec("datasets") is None:
            raise CorpusError(MISSING)
        self._name = data.dataset
        self._languages = (data.source, data.target)
        self._rows = {}
        names = dict(zip(SPLITS, (data.train, data.validation, data.test), strict=True))
        splits = _load(data)
        for split, name in names.items():
            if name not in splits:
                raise CorpusError(
                    f"{data.dataset} has no split {name!r} (it has {', '.join(splits)}); "
                    f"data.{split} names it"
                )
            self._rows[split] = splits[name]
            self._check_columns(splits[name])
        self._parts = Parts(self.undivided, names, data.heldout)

    def fingerprint(self) -> str:
        """Returns a hash of all text, which a data set's own name does not fix."""
        total = hashlib.sha256(repr(self._parts.options).encode())
        for split in SPLITS:
            # JSON says where texts and splits begin and end, which texts in a row would not.
            total.update(json.dumps(split).encode())
            for pairs in self.undivided(split):
                for pair in zip(*pairs, strict=True):
                    written = [getattr(text, "why", [text]) for text in pair]
                    total.update(json.dumps(written).encode())
        return total.hexdigest()

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split."""
        return self._parts.read(split)

    def place(self, split: str, i: int) -> str:
        """Returns the data set, its split and the number of a row."""
        return f"{self._name}, {split}, row {self._parts.number(split, i)}"

    def undivided(self, split: str) -> Iterator[Pairs]:
        """Gives all pairs of a split, those that are held out too."""
        rows = self._rows[split]
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            if "translation" in block:
                sides = [
                    [(pair or {}).get(language) for pair in block["translation"]]
                    for language in self._languages
                ]
            else:
                sides = [list(block[language]) for language in self._languages]
            yield Pairs(*(list(map(_text, side)) for side in sides))

    def _check_columns(self, rows):
        known = rows.column_names
        if "translation" in known:
            # The languages are the keys of the column's values.
            first = rows[0]["translation"] if len(rows) else {}
            known = list(first)
        for key, language in zip(("source", "target"), self._languages, strict=True):
            if language not in known:
                raise CorpusError(
                    f"{self._name} has no language {language!r} (it has "
                    f"{', '.join(known)}); data.{key} names it"
                )


def _text(value):
    # None, which stands for no text, or a number of a column of another kind.
    return Bad(why) if (why := fault(value)) else value


def _load(data):
    """Returns the splits of a data set by name."""
    # An extra, which few install.
    import datasets

    try:
        if (Path(data.dataset) / "dataset_dict.json").is_file():
            return datasets.load_from_disk(data.dataset)
        return datasets.load_dataset(data.dataset, data.subset or None)
    # The library raises errors of many kinds, of its own and of the network.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CorpusError(
            f"data.dataset={data.dataset}: {type(error).__name__}: {reason}; name a data set "
            "of the hub, with data.subset where it has several, or a folder that "
            "save_to_disk has written"
        ) from None
