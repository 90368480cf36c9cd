"""The configs: every point of every sweep builds, Table 3 is the paper's at every size,
and what each one promises."""

import dataclasses
import functools

import pytest

from attn import MIXERS, POSITIONS, Sinusoidal
from experiments.configs import (
    layers,
    lengths,
    positions,
    scores,
    systems,
    table3,
    variants,
)
from experiments.report.published import TABLE_3
from experiments.settings import TASKS, resolve
from experiments.sweep.plan import check_all, plan_trials
from experiments.sweep.points import expand, load_config, sweeps_of
from experiments.trial import cost
from tests.cases import the_rest_in_ci

QUICK = """
    quick multi30k paper paper:big table3:tiny language sinks heads_kv precision
    precision:multi30k lengths:copy tasks:copy wmt14_ende wmt14_ende:big wmt14_enfr
    wmt14_enfr:big
""".split()
SLOW = """
    scores positions layers multihead systems systems:multi30k hard hard:rnn language:text
    characters characters:ptb one_layer one_layer:flipflop sparse exclusive recall rates
    variants state:words state:flipflop table3:base table3:small
""".split()
SLOW += [f"tasks:{task}" for task in TASKS if task != "copy"]
SLOW += [f"lengths:{task}" for task in lengths.LENGTHS if task != "copy"]


def config(name):
    """(module, config) of "file:argument"."""
    module, _, argument = name.partition(":")
    module = load_config(f"experiments/configs/{module}.py:{argument}")
    return module, module.get_config(*filter(None, [argument]))


@functools.cache
def rows(preset):
    """The rows of Table 3 by their label."""
    module, base = config(f"table3:{preset}")
    planned = plan_trials(base, expand(sweeps_of(module), ["rows"], base))
    return {one.label: one for one in planned}


@pytest.mark.parametrize("name", the_rest_in_ci([*QUICK, *SLOW], first=len(QUICK)))
def test_every_point_builds(name):
    module, base = config(name)
    known = sweeps_of(module)
    for one in known:
        check_all(plan_trials(base, expand(known, [one], base)))
    assert known


def test_the_quick_table_has_what_the_readme_promises():
    module, base = config("quick")
    points = plan_trials(base, expand(sweeps_of(module), ["table", "seed"]))
    models = {
        (m["h"], m["d_k"], m["positions"])
        for m in (point.settings.to_dict()["model"] for point in points)
    }
    sizes = [(4, 16), (4, 4), (4, 8), (1, 64), (2, 32), (8, 8)]
    expected = {(*size, "sinusoidal") for size in sizes}
    assert models == expected | {(4, 16, "learned"), (4, 16, "none")}
    assert len(points) == 16


def test_wmt14_is_the_papers():
    for model in ("base", "big"):
        names = "wmt14_ende", "wmt14_enfr", "paper"
        german, french, paper = (
            resolve(config(f"{name}:{model}")[1]) for name in names
        )
        assert german.model == paper.model and german.evaluation == paper.evaluation
        by_length = dataclasses.replace(paper.training, bucket_by_length=True)
        assert german.training == french.training == by_length
        assert german.data.vocabulary_size == 37_000
        assert french.data.vocabulary_size == 32_000
        assert french.model == paper.model
        assert french.rates.P_drop == 0.1


@pytest.mark.parametrize("preset", table3.PRESETS)
def test_table_3_has_the_papers_rows(preset):
    assert tuple(rows(preset)) == tuple(TABLE_3)
    base = rows(preset)["base"].settings
    assert rows(preset)["base"].point == {}
    assert base.rates.P_drop == base.training.eps_ls == 0.1
    assert base.model.positions == Sinusoidal()
    assert base.evaluation.weights == "raw"


def test_at_the_papers_sizes_a_label_is_the_truth():
    for label, row in rows("base").items():
        if "=" in label:
            key, value = label.split()[1].split("=")
            group = "training" if key == "eps_ls" else "model"
            assert row.settings.to_dict()[group][key] == float(value)
    of_heads = [row for label, row in rows("base").items() if "(A)" in label]
    heads = [tuple(row.point.values()) for row in of_heads]
    assert heads == [(1, 512, 512), (4, 128, 128), (16, 32, 32), (32, 16, 16)]
    wide, big = (rows("base")[label].settings for label in ("(C) d_model=1024", "big"))
    m = wide.model
    assert (m.d_k, m.d_v, m.d_ff, m.h) == (128, 128, 2048, 8)
    the_papers = resolve(config("paper:big")[1])
    assert big.model == the_papers.model
    assert big.training.steps == the_papers.training.steps


@pytest.mark.parametrize("preset", ["small", "tiny"])
def test_smaller_tables_keep_the_papers_proportions(preset):
    """A number that a row changes stands to that of base as in the paper's table; rates
    and names are the paper's."""
    for label, row in rows(preset).items():
        paper = rows("base")[label].point
        assert row.point.keys() == paper.keys() - {"training.steps"}
        for key, value in row.point.items():
            if key in ("model.P_drop", "training.eps_ls", "model.positions"):
                assert value == paper[key]
            else:
                own, theirs = (
                    getattr(rows(p)["base"].settings.model, key.split(".")[1])
                    for p in (preset, "base")
                )
                assert value / own == paper[key] / theirs


def test_presets_are_told_apart():
    with pytest.raises(
        ValueError, match="unknown preset 'huge'; known: base, small, tiny"
    ):
        table3.get_config("huge")
    corpora = [resolve(table3.get_config(preset)).data for preset in table3.PRESETS]
    assert [data.corpus for data in corpora] == ["files", "files", "cldr"]
    tests = [data.test for data in corpora[:2]]
    assert tests == ["newstest2014", "test_2016_flickr.lc.norm.tok"]
    assert [data.tokenized for data in corpora[:2]] == [False, True]


def test_sweeps_of_kinds_leave_none_out():
    swept = [point["model.score"] for point in scores.sweep_score()]
    assert swept == [*scores.SCORES]
    swept = [point["model.positions"] for point in positions.sweep_positions()]
    assert swept == [*POSITIONS]
    texts = [*layers.MIXERS.values(), *layers.COUSINS.values()]
    assert {text.partition("(")[0] for text in texts} == {*MIXERS}
    module, base = config("scores")
    grid = plan_trials(base, expand(sweeps_of(module), ["score", "d_k"], base))
    assert len(grid) == 4 * len(scores.SCORES) and base.model.score == "additive"
    assert positions.get_config().data.max_length == 20


@pytest.mark.parametrize("corpus", the_rest_in_ci(systems.CORPORA, first=1))
def test_recurrent_models_are_as_large_as_the_transformer(corpus):
    config = systems.get_config(corpus)
    planned = plan_trials(config, expand(sweeps_of(systems), ["systems"], config))
    first, *others = [cost.parameters(one.settings) for one in planned]
    for one, count in zip(planned[1:], others, strict=True):
        m = one.settings.model
        assert count == systems.parameters(
            m.d_model, m.score, one.settings.data.vocabulary_size
        )
        assert abs(count / first - 1) < 0.015


@pytest.mark.ci
def test_variants_have_equally_many_parameters():
    _, base = config("variants")
    points = [
        {**row, "model.d_ff": base.model.d_ff} for row in variants.sweep_variants(base)
    ]
    first, *plain = plan_trials(base, points)
    whole = cost.parameters(first.settings)
    for one in plain:
        more = variants.MORE_PARAMETERS.get(one.label, 0)
        assert cost.parameters(one.settings) == whole + more, one.label
    for one in plan_trials(base, variants.sweep_variants(base)):
        count = cost.parameters(one.settings)
        assert count == pytest.approx(whole, rel=1e-3), one.label
