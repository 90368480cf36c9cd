"""Translates lines with a trained model.

echo "3 days ago" | python -m launch.translate --workdir=runs/one --beam=4

Reads standard input, writes standard output: one translation a line, in order, an empty
line for an empty line. With --n_best=N, N lines for each line read,
score<TAB>translation, the best first; the score is the log-probability over the length
penalty ((5 + tokens) / 6)^alpha, and -inf stands where a line has fewer translations.
With --attention=looks.html one page shows, of the first lines, where each head looks.
"""

from experiments.system import huge_pages

if __name__ == "__main__":
    # Before the imports that take time, which would otherwise be done twice.
    huge_pages.restart_with_huge_pages()

import math
import sys
from pathlib import Path

from absl import flags

from launch import command

SHOWN = 50
"""Lines whose attention is shown: a page of more would be slow to open."""

_WORKDIR = command.define_workdir("The directory of a trained model")
_OUTSIDE = command.define_outside()
_BEAM = flags.DEFINE_integer(
    "beam",
    None,
    "Hypotheses kept, 1 for greedy; the trial's own setting if not given",
    lower_bound=1,
)
_ALPHA = flags.DEFINE_float(
    "alpha", None, "Length penalty; the trial's own setting if not given", lower_bound=0
)
_N_BEST = flags.DEFINE_integer(
    "n_best",
    0,
    "Translations of each line, with their scores; 0: the best, without",
    lower_bound=0,
)
_PREFIX = flags.DEFINE_string(
    "prefix", "", "Text that every translation must begin with"
)

_ATTENTION = flags.DEFINE_string(
    "attention",
    None,
    f"A page of HTML to write, with the attention of the first {SHOWN} lines",
)
flags.register_validator(
    "attention",
    lambda value: value is None or (bool(value.strip()) and not Path(value).is_dir()),
    "it is a directory; name a file to write, as looks.html",
)


def main():
    if sys.stdin is None:
        command.mistake(
            "standard input is closed, and has the lines to translate: give it a file, as "
            "in < lines.txt"
        )
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments.data.lines import read_lines
    from experiments.inference import Hypothesis, Translator
    from experiments.system import machine

    machine.use_compile_cache()
    command.load_outside(_OUTSIDE.value)
    n = _N_BEST.value
    translator = Translator(
        Path(_WORKDIR.value),
        beam=_BEAM.value,
        alpha=_ALPHA.value,
        n_best=max(1, n),
        prefix=_PREFIX.value,
    )
    # Without `errors` they would be strict again.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    lines = read_lines(sys.stdin.buffer)
    if unseen := translator.unseen(lines):
        print(f"note: {unseen}", file=sys.stderr)
    found = translator.n_best(lines)
    for hypotheses in found:
        if n == 0:
            print(hypotheses[0].text)
        filled = hypotheses + [Hypothesis(-math.inf, "")] * n
        for score, text in filled[:n]:
            print(f"{score:.4f}\t{text}")
    if _ATTENTION.value:
        # Last: where the page cannot be written, the translations are there.
        show_attention(translator, lines, [some[0].text for some in found])


def show_attention(translator, lines, texts):
    """Writes the page that --attention names."""
    from experiments.report.attention_page import attention_page
    from experiments.system.files import write_text

    shown = translator.attention(lines[:SHOWN], texts[:SHOWN])
    title = f"Attention of {_WORKDIR.value}"
    if not shown[0]:
        return print(
            "note: there is no line whose attention can be shown", file=sys.stderr
        )
    write_text(Path(_ATTENTION.value), attention_page(title, *shown))
    of = (
        f"the first {SHOWN} of {len(lines)}"
        if len(lines) > SHOWN
        else f"{len(shown[0])}"
    )
    print(f"attention of {of} lines: {_ATTENTION.value}", file=sys.stderr)


def cli() -> None:
    """Runs the command `attn-translate`."""
    # attn-translate imports this module, and so skips the call above.
    huge_pages.restart_with_huge_pages()
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
