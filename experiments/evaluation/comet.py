"""COMET, a learned metric (Rei et al. 2022), by the command comet-score.

    python -m launch.train --config=quick --workdir=runs/comet \\
      --config.evaluation.metric=experiments.evaluation.comet:COMET

The package unbabel-comet needs an older numpy than this project, so it has an environment
of its own, from which its command is on the PATH: `pipx install unbabel-comet`. Its first
call downloads the model, about 2 GB. Another model is another metric, in a file of yours:

    from experiments.evaluation.comet import comet
    XXL = comet("Unbabel/XCOMET-XXL", key="xcomet")
"""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from experiments.errors import UserError
from experiments.evaluation.metrics import Metric, Texts, detokenize, mean_of_sums

COMMAND = "comet-score"

MISSING = (
    f"COMET needs the command {COMMAND}; install it with pipx install unbabel-comet, or "
    "put the bin folder of its environment on the PATH"
)


def comet(model: str, key: str = "comet", gpus: int = 0) -> Metric:
    """Returns the metric of a COMET model: a name on the hub, or the path of a .ckpt.

    The score of a corpus is the mean over its sentences. Without `gpus` it runs on the CPU,
    as the accelerator's memory belongs to training. It is computed at the end alone.
    Raises UserError where comet-score is not installed.
    """
    if shutil.which(COMMAND) is None:
        raise UserError(MISSING)

    def of_sentences(translations, references, tokens_of, sources):
        if tokens_of:
            translations = detokenize(translations, tokens_of)
            references = detokenize(references, tokens_of)
        texts = (tuple(sources), tuple(translations), tuple(references))
        return np.array(_scores(model, gpus, texts), np.float64)

    def of_corpus(translations, references, tokens_of, sources):
        scores = of_sentences(translations, references, tokens_of, sources)
        return float(scores.mean())

    return Metric(
        key=key,
        heading="COMET" if key == "comet" else key,
        decimals=3,
        difference_decimals=3,
        needs_source=True,
        while_training=False,
        signature=lambda tokens_of: f"{COMMAND}|model:{model}",
        of_corpus=of_corpus,
        of_sentences=of_sentences,
        of_sums=mean_of_sums,
    )


# The corpus and its sentences are asked for one after the other, and a call takes minutes.
@functools.lru_cache(maxsize=4)
def _scores(model: str, gpus: int, texts: tuple[Texts, Texts, Texts]) -> list[float]:
    """Returns the score of each sentence. Raises UserError where comet-score fails."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("source", "translation", "reference")]
        for path, lines in zip(paths, texts, strict=True):
            path.write_text("".join(_line(line) + "\n" for line in lines), "utf-8")
        output = Path(folder, "scores.json")
        source, translation, reference = map(str, paths)
        call = [COMMAND, "-s", source, "-t", translation, "-r", reference]
        call += ["--model", model, "--gpus", str(gpus), "--quiet", "--only_system"]
        # Of our environment it must see nothing, or it would import our packages.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [*call, "--to_json", str(output)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode or not output.is_file():
            last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
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


COMET = comet("Unbabel/wmt22-comet-da")
"""Reference-based COMET of 2022, from about 0.3 to 1."""
