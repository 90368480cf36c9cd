"""Writes texts with a trained language model.

python -m launch.sample --workdir=runs/language --count=5 --beginning="In the"
--temperature=0.8 --top_p=0.95

Writes to standard output, a text a line; with --scores, log-probability<TAB>text. Each
token is drawn from softmax(logits / temperature), cut to the top_k likeliest tokens,
and to the fewest whose probabilities sum to top_p.
"""

from experiments.system import huge_pages

if __name__ == "__main__":
    # Before the imports that take time, which would otherwise be done twice.
    huge_pages.restart_with_huge_pages()

import sys
from pathlib import Path

from absl import flags

from launch import command

_WORKDIR = command.define_workdir("The directory of a trained language model")
_OUTSIDE = command.define_outside()
_COUNT = flags.DEFINE_integer(
    "count", 5, "How many texts", lower_bound=1, upper_bound=100_000
)
_BEGINNING = flags.DEFINE_string("beginning", "", "What every text begins with")
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Of all chance: the same seed writes the same",
    lower_bound=0,
    upper_bound=2**63 - 1,
)
_MOST = flags.DEFINE_integer(
    "most",
    None,
    "Tokens of a text at most; the trial's evaluation.max_length if not given",
    lower_bound=1,
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature",
    1.0,
    "0 for the likeliest token always",
    lower_bound=0,
    upper_bound=1e6,
)
flags.register_validator(
    "temperature", lambda value: value == value, "a number, not NaN"
)
_TOP_K = flags.DEFINE_integer(
    "top_k",
    0,
    "Number of likeliest tokens to draw from; 0 for all",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
_TOP_P = flags.DEFINE_float(
    "top_p",
    1.0,
    "Only the likeliest tokens that together have this probability",
    lower_bound=0,
    upper_bound=1,
)
_SCORES = flags.DEFINE_boolean(
    "scores", False, "Begin each line with the text's log-probability"
)


def main():
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments.inference import Sampler
    from experiments.system import machine

    machine.use_compile_cache()
    # Before the model, whose settings may name it.
    command.load_outside(_OUTSIDE.value)
    sampler = Sampler(Path(_WORKDIR.value))
    # Whatever the locale says: a pipe gets what the model was trained on. Without `errors`
    # they would be strict again.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    for log_prob, text in sampler(
        _COUNT.value,
        beginning=_BEGINNING.value,
        seed=_SEED.value,
        max_length=_MOST.value,
        temperature=_TEMPERATURE.value,
        top_k=_TOP_K.value,
        top_p=_TOP_P.value,
    ):
        print(f"{log_prob:.4f}\t{text}" if _SCORES.value else text)


def cli() -> None:
    """Runs the command `attn-sample`."""
    # attn-sample imports this module, and so skips the call above.
    huge_pages.restart_with_huge_pages()
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
