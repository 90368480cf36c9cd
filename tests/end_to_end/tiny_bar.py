"""`launch.bar` with two tasks of a few steps, and entries in a folder of the environment's.

BAR_ENTRIES=DIR python -m tests.end_to_end.tiny_bar positions=alibi --workdir=DIR
"""

import dataclasses
import os
from pathlib import Path

from experiments.bar import logs, rules, show
from experiments.system import huge_pages

if __name__ == "__main__":
    huge_pages.restart_with_huge_pages()


def shrink():
    """Makes the small size one of seconds; settings reach the workers by files."""
    tiny = dict(steps=52, batch_size=2, pairs=200)
    recall, copy = rules.SMALL[0], rules.SMALL[3]
    rules._TASKS["small"] = tuple(
        dataclasses.replace(task, **tiny) for task in (recall, copy)
    )
    rules._MODELS["small"].update(N=1, d_model=8, d_ff=64, h=2, d_k=4, d_v=4)
    rules.RATES = (0.001, 0.01)
    rules.LOOKS = {1: 0.002, 2: 0.008}
    rules.BASE_SEEDS = 2
    folder = Path(os.environ["BAR_ENTRIES"])
    logs.FOLDER = folder
    show.README = folder / "README.md"


if __name__ == "__main__":
    shrink()
    from launch import bar

    bar.cli()
