"""attn.attention against the oracle in random cases, and the oracle against loops."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from attn.contract import oracle as formulas
from attn.jax_versions import enable_x64
from tests.attn import oracle as loops
from tests.hostile import attention_oracle as oracle
from tests.hostile.attention_cases import draw_case, draw_structure
from tests.hostile.attention_fuzz import Tally, difference


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


B, N, M, H, K, V, A = 2, 5, 7, 3, 4, 6, 2
# Of the first example no query but one sees a key.
SEEN = np.random.default_rng(1).random((B, H, N, M)) < 0.6
SEEN[0, :, 1:] = False
SHAPES = {
    "dot": {},
    "scaled_dot": {},
    "bilinear": {"w": (H, K, K)},
    "additive": {"w_q": (H, K, A), "w_k": (H, K, A), "v": (H, A), "b": (H, A)},
}


def of_pair(score, parameters, h):
    """Returns the score of one query and one key."""
    p = {name: x[h] for name, x in parameters.items()}
    return {
        "dot": lambda q, k: q @ k,
        "scaled_dot": loops.scaled_dot,
        "bilinear": lambda q, k: q @ p["w"] @ k,
        "additive": lambda q, k: p["v"] @ np.tanh(q @ p["w_q"] + k @ p["w_k"] + p["b"]),
    }[score]


@pytest.mark.parametrize("score", SHAPES)
def test_the_formulas_are_those_of_loops(score):
    normal = np.random.default_rng(0).normal
    parameters = {name: normal(size=shape) for name, shape in SHAPES[score].items()}
    q, k = normal(size=(B, H, N, K)), normal(size=(B, H, M, K))
    v, bias = normal(size=(B, H, M, V)), normal(size=(B, H, N, M))
    bias[1, 2, 3] = -np.inf
    with enable_x64(True):
        s = formulas.SCORES[score](q, k, **parameters)
        results = formulas.attention(s, v, SEEN, bias)
        for b, h in np.ndindex(B, H):
            # The last column is the place, which the bias reads.
            rows, columns = (
                np.concatenate([x[b, h], np.arange(len(x[b, h]))[:, None]], axis=1)
                for x in (q, k)
            )
            pair = of_pair(score, parameters, h)

            def biased(x, y, pair=pair, b=b, h=h):
                return pair(x[:-1], y[:-1]) + bias[b, h, int(x[-1]), int(y[-1])]

            seen = SEEN[b, h] & (bias[b, h] > -np.inf)
            expected = loops.attention(rows, columns, v[b, h], seen, biased)
            for found, right in zip(results, expected, strict=True):
                np.testing.assert_allclose(found[b, h], right, rtol=1e-10, atol=1e-14)


def case_in(dtype):
    structure = dataclasses.replace(
        draw_structure(0, 0),
        **{"dtype": dtype, "n": 7, "m": 11, "widths": (8, 8, 8), "batch": (2,)},
        **{"score": ("scaled",), "mask": (), "bias": None, "integers": ""},
        **{"weights": False, "lse": True, "h": 2, "group": 1},
    )
    return structure, draw_case(0, 0, structure).data


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.001), ("bfloat16", 1.5)])
def test_what_is_wrong_by_more_than_rounding_is_seen(dtype, factor):
    structure, data = case_in(dtype)
    right, _ = oracle.attention(structure, data)
    queries = data["q"].astype(np.float64) * factor
    wrong, _ = oracle.attention(structure, {**data, "q": queries})
    for name in ("lse", "d q", "d k"):
        assert difference(right[name][0], right[name], None, Tally()) == ""
        said = difference(wrong[name][0], right[name], None, Tally())
        assert said.startswith("is off by"), name


def test_visibility_by_hand():
    seen = oracle.visible((("causal", 1), ("window", 1, 5)), [{}, {}], (), 3, 4, 1)
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    np.testing.assert_array_equal(seen[0, 0], np.array(expected, bool))


def test_buckets_by_hand():
    # 8 buckets of two directions: 0, 1, then up to 2 and up to 8 of each.
    actual = [oracle.bucket(d, 8, True, 8) for d in (-9, -4, -3, -2, -1, 0, 1, 2, 4, 9)]
    assert actual == [3, 3, 2, 2, 1, 0, 5, 6, 7, 7]
