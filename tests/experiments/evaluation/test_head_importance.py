"""What each head does, against counting by hand and against models whose heads were cut out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from attn import ValueResidual, config
from experiments.data.batches import Encoded
from experiments.data.corpora import Pairs
from experiments.data.dataset import Heldout
from experiments.evaluation import head_importance
from experiments.evaluation.head_importance import Head
from experiments.evaluation.perplexity import sentence_losses
from experiments.objectives import Label
from experiments.report.figures import heat_maps
from experiments.report.head_measures import _corrected, grids, head_tables
from experiments.report.packed_attention import telling_head
from experiments.report.trial_files import ResultsError, read_results
from experiments.report.trial_outputs import KINDS, read_examples, read_heads
from experiments.report.write import compare_rows, write_report
from experiments.training import loop
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.program import (
    State,
    initial_state,
    initial_variables,
    program_of,
)
from experiments.trial.step import token_losses
from tests.experiments import fakes, tiny


def heldout():
    return Heldout(
        Pairs(["a b", "c"], ["d", "e f g"]),
        Encoded(
            [np.array([5, 6]), np.array([7])], [np.array([5]), np.array([6, 7, 8])]
        ),
    )


def test_weights_that_do_not_sum_to_1_are_looked_at_as_shares():
    """As those of ReLU and of sigmoid: 3 and 1, half of 0.5, and none at all."""

    def weights(state, source, target, lengths):
        cross = np.zeros((3, 1, 1, 6, 6), np.float32)
        cross[:, 0, 0, 0, :2] = 3, 1
        cross[:, 0, 0, 1, :2] = 0.25, 0.25
        return dict(cross=cross)

    statistics = head_importance.attention_statistics(weights, None, heldout(), 3, 6)
    # Each of two sentences has both queries, and the decoder reads six in all.
    of_first = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    expected = dict(
        entropy=2 * (of_first + np.log(2)) / 6,
        first=2 * (0.75 + 0.25) / 6,
        distance=2 * (0.25 + 0.5) / 6,
    )
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[f"cross/{name}"], [[value]], rtol=1e-6)


def test_a_label_is_asked_by_one_query():
    """Of a label and its end mark, so that the one that there is not does not count."""
    labelled = heldout()._replace(
        ids=Encoded(heldout().ids.source, [np.array([5])] * 2)
    )

    def weights(state, source, target, lengths):
        assert target.shape == (3, 1)
        return dict(
            cross=np.eye(6, dtype=np.float32)[None, None, None, 2:3].repeat(3, 0)
        )

    arguments = weights, None, labelled, 3, 6
    statistics = head_importance.attention_statistics(*arguments, objective=Label())
    # The pooling looks at the third token, which one of two sources has.
    np.testing.assert_allclose(statistics["cross/distance"], [[2 / 2]])


def test_how_heads_look():
    """One head looks at itself, one evenly at all; of three rows two have sentences."""

    def weights(state, source, target, lengths):
        assert lengths.tolist() == [2, 3, 0]  # in the order of their lengths
        encoder = np.zeros((3, 1, 2, 6, 6), np.float32)
        for row, n in enumerate(lengths):
            encoder[row, 0, 0, :n, :n] = np.eye(n)
            encoder[row, 0, 1, :n, :n] = 1 / max(n, 1)
        cross = np.zeros((3, 1, 1, 6, 6), np.float32)
        cross[..., 0] = 1  # every query looks at the first token
        return dict(encoder=encoder, cross=cross)

    statistics = head_importance.attention_statistics(weights, None, heldout(), 3, 6)
    # The sources have 2 and 3 tokens, the decoder reads 4 and 2.
    np.testing.assert_allclose(
        statistics["encoder/entropy"],
        [[0, (2 * np.log(2) + 3 * np.log(3)) / 5]],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        statistics["encoder/distance"], [[0, (2 * 0.5 + 8 / 3) / 5]], rtol=1e-6
    )
    np.testing.assert_allclose(statistics["encoder/shares"][0, 0], [1, 0, 0, 0, 0, 0])
    # Of n even weights 1/n each: the same place n times, before and after n − 1 times, the
    # first and the last once if n is 3.
    near = 1 / 2 + 2 / 3
    np.testing.assert_allclose(
        statistics["encoder/shares"][0, 1],
        np.array([2, near, near, 1 / 3, 1 / 3, 0]) / 5,
        rtol=1e-6,
    )
    np.testing.assert_allclose(statistics["cross/entropy"], [[0]])
    np.testing.assert_allclose(
        statistics["cross/distance"], [[(0 + 1 + 2 + 3 + 0 + 1) / 6]], rtol=1e-6
    )
    np.testing.assert_allclose(
        statistics["cross/shares"][0, 0], np.array([2, 2, 0, 2, 0, 0]) / 6, rtol=1e-6
    )
    for shares in (statistics["encoder/shares"], statistics["cross/shares"]):
        np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-6)


@pytest.fixture(scope="module", params=["transformer", "language"])
def built(request):
    settings = tiny.resolve(model__kind=request.param, model__N=2, model__biases=True)
    program = program_of(
        settings, tiny.corpus().vocabulary().size, tiny.corpus().length(settings)
    )
    state = initial_state(program, settings)
    draw = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + 0.3 * jnp.asarray(draw.normal(size=x.shape), x.dtype),
        state.params,
    )
    return program, state._replace(params=params, moments=())


def test_every_head_is_named_once(built):
    program, state = built
    heads = list(head_importance.all_heads(state.params, program.model))
    kinds = (
        ("decoder",)
        if program.model.kind == "language"
        else ("encoder", "decoder", "cross")
    )
    assert set(heads) == {
        Head(kind, layer, head) for kind in kinds for layer in (0, 1) for head in (0, 1)
    }
    assert len(heads) == len(set(heads))


def test_models_without_heads_have_none():
    settings = tiny.resolve(model__kind="rnn")
    program = program_of(settings, 500, 48)
    params = jax.eval_shape(lambda: initial_variables(program, jax.random.key(0)))[
        "params"
    ]
    assert not list(head_importance.all_heads(params, program.model))


def test_without_w_o_values_are_switched_off_that_are_one_heads_own():
    own = {"w_q": jnp.ones((8, 4, 3)), "w_v": jnp.ones((8, 4, 3)), "b_v": jnp.ones(4)}
    shared = own | {"w_v": jnp.ones((8, 2, 3))}
    params = {"decoder_0": {"self_attention": own, "cross_attention": shared}}
    model = config.Transformer(N=1, encoder={"N": 1})
    heads = [Head("decoder", 0, number) for number in range(4)]
    assert list(head_importance.all_heads(params, model)) == heads
    off = head_importance.without(State(0, params, (), ()), heads[3])
    changed = off.params["decoder_0"]["self_attention"]
    np.testing.assert_array_equal(changed["w_v"], own["w_v"].at[:, 3].set(0))
    np.testing.assert_array_equal(changed["b_v"], own["b_v"].at[3].set(0))
    # To values of the first layer those of a head are added.
    model = dataclasses.replace(model, residual=ValueResidual())
    assert not list(head_importance.all_heads(params, model))


@functools.cache
def losses_of(program):
    return over_lanes(functools.partial(token_losses, program))


def losses(program, state):
    states = Lanes().stack([jax.device_get(state)])
    run = losses_of(program)
    return sentence_losses(
        run, states, tiny.corpus().validation.ids, 12, program.length
    )


def test_a_head_that_is_off_is_one_whose_output_is_cut(built):
    """Its part of W_O set to 0 does the same; the other heads are as they were."""
    program, state = built
    head = Head("decoder", 1, 1)
    layer, name = head.path(state.params)
    values = dict(state.params[layer][name])
    values["w_v"] = values["w_v"].at[:, 1].set(0)
    values["b_v"] = values["b_v"].at[1].set(0)
    other = state._replace(
        params={**state.params, layer: {**state.params[layer], name: values}}
    )
    off = head_importance.without(state, head)
    np.testing.assert_allclose(
        losses(program, off)[0], losses(program, other)[0], rtol=1e-5
    )
    assert np.abs(losses(program, off)[0] - losses(program, state)[0]).max() > 1e-3
    # By W_O: a value residual would add to values that are 0.
    cut = off.params[layer][name]
    assert cut["w_v"][:, 1].any() and not cut["w_o"][1].any()


def test_layers_and_heads_that_there_are_not_are_no_zeros(tmp_path):
    """Three layers: without attention, of two heads behind a short convolution, of one."""
    own = dict(
        model__kind="language",
        model__N=3,
        model__positions="none",
        model__decoder__layer_1__mixing="mamba2",
        model__decoder__layer_2__mixing="short",
        model__decoder__layer_3__h=1,
        evaluation__head_importance=True,
        training__steps=4,
    )
    result = loop.run(tiny.shared(**own), tiny.corpus(), tmp_path)
    (run,) = read_results(tmp_path).trials
    measured = read_heads(run)
    there = [[False, False], [True, True], [True, False]]
    for what in ("entropy", "first", "distance", "importance", "p_value"):
        np.testing.assert_array_equal(~np.isnan(measured[f"decoder/{what}"]), there)
    known = measured["decoder/entropy"][1:].ravel()[:3]
    assert result["attention_entropy"] == pytest.approx(known.mean(), rel=1e-6)
    (first, *_) = read_examples(run)
    np.testing.assert_array_equal(heat_maps.is_head(first.attention["decoder"]), there)
    assert telling_head([first.attention], "decoder")[0] > 0
    (grid,) = grids([("one", measured)])
    named = ["layer 2, head 1", "layer 2, head 2", "layer 3, head 1"]
    assert [row[0] for row in grid.rows] == [f"decoder, {name}" for name in named]


def test_importance_by_hand():
    draw = np.random.default_rng(0)
    tokens = draw.integers(3, 20, 200)
    before = tokens * draw.normal(2, 0.3, 200)
    others = {
        Head("cross", 0, 0): before + tokens * draw.normal(0.5, 0.1, 200),
        Head("cross", 1, 1): before + draw.normal(0, 1, 200),
        Head("encoder", 0, 0): before,
    }
    measured = head_importance.importance(before, others, tokens)
    d = others[Head("cross", 0, 0)] - before
    assert measured["cross/importance"][0, 0] == pytest.approx(
        d.sum() / tokens.sum(), rel=1e-5
    )
    drawn = [draw.integers(0, 200, 200) for _ in range(4000)]
    for head in ((0, 0), (1, 1)):
        d = others[Head("cross", *head)] - before
        spread = np.std([d[i].sum() / tokens[i].sum() for i in drawn])
        assert measured["cross/error"][head] == pytest.approx(spread, rel=0.1)
    assert np.isnan(measured["cross/importance"][0, 1])
    p_values = measured["cross/p_value"]
    assert measured["encoder/p_value"][0, 0] == 1
    assert p_values[0, 0] < 1e-6 < 0.05 < p_values[1, 1]


def test_p_values_are_of_one_head_alone():
    draw = np.random.default_rng(0)
    tokens = draw.integers(3, 20, 50)
    before = tokens * draw.normal(2, 0.3, 50)
    others = {Head("cross", 0, i): before + draw.normal(0.2, 1, 50) for i in range(3)}
    together = head_importance.importance(before, others, tokens)
    for head, losses in others.items():
        alone = head_importance.importance(before, {head: losses}, tokens)
        p_value = together["cross/p_value"][0, head.number]
        assert p_value == alone["cross/p_value"][0, head.number]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_of_sentences_of_one_length_it_is_the_t_test(count):
    draw = np.random.default_rng(count)
    d = draw.normal(0.3, 1, count)
    others = {Head("encoder", 0, 0): 5 + d}
    tokens = np.full(count, 4)
    measured = head_importance.importance(np.full(count, 5.0), others, tokens)
    expected = scipy.stats.ttest_1samp(d, 0)
    share = measured["encoder/importance"] / measured["encoder/error"]
    assert share[0, 0] == pytest.approx(expected.statistic, rel=1e-5)
    assert measured["encoder/p_value"][0, 0] == pytest.approx(expected.pvalue, rel=1e-5)


def test_the_report_corrects_p_values_over_all_heads():
    raw = {"encoder/p_value": [[0.01, 0.4]], "cross/p_value": [[0.02, np.nan]]}
    arrays = {name: np.float32(values) for name, values in raw.items()}
    corrected = _corrected(arrays)
    np.testing.assert_allclose(corrected["encoder/p"], [[0.03, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(corrected["cross/p"], [[0.04, np.nan]], rtol=1e-6)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("heads")
    settings = tiny.shared(evaluation__head_importance=True)
    return workdir, settings, loop.run(settings, tiny.corpus(), workdir)


@pytest.mark.ci
def test_a_trial_that_is_asked_measures_its_heads(measured):
    workdir, _, result = measured
    (run,) = read_results(workdir).trials
    heads = read_heads(run)
    for kind in KINDS:
        assert {name for name in heads if name.startswith(f"{kind}/")} == {
            f"{kind}/{what}"
            for what in (
                "entropy",
                "first",
                "distance",
                "shares",
                "importance",
                "error",
                "p_value",
            )
        }
        assert (
            heads[f"{kind}/entropy"].shape
            == heads[f"{kind}/importance"].shape
            == (1, 2)
        )
    assert result["status"] == "finished"


@pytest.mark.ci
def test_the_report_tells_of_each_head(measured):
    workdir, *_ = measured
    written = write_report(workdir)
    page = written.html.read_text("utf-8")
    for text in (
        "What heads do",
        "cross, layer 1, head 2",
        "Importance of heads",
        "Distance of attention",
        "perplexity without, %",
    ):
        assert text in page
    book = read_results(workdir)
    rows = compare_rows(book)
    (grid,) = grids(head_tables(rows))
    assert len(grid.rows) == 6 and all(
        len(row) == len(grid.headings) for row in grid.rows
    )
    assert {row[-1] for row in grid.rows} <= {
        "needed",
        "harmful",
        "no difference shown",
    }


@pytest.mark.ci
def test_a_trial_that_is_not_asked_does_not(tmp_path):
    loop.run(tiny.shared(training__steps=4), tiny.corpus(), tmp_path)
    assert (
        not (tmp_path / "heads.npz").exists()
        and "What heads do" not in write_report(tmp_path).html.read_text()
    )


def test_arrays_that_nobody_wrote_are_refused(tmp_path):
    fakes.sweep(tmp_path, [({}, fakes.finished(), {})])
    (run,) = read_results(tmp_path).trials
    np.savez(run.directory / "heads.npz", **{"encoder/entropy": np.ones((1, 3))})
    assert read_heads(run).keys() == {"encoder/entropy"}
    np.savez(run.directory / "heads.npz", **{"encoder/entropy": np.ones(3)})
    with pytest.raises(ResultsError, match="encoder/entropy has shape"):
        read_heads(run)
