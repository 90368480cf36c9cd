"""Scores trained models on text of any files.

python -m launch.evaluate --workdir=runs/own --source=new.en --reference=new.de

A line each; a language model needs --source alone, of a classifier references are labels.
Prints every metric with its signature, 95 % intervals over test sentences (the bootstrap of
Koehn 2004), and scores by length. With --against=DIR it compares two models on the same text,
by intervals of their difference: they say what this text decides, not what another seed
would. --to=DIR keeps what was written, and scores.json.
"""

from experiments.system import huge_pages

if __name__ == "__main__":
    # Before the imports that take time, which would otherwise be done twice.
    huge_pages.restart_with_huge_pages()

import json
from pathlib import Path

from absl import flags

from launch import command

_WORKDIR = command.define_workdir("The directory of a trained model")
_OUTSIDE = command.define_outside()
_SOURCE = flags.DEFINE_string(
    "source", None, "File of what the model reads, a text a line"
)
_REFERENCE = flags.DEFINE_string(
    "reference", None, "File of what it should write, likewise"
)
_AGAINST = flags.DEFINE_string("against", None, "Another trained model's directory")
_TO = flags.DEFINE_string("to", None, "Directory for translations.txt and scores.json")
_BEAM = flags.DEFINE_integer(
    "beam",
    None,
    "Hypotheses kept, 1 for greedy; the trial's own setting if not given",
    lower_bound=1,
)
_ALPHA = flags.DEFINE_float(
    "alpha", None, "Length penalty; the trial's own setting if not given", lower_bound=0
)


def main():
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments import scoring
    from experiments.data.lines import as_line
    from experiments.system import machine

    sources = read("source", _SOURCE.value)
    references = read("reference", _REFERENCE.value) if _REFERENCE.value else None
    if _TO.value:
        # A place that cannot be written to is known before minutes of scoring.
        Path(_TO.value).mkdir(parents=True, exist_ok=True)
    machine.use_compile_cache()
    command.load_outside(_OUTSIDE.value)
    options = dict(beam=_BEAM.value, alpha=_ALPHA.value)
    places = [_WORKDIR.value, *([_AGAINST.value] if _AGAINST.value else [])]
    found = [
        scoring.score(Path(place), sources, references, **options) for place in places
    ]
    print(f"{len(sources):,} texts of {_SOURCE.value}")
    for one in found:
        print(f"\n{one.workdir}")
        for line in scoring.lines_of(one):
            print(f"  {line}")
    if len(found) == 2:
        print(f"\n{found[0].workdir} minus {found[1].workdir}")
        for line in scoring.differences(*found):
            print(f"  {line}")
    if _TO.value:
        directory = Path(_TO.value)
        texts = "".join(as_line(text) + "\n" for text in found[0].texts)
        (directory / "translations.txt").write_text(texts, "utf-8")
        record = json.dumps(scoring.as_json(found), indent=1, ensure_ascii=False)
        (directory / "scores.json").write_text(record + "\n", "utf-8")
        print(f"\n{directory}/translations.txt, {directory}/scores.json")


def read(flag: str, name: str) -> list[str]:
    """Returns the lines of a file."""
    from experiments.data.lines import read_lines

    try:
        with Path(name).open("rb") as file:
            return read_lines(file)
    except OSError as error:
        command.mistake(f"--{flag}={name}: cannot be read ({error.strerror})")


def cli() -> None:
    """Runs the command `attn-evaluate`."""
    # attn-evaluate imports this module, and so skips the call above.
    huge_pages.restart_with_huge_pages()
    command.start(main, required=("workdir", "source"))


if __name__ == "__main__":
    cli()
