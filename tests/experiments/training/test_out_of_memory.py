"""What is said when memory was not enough."""

import jax.numpy as jnp
import pytest

from experiments.errors import OutOfMemoryError
from experiments.system.machine import is_out_of_memory
from experiments.training.out_of_memory import advice, explained
from experiments.trial import cost
from tests.experiments import tiny


def test_an_error_of_the_device_becomes_advice():
    with (
        pytest.raises(
            OutOfMemoryError,
            match=r"^out of memory: training needs about .* on each device",
        ),
        explained(tiny.resolve(), 1, 1),
    ):
        jnp.zeros(2**44).block_until_ready()
    with pytest.raises(KeyError), explained(tiny.resolve(), 1, 1):
        {}["x"]
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(
        RuntimeError("RESOURCE_EXHAUSTED")
    )


def test_advice_names_the_least_change_that_fits():
    def in_parts(parts):
        return tiny.resolve(
            training__batch_size=12,
            training__sequence_length=400,
            training__accumulate=parts,
        )

    settings = in_parts(1)
    by_parts = {parts: cost.memory(in_parts(parts)) for parts in (1, 4, 12)}
    assert "training.accumulate=4 should" in advice(settings, 1, 1, by_parts[4])
    assert "training.accumulate=6 should" in advice(settings, 1, 1, by_parts[4] - 1)
    assert "a smaller model" in advice(settings, 1, 1, by_parts[12] - 1)
    # Where the estimate was too low, the next that is less.
    assert "training.accumulate=2 should" in advice(settings, 1, 1, 10 * by_parts[1])
    assert "which has" not in advice(settings, 1, 1, None)
    # Two devices have half of the rows each: 6 rows have no 4 parts.
    on_two = cost.memory(in_parts(4), 2)
    assert "training.accumulate=6 should" in advice(settings, 1, 2, on_two)


def test_advice_for_lanes_is_fewer():
    settings = tiny.resolve()
    each = cost.memory(tiny.resolve())
    assert "--lanes=5 should" in advice(settings, 8, 1, 5 * each)
    assert "--lanes=4 should" in advice(settings, 8, 2, 2 * each + 1)
    assert "--lanes=7 should" in advice(settings, 8, 1, 100 * each)
    assert "--lanes=1 should" in advice(settings, 8, 1, each // 2)
