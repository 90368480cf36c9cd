"""Translates lines with a trained model.

echo "3 days ago" | python -m launch.translate --workdir=runs/one

Reads standard input, writes standard output: one translation a line, in order, an empty line for an empty line.
"""

import sys
from pathlib import Path

from experiments import machine
from launch import command

_WORKDIR = command.define_workdir()


def main():
    from experiments.translation import Translator

    machine.use_compile_cache()
    translator = Translator(Path(_WORKDIR.value))
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        lines = [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        command.mistake(f"the input is no UTF-8: {error}")
    for translation in translator(lines):
        print(translation)


if __name__ == "__main__":
    machine.restart_with_huge_pages()
    command.start(main)
