"""attn.attention against the oracle in random cases, and the oracle against differences."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from tests.hostile import attention_oracle as oracle
from tests.hostile.attention_cases import REPEATS, draw_case, draw_structure

EPS = float(np.finfo(np.float64).eps)


def fuzz(*flags):
    """Runs the command as its users do: the suite checks annotations, which they do not."""
    words = [sys.executable, "-m", "tests.hostile.attention_fuzz", *flags]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_cases_that_once_went_wrong_and_random_ones():
    fuzz("--corners", "--cases=30", "--seed=5")


@pytest.mark.ci
def test_many_random_cases():
    fuzz("--cases=400", "--seed=6", "--processes=2")


def smooth_cases():
    """Yields small cases in float64, with every score and bias among them."""
    missing = {"dot", "scaled", "bilinear", "low rank", "additive"}
    missing |= {"dense", "alibi", "relative", "bucket"}
    for group in range(400):
        structure = dataclasses.replace(draw_structure(0, group), dtype="float64")
        kinds = {structure.score[0], structure.bias and structure.bias[0]}
        odd = structure.integers or structure.wrong or structure.expect == "either"
        if odd or structure.n * structure.m > 50 or not kinds & missing:
            continue
        missing -= kinds
        yield draw_case(0, group * REPEATS, dataclasses.replace(structure, lse=True))
    assert not missing


def total(case, data):
    """Returns the oracle's results, summed with their cotangents."""
    results, _ = oracle.attention(case.structure, data)
    sums = 0.0
    for name in ("out", "lse", "weights"):
        if f"g_{name}" in data:
            # A query that sees nothing has LSE −inf whatever the rest is.
            value = results[name].value
            sums += (np.where(np.isfinite(value), value, 0) * data[f"g_{name}"]).sum()
    return sums


def moved(data, name, change):
    """Returns the data with one array of it, or of its score, changed."""
    if name.startswith("score."):
        key = name.removeprefix("score.")
        score = {**data["score"], key: data["score"][key] + change}
        return {**data, "score": score}
    return {**data, name: data[name] + change}


def test_gradients_of_the_oracle_are_those_of_its_results():
    # Central differences with this step err by h² of the third derivative and eps/h of the
    # sum; derivatives of these cases are below a thousand times the sum of sizes.
    step = EPS ** (1 / 3)
    rng = np.random.default_rng(0)
    for case in smooth_cases():
        data = case.data
        results, _ = oracle.attention(case.structure, data)
        for name, gradient in results.items():
            if not name.startswith("d "):
                continue
            name = name.removeprefix("d ")
            direction = rng.normal(size=gradient.value.shape)
            ahead = total(case, moved(data, name, step * direction))
            behind = total(case, moved(data, name, -step * direction))
            expected = (ahead - behind) / (2 * step)
            actual = (gradient.value * direction).sum()
            size = 1 + abs(ahead) + np.abs(gradient.value * direction).sum()
            assert abs(actual - expected) < 1000 * step**2 * size, (name, case)


def test_bounds_are_close_to_the_rounding_of_half_precision():
    """Rounding the inputs once moves results by a fair share of the bounds, never more."""
    structure = dataclasses.replace(
        draw_structure(0, 0),
        **{"dtype": "float16", "n": 7, "m": 11, "widths": (8, 8, 8), "batch": (2,)},
        **{"score": ("scaled",), "mask": (), "bias": None, "integers": ""},
        **{"weights": False, "lse": True, "h": 2},
    )
    data = draw_case(0, 0, structure).data
    results, _ = oracle.attention(structure, data)
    arithmetic = oracle.ARITHMETIC["float16"]
    scaled = {**data, "q": data["q"].astype(np.float64) * (1 + 2 * arithmetic.unit)}
    shifted, _ = oracle.attention(structure, scaled)
    for name in ("out", "lse"):
        change = np.abs(shifted[name].value - results[name].value)
        share = (change / results[name].error).max()
        assert 0.001 < share < 1


def test_visibility_by_hand():
    seen = oracle.visible((("causal", 1), ("window", 1, 5)), [{}, {}], (), 3, 4, 1)
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    np.testing.assert_array_equal(seen[0, 0], np.array(expected, bool))


def test_buckets_by_hand():
    # 8 buckets of two directions: 0, 1, then up to 2 and up to 8 of each.
    actual = [oracle.bucket(d, 8, True, 8) for d in (-9, -4, -3, -2, -1, 0, 1, 2, 4, 9)]
    assert actual == [3, 3, 2, 2, 1, 0, 5, 6, 7, 7]
