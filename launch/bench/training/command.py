"""Times a training step of the Transformer."""

from launch.bench.harness.run import timing
from launch.bench.training.case import CASE, LIBRARIES, NOTES, TINY

BENCHMARK = timing(
    "training",
    (CASE,),
    (TINY,),
    LIBRARIES,
    compared=tuple(name for name in LIBRARIES if name != "torch:compiled"),
    notes=NOTES,
)
