"""COMET, a learned metric (Rei et al. 2022), by the command comet-score.

    python -m launch.train --config=quick --workdir=runs/comet \\
      --config.evaluation.metric=experiments.evaluation.comet:COMET

The package unbabel-comet needs an older numpy than this project, so it has an environment
of its own, from which its command is on the PATH: `pipx install unbabel-comet`. Its first
call downloads the model, about 2 GB. Another model is an option:
COMET(model="Unbabel/XCOMET-XXL").
"""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from experiments.errors import UserError
from experiments.evaluation.metrics import Metric, detokenized

COMMAND = "comet-score"

MISSING = (
    f"COMET needs the command {COMMAND}; install it with pipx install unbabel-comet, or "
    "put the bin folder of its environment on the PATH"
)


@dataclasses.dataclass(frozen=True)
class COMET(Metric):
    """The mean of a COMET model's scores: from about 0.3 to 1 for that of 2022.

    `model` is a name on the hub, or the path of a .ckpt. Without `gpus` it runs on the CPU,
    as the accelerator's memory belongs to training. It is computed at the end alone.
    Raises ValueError where comet-score is not installed.
    """

    key = "comet"
    heading = "COMET"
    decimals = difference_decimals = 3
    targets = ("texts",)
    while_training = False

    model: str = "Unbabel/wmt22-comet-da"
    gpus: int = 0

    def __post_init__(self):
        if shutil.which(COMMAND) is None:
            raise ValueError(MISSING)

    def of_sentences(self, texts):
        plain = detokenized(texts) if texts.tokens_of else texts
        parts = (plain.sources, plain.translations, plain.references)
        return np.array(_scores(self.model, self.gpus, tuple(map(tuple, parts))), float)

    def signature(self, tokens_of):
        return f"{COMMAND}|model:{self.model}"


# The corpus and its sentences are asked for one after the other, and a call takes minutes.
@functools.lru_cache(maxsize=4)
def _scores(model: str, gpus: int, texts: tuple[tuple[str, ...], ...]) -> list[float]:
    """Returns the score of each sentence. Raises UserError where comet-score fails."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("source", "translation", "reference")]
        for path, lines in zip(paths, texts, strict=True):
            path.write_text("".join(_line(line) + "\n" for line in lines), "utf-8")
        output = Path(folder, "scores.json")
        source, translation, reference = map(str, paths)
        call = [COMMAND, "-s", source, "-t", translation, "-r", reference]
        call += ["--model", model, "--gpus", str(gpus), "--quiet", "--only_system"]
        # With our PYTHONPATH it would import our packages.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [*call, "--to_json", str(output)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode or not output.is_file():
            last = done.stderr.strip().splitlines()[-1:] or ["without a message"]
            raise UserError(
                f"{COMMAND} --model {model} failed ({last[0]}): run it by hand, or set "
                "evaluation.metric=none, and the same command goes on from here"
            )
        # One list of sentences for the one file of translations.
        (sentences,) = json.loads(output.read_text("utf-8")).values()
    return [sentence["COMET"] for sentence in sentences]


def _line(sentence):
    # comet-score ends a line at these too, and strips it.
    return " ".join(sentence.split()) or "."
