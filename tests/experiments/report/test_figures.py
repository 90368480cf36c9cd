import itertools
import re

import numpy as np
import pytest

from experiments.evaluation.metrics import (
    ACCURACY,
    BLEU,
    EXACT_MATCH,
    METRICS,
    PERPLEXITY,
)
from experiments.report.figures import heat_maps, lines, points, style
from experiments.report.trial_outputs import Example
from experiments.stats.differences import Difference
from experiments.stats.summary import Summary
from tests.experiments import fakes


def texts(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg)


def of_size(rows):
    return points.scatter([points.Panel("perplexity", "parameters", rows, 1.0)], "a")


def test_line_styles_are_all_different_and_begin_with_ink():
    styles = [style.line_style(row) for row in range(style.LINES)]
    assert styles[0] == ("#000000", ())
    assert len(set(styles)) == style.LINES == 28


def test_a_band_goes_from_the_lowest_seed_to_the_highest_at_each_step():
    logged = [
        (np.array([1, 2, 3]), np.array([5.0, 4.0, 3.0])),
        (np.array([1, 3, 4]), np.array([7.0, 2.0, 1.0])),
    ]
    steps, mean, low, high = lines.over_seeds(logged)
    assert [side.tolist() for side in (steps, mean, low, high)] == [
        [1, 2, 3, 4],
        [6, 4, 2.5, 1],
        [5, 4, 2, 1],
        [7, 4, 3, 1],
    ]


def test_mean_entropy():
    """Two layers, two heads: one looks at one key, one evenly at two, three at all of
    four; NaN counts as no weight."""
    rows = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0.5, 0.5, np.nan, 0]])
    weights = np.broadcast_to(rows.reshape(2, 2, 1, 4), (2, 2, 3, 4)).astype(np.float16)
    expected = np.log([[1, 2], [4, 2]])
    np.testing.assert_allclose(heat_maps.mean_entropy([weights]), expected, rtol=1e-6)
    even = np.full((2, 2, 5, 8), 0.125)
    np.testing.assert_allclose(
        heat_maps.mean_entropy([weights, even]), (expected + np.log(8)) / 2, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("tokens", "most", "buckets"),
    [
        ([5], 6, [(5, 5)]),
        ([1, 2, 3, 4], 2, [(1, 2), (3, 4)]),
        ([3, 3, 3, 9], 4, [(3, 3), (4, 9)]),
        ([], 6, []),
        (range(1, 13), 3, [(1, 4), (5, 8), (9, 12)]),
    ],
)
def test_length_buckets(tokens, most, buckets):
    assert lines.length_buckets(np.array(tokens, int), most) == buckets


@pytest.mark.parametrize(
    ("tokens", "trained", "buckets"),
    [
        (
            range(1, 45),
            10,
            [(1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, 44)],
        ),
        ([3, 12, 13, 35], 10, [(1, 5), (11, 15), (31, 40)]),
        ([1, 2, 3, 4], 4, [(1, 1), (2, 2), (3, 3), (4, 4)]),
        ([4, 5], 3, [(4, 4), (5, 6)]),
    ],
)
def test_buckets_beyond_training_are_parts_of_its_longest(tokens, trained, buckets):
    assert lines.length_buckets(np.array(tokens, int), trained=trained) == buckets


BUCKETS = [(1, 2), (3, 5), (6, 8), (9, 20)]


def test_exact_match_by_length():
    sentences = {
        "validation_source": np.array([1, 9]),
        "validation_tokens": np.array([1, 1]),
        "validation_nll": np.log([2.0, 8.0]),
        "test_source": np.array([1, 2, 5, 5, 30]),
        "test_exact": np.array([True, False, True, True, False]),
    }
    values = lines.bucket_values(EXACT_MATCH, sentences, BUCKETS)
    np.testing.assert_allclose(values, [50, 100, np.nan, 0])
    within = lines.by_length([("a", [sentences])], 9)
    beyond = lines.by_length([("a", [sentences])], 4)
    expected = {"exact match on the test set, %", "1–2", "9–12"}
    assert expected <= set(texts(beyond))
    dashed = lambda picture: picture.svg.count("stroke-dasharray")
    assert dashed(beyond) == dashed(within) + 2


def test_every_metric_that_all_trials_kept_has_a_panel():
    kept = fakes.sentences(np.random.default_rng(0), 50, 0.0)
    without_chrf = {name: kept[name] for name in kept if name != "test_chrf"}
    shown = [metric for metric in METRICS if metric.statistics(kept) is not None]
    titles = [f"{metric.name} on the" for metric in shown]
    drawn = " ".join(texts(lines.by_length([("a", [kept])])))
    assert all(title in drawn for title in titles)
    drawn = " ".join(texts(lines.by_length([("a", [kept]), ("b", [without_chrf])])))
    assert "chrF" not in drawn and "BLEU on the test set" in drawn


def test_perplexity_in_a_bucket_is_over_its_sentences_alone():
    sentences = {
        "validation_source": np.array([1, 2, 5, 9, 30]),
        "validation_tokens": np.array([1, 3, 2, 4, 5]),
        "validation_nll": np.log([2.0, 8.0, 9.0, 16.0, 32.0]),
    }
    values = lines.bucket_values(PERPLEXITY, sentences, BUCKETS)
    # 30 counts to the last bucket.
    np.testing.assert_allclose(values, [2, 3, np.nan, 2])
    svg = lines.by_length([("a", [sentences]), ("b", []), ("c", [{}])])
    assert {"a", "b", "c", "tokens of the source, end mark included"} <= set(texts(svg))
    assert lines.by_length([("b", []), ("c", [{}])]) is None


def difference(low, mean, high):
    return Difference(mean, low, high, 0.01, 1.0, 3, 0.1, None)


def test_a_forest_has_every_row_and_says_its_numbers():
    rows = {
        "a <语>": points.Compared(difference(0.001, 0.002, 0.003), "worse"),
        "near": points.Compared(difference(-0.002, 0.001, 0.004), "undecided"),
        "far": points.Compared(difference(-2.0, -1.5, -1.0), "better"),
        "lost": points.Compared(difference(-np.inf, np.nan, np.inf), "undecided"),
    }
    panel = points.Forest("BLEU", 100, [*rows.values()])
    picture = points.forests([*rows], [panel], "forest BLEU")
    shown = texts(picture)
    assert {"a &lt;语&gt;", "near", "far", "lost", "BLEU"} <= set(shown)
    assert [text for *_, text in picture.spots] == [
        "a <语>: +0.2 [+0.1, +0.3], worse",
        "near: +0.1 [-0.2, +0.4], undecided",
        "far: -150 [-200, -100], better",
    ]
    ticks = [t.replace("−", "-") for t in shown if re.fullmatch(r"−?[\d.]+", t)]
    # The far row does not set the scale.
    assert max(abs(float(tick)) for tick in ticks) < 1
    assert points.forests(["lost"], [panel._replace(rows=panel.rows[3:])], "x") is None


def test_forests_of_metrics_stand_beside_each_other_over_one_list_of_rows():
    verdicts = ("worse", "undecided")
    first = [
        points.Compared(difference(0.1, 0.2, 0.3), "worse", (0.15, 0.25)),
        points.Compared(None, ""),
    ]
    second = [
        points.Compared(difference(-0.5, 0.1, 0.7), verdict) for verdict in verdicts
    ]
    panels = [points.Forest("loss", 1.0, first), points.Forest("share, %", 100, second)]
    picture = points.forests(["a", "b"], panels, "differences")
    assert texts(picture).count("a") == texts(picture).count("b") == 1
    assert {"loss", "share, %"} <= set(texts(picture))
    assert [text for *_, text in picture.spots] == [
        "a: +0.2 [+0.1, +0.3], worse",
        "a: +10 [-50, +70], worse",
        "b: +10 [-50, +70], undecided",
    ]
    assert points.forests(["b"], [points.Forest("loss", 1.0, first[1:])], "x") is None


def test_panels_of_a_metric_share_their_scale_and_levels_are_within_it():
    def points_at(*ys):
        return [lines.Point(i, y, y, y, (y - 0.01, y + 0.01)) for i, y in enumerate(ys)]

    levels = [lines.Level("chance", 0.25), lines.Level("best possible", 1.0)]
    panels = [
        lines.Panel("length=32", ACCURACY, [points_at(0.5, 0.9)], levels),
        lines.Panel("length=64", ACCURACY, [points_at(0.3, 0.4)], levels[:1]),
    ]
    axis = lines.Axis("system", "system", ["attention", "GRU"])
    picture = lines.over_setting(panels, [""], axis, "over system", 2)
    scales = {axes.get_ylim() for axes in picture.figure.axes}
    ((low, high),) = scales
    assert low < 25 and high > 100
    assert texts(picture).count("chance") == 2
    assert [text for *_, text in picture.spots][:2] == [
        "system=attention: 50",
        "system=GRU: 90",
    ]
    assert {"length=32", "length=64", "accuracy, %", "GRU"} <= set(texts(picture))


def scales_of(*panels, metric=BLEU):
    """The limits of y of panels, each {x: (mean, low, high)}."""
    drawn = []
    for values in panels:
        line = [lines.Point(x, *ends) for x, ends in values.items()]
        drawn.append(lines.Panel("", metric, [line]))
    axis = lines.Axis("x", "x")
    figure = lines.over_setting(drawn, [""], axis, "over x").figure
    return [axes.get_ylim() for axes in figure.axes]


def test_panels_share_a_scale_that_holds_all_intervals_but_one_that_hides_the_rest():
    usual = {1: (30.0, 28.0, 32.0), 2: (31.0, 29.0, 33.0), 3: (30.0, 27.0, 31.0)}
    (first, second) = scales_of(usual, dict.fromkeys(usual, (50.0, 49.0, 51.0)))
    assert first == second and first[0] < 27 and first[1] > 51
    ((low, high),) = scales_of(usual | {4: (30.0, 0.0, 100.0)})
    assert 20 < low < 27 and 33 < high < 40


def test_a_long_label_of_a_legend_is_whole_on_several_lines():
    label = " ".join(["word"] * 20)
    panel = lines.Panel("", BLEU, [[lines.Point(1, 2.0, 2.0, 2.0)]] * 2)
    picture = lines.over_setting([panel], [label, "b"], lines.Axis("x", "x"), "over x")
    assert sum(text.split().count("word") for text in texts(picture)) == 20
    assert max(map(len, texts(picture))) <= style.LONGEST_LABEL


def test_long_labels_of_rows_have_room_for_their_lines():
    compared = points.Compared(difference(-0.1, 0.1, 0.3), "undecided")

    def height(label):
        panel = points.Forest("BLEU", 1.0, [compared] * 9)
        figure = points.forests([label] * 9, [panel], "x").figure
        # Letters of the rows, from the first to the last.
        ticks = figure.axes[0].get_yticklabels()
        boxes = [tick.get_window_extent() for tick in ticks]
        return [a.y0 - b.y1 for a, b in itertools.pairwise(boxes)]

    assert min(height("short")) > 0 and min(height("word " * 25)) > -1


def sized(*sizes, spread=0.0):
    """Rows (label, parameters, perplexity) of two runs each."""
    return [
        (label, Summary(float(x), 0.0, 2), Summary(y, spread, 2))
        for label, x, y in sizes
    ]


def test_size_and_perplexity_labels_do_not_lie_on_each_other():
    rows = sized(
        *((f"row {i}", 1000 + i, 2 + i / 1000) for i in range(8)), spread=0.001
    )
    others = [("none", None, None), *sized(("far", 1e6, 9.0), ("nan", 1000, np.nan))]
    svg = of_size(rows + others)
    place = r'text-anchor: (\w+)" x="[\d.]+" y="([\d.]+)"[^>]*>row'
    places = [(side, float(y)) for side, y in re.findall(place, svg.svg)]
    assert len(places) == 8
    for i, (side, y) in enumerate(places):
        assert all(side != other or abs(y - beside) > 7 for other, beside in places[:i])
    assert "nan" not in texts(svg) and "1,000,000" in texts(svg)
    assert of_size(rows[:1]) is None


@pytest.mark.parametrize(
    ("size", "perplexity"),
    [(0, 2.0), (-5, 2.0), (1e3, -1.5), (1e3, 0.0), (1e3, 1e200), (1e99, 1e99)],
)
def test_what_no_log_scale_has_is_left_out(size, perplexity):
    rows = sized(("one", 1000, 2.0), ("two", 2000, 3.0), ("odd", size, perplexity))
    assert ("odd" in texts(of_size(rows))) == (size == 1e99)


def test_rows_of_about_one_size_have_no_figure():
    assert of_size(sized(("a", 1000, 2.0), ("b", 1100, 3.0))) is None
    assert of_size(sized(("a", 1000, 2.0), ("b", 1100, 3.0), ("c", 1500, 2.0)))


def test_figures_are_the_same_bytes_again():
    drawn = [of_size(sized(("a", 1000, 2.0), ("b", 10_000, 2.0))) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].pdf() == drawn[1].pdf() and drawn[0].pdf().startswith(b"%PDF")


def test_what_a_reader_points_at_stands_where_it_is_drawn():
    picture = of_size(sized(("a", 1000, 2.0), ("b", 9000, 5.0)))
    drawn = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', picture.svg)
    drawn = {(round(float(x), 1), round(float(y), 1)) for x, y in drawn}
    assert {(x, y) for x, y, _ in picture.spots} <= drawn
    assert [text for *_, text in picture.spots] == ["a: 2 at 1,000", "b: 5 at 9,000"]


def test_head_entropies_show_rows_of_different_shapes():
    rows = [("nothing", [])]
    for name, N, h, n, m in (("one", 1, 2, 3, 4), ("two", 3, 1, 2, 5)):
        encoder, cross = (np.full((N, h, q, m), 1 / m) for q in (m, n))
        maps = {"encoder": encoder, "cross": cross}
        rows.append((name, [Example("", "", "", ("a",) * m, ("b",) * n, maps)]))
    picture = heat_maps.head_entropies(rows)
    labels = texts(picture)
    assert {"one", "two", "encoder", "decoder", "cross", "nats", "3"} <= set(labels)
    assert "nothing" not in labels
    # Three heat maps and the scale.
    assert picture.svg.count("<image") == 4
    assert heat_maps.head_entropies(rows[:1]) is None


def test_lines_over_a_setting_and_a_map_of_two_say_their_numbers():
    means = [lines.Point(4, 30.0, 28.0, 31.0), lines.Point(16, 40.0, 40.0, 40.0)]
    panels = [lines.Panel("", BLEU, [means, means[1:]])]
    axis = lines.Axis("d_k", "d_k (with h)")
    labels = ["score=dot", "score=additive"]
    picture = lines.over_setting(panels, labels, axis, "over d_k")
    assert [text for *_, text in picture.spots] == [
        "score=dot, d_k=4: 30 [28, 31]",
        "score=dot, d_k=16: 40",
        "score=additive, d_k=16: 40",
    ]
    assert {"4", "16", "BLEU", "d_k (with h)", "score=dot"} <= set(texts(picture))
    values = np.array([[10.0, np.nan], [30.0, 40.5]])
    axes = ("h", ["1", "2"]), ("d_k", ["4", "8"])
    drawn = heat_maps.map_of_two({BLEU: values}, *axes, "h by d_k")
    assert {"10.0", "30.0", "40.5"} <= set(texts(drawn)) and "nan" not in texts(drawn)
    assert drawn.spots[-1][-1] == "h=2, d_k=8: 40.5"


def test_labels_of_points_are_within_the_axes_where_there_is_room():
    names = [f"a rather long name {i}" for i in range(3)]
    places = zip(names, (1_000, 1_010, 9_000), (2.0, 3.0, 5.0), strict=True)
    (axes,) = of_size(sized(*places)).figure.axes
    for text in axes.texts:
        box = text.get_window_extent()
        assert axes.bbox.x0 - 1 <= box.x0 and box.x1 <= axes.bbox.x1 + 12


def test_many_points_have_a_legend_and_marks_of_their_own():
    places = [(f"row {i}", 1_000 * (i + 1), 2.0 + i) for i in range(13)]
    figure = of_size(sized(*places)).figure
    assert not figure.axes[0].texts
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [f"row {i}" for i in range(13)]
    styles = {(h.get_color(), h.get_marker()) for h in legend.legend_handles}
    assert len(styles) == 13


def test_print_puts_panels_that_are_too_narrow_below_each_other():
    panels = [lines.Panel("", BLEU, [[lines.Point(1, 2.0, 2.0, 2.0)] * 2])] * 4

    def places():
        axis = lines.Axis("x", "x")
        figure = lines.over_setting(panels, ["a"], axis, "over x").figure
        return {round(axes.get_position().x0, 2) for axes in figure.axes}

    assert len(places()) == 2
    with style.printed(3.3):
        assert len(places()) == 1
    with style.printed(7.0):
        assert len(places()) == 2
