"""Settings that follow from others need no naming."""

import pytest

from experiments.configs import recall
from experiments.settings.derived import leaders, without_derived
from experiments.sweep.points import expand, sweeps_of

pytestmark = pytest.mark.quick

SIZES = [{}, *({"d_model": d, "d_ff": 4 * d, "d_k": d // 4} for d in (16, 64))]


def test_what_is_set_together_follows_the_first():
    assert leaders(SIZES) == {"d_ff": "d_model", "d_k": "d_model"}
    assert without_derived(SIZES[1], leaders(SIZES)) == {"d_model": 16}
    crossed = [one | {"h": h, "d_v": 8 // h} for one in SIZES for h in (1, 2)]
    assert leaders(crossed) == {"d_ff": "d_model", "d_k": "d_model", "d_v": "h"}


@pytest.mark.parametrize(
    "points",
    [
        # One thing at a time.
        [{}, {"h": 1}, {"d_k": 4}],
        [{"h": 1}, {"d_k": 4}],
        # A row that changes two things beside one that changes one of them.
        [{}, {"h": 2, "positions": "learned"}, {"h": 1}],
        # The only row, which may change both on purpose.
        [{}, {"h": 1, "d_k": 64}],
        # Two settings, each with all values of the other.
        [{"h": h, "d_k": d} for h in (1, 2) for d in (4, 8)],
        [],
    ],
)
def test_what_may_be_chosen_for_itself_is_named(points):
    assert leaders(points) == {}


def test_what_is_left_tells_all_points_apart():
    config = recall.get_config()
    points = expand(sweeps_of(recall), ["systems", "d_model", "length"], config)
    points = [{k: v for k, v in p.items() if k != "parts"} for p in points]
    derived = leaders([{k: v for k, v in p.items() if k != "label"} for p in points])
    assert set(derived.values()) == {
        "model.decoder_mixing",
        "model.d_model",
        "data.length",
    }
    left = [frozenset(without_derived(point, derived).items()) for point in points]
    assert len(set(left)) == len(points) == 27
    labels = [point["label"] for point in points]
    assert labels[0] == "attention, d_model=16, length=32"
    assert len(set(labels)) == 27 and max(map(len, labels)) < 40
