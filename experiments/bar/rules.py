"""What the bar fixes: its tasks, models, optimizer, rates and seeds, in two sizes.

    python -m launch.sweep --config=experiments/bar/rules.py:small --sweep=tasks,rate --seeds=8 \
      --workdir=runs/bar-base

trains base, which `python -m launch.bar` does for an entry and then judges it. README.md says
what the rules are for; VERSION rises whenever equal entries would have other numbers.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from experiments.configs import quick
from experiments.settings import TASKS, override

VERSION = 1

RATES = (0.001, 0.003, 0.009)
"""Learning rates that each seed is trained at; its run is that of the best on validation."""

LOOKS = {4: 0.002, 8: 0.008}
"""Seeds, and the level at which an entry is then seen to be worse: 1 % together. Who is worse
than record and base after the first look is not trained further."""
LEVEL = 0.01
"""The level at which an entry is better, after all seeds; of its tasks, of all seven."""
BASE_SEEDS = 16
"""Seeds of base, with which all are compared."""

SIZES = ("small", "device")
TOLERANCE = 0.01
"""By which share the parameters of an entry may differ from those of base."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Holds a task of the bar."""

    name: str
    what: str
    """What it asks of attention, in a few words."""
    data: Mapping[str, Any]
    metric: str = "accuracy"
    """The key of a result.json that counts."""
    unit: str = "%"
    better: int = 1
    """1 where more is better, -1 where less is."""
    kind: str = "language"
    weight: int = 1
    steps: int = 500
    batch_size: int = 32
    pairs: int = 16_000
    """Texts to train on."""

    def shown(self, value: float) -> float:
        """Returns a value of the metric in `unit`."""
        return 100 * value if self.unit == "%" else value

    def point(self) -> dict[str, Any]:
        """Returns the point of a sweep that has the task."""
        training = {
            "training.steps": self.steps,
            "training.batch_size": self.batch_size,
            "training.evaluate_every": self.steps,
        }
        own = {"pairs": self.pairs, **self.data}
        data = {f"data.{name}": value for name, value in own.items()}
        point = {"label": self.name, "model.kind": self.kind, **data, **training}
        longest = (
            self.data.get("max_length")
            or TASKS[self.data["corpus"]](**self.data).max_length
        )
        return point | {
            "training.sequence_length": longest,
            "evaluation.max_length": longest,
        }


SMALL = (
    Task(
        "recall",
        "eight keys, each asked once",
        dict(corpus="recall", length=32, key_values=8, symbols=32),
        steps=400,
    ),
    Task(
        "A5",
        "products of permutations, on words twice as long as trained",
        dict(
            corpus="words", group="a5", letters="generators", length=12, test_length=24
        ),
    ),
    Task(
        "flip-flop",
        "the last bit written, on texts twice as long, 98 of 100 steps to ignore",
        dict(corpus="flipflop", length=48, test_length=96, test_ignore=0.98),
        batch_size=16,
        steps=400,
    ),
    Task(
        "copy",
        "up to 8 symbols, and up to 32 in the test",
        dict(corpus="copy", length=8, test_length=32),
    ),
    Task(
        "selective copy",
        "six symbols among 24 places",
        dict(corpus="selective_copy", length=24, items=6),
    ),
    Task(
        "translation",
        "CLDR, English to German",
        dict(corpus="cldr", max_length=48),
        metric="exact_match",
        kind="transformer",
        steps=150,
    ),
    Task(
        "characters",
        "CLDR, German",
        dict(
            corpus="cldr", max_length=64, vocabulary="characters", vocabulary_size=400
        ),
        metric="test_bits_per_character",
        unit="bits",
        better=-1,
        steps=200,
    ),
)

DEVICE = (
    dataclasses.replace(
        SMALL[0],
        what="32 keys, each asked once, among 512 symbols",
        data=dict(corpus="recall", length=256, key_values=32, symbols=512),
    ),
    dataclasses.replace(
        SMALL[1],
        data=dict(
            corpus="words", group="a5", letters="generators", length=24, test_length=48
        ),
    ),
    dataclasses.replace(
        SMALL[2],
        what="the last bit written, on texts four times as long, 98 of 100 to ignore",
        data=dict(corpus="flipflop", length=128, test_length=512, test_ignore=0.98),
    ),
    dataclasses.replace(
        SMALL[3],
        what="up to 16 symbols, and up to 128 in the test",
        data=dict(corpus="copy", length=16, test_length=128),
    ),
    dataclasses.replace(
        SMALL[4],
        what="16 symbols among 128 places",
        data=dict(corpus="selective_copy", length=128, items=16),
    ),
    SMALL[5],
    dataclasses.replace(
        SMALL[6],
        data=dict(
            corpus="cldr", max_length=128, vocabulary="characters", vocabulary_size=400
        ),
    ),
)
"""The same on longer texts."""
DEVICE = tuple(
    dataclasses.replace(task, steps=1000, batch_size=32, pairs=32_000)
    for task in DEVICE
)

_TASKS = {"small": SMALL, "device": DEVICE}
_MODELS = {
    "small": dict(N=2, d_model=64, d_ff=256, h=4, d_k=16, d_v=16),
    "device": dict(N=4, d_model=128, d_ff=512, h=4, d_k=32, d_v=32),
}
BASE = MappingProxyType(dict(norm="pre", positions="rotary", P_drop=0.0))
"""The model of base beside its sizes: a decoder before 2026, of which one thing changes."""


def tasks_of(size: str) -> tuple[Task, ...]:
    """Returns the tasks of a size. Raises ValueError for an unknown one."""
    if size not in _TASKS:
        raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
    return _TASKS[size]


def get_config(size="small"):
    (task, *_) = tasks_of(size)
    config = override(
        quick.get_config(),
        {"model.kind": task.kind, "data.corpus": task.data["corpus"]},
    )
    config.model.update(**_MODELS[size], **BASE)
    config.data.update(heldout=500)
    config.training.update(
        optimizer="adamw(weight_decay=0.1)",
        schedule="cosine(warmup=50)",
        clip=1.0,
        eps_ls=0.0,
        log_every=50,
        save_every=1000,
    )
    config.evaluation.sentences = 500
    return config


def size_of(config) -> str:
    """Returns the size whose models a config has, as a config does not keep its name."""
    return next(s for s in SIZES if _MODELS[s]["d_model"] == config.model.d_model)


def sweep_tasks(config):
    """The tasks of the config's size."""
    for task in tasks_of(size_of(config)):
        yield task.point()


def sweep_rate():
    """The learning rates of each seed."""
    for rate in RATES:
        yield {"training.learning_rate": rate}
