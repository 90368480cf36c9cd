"""What a trial writes of its attention: by the measures of heads, and by scores in float64."""

import json

import jax
import numpy as np
import pytest

from experiments.data.batches import padded
from experiments.evaluation import head_importance
from experiments.evaluation.attention_maps import attention_weights, attentions
from experiments.evaluation.attention_watch import watch_attention
from experiments.training import loop
from experiments.trial.program import initial_state, program_of
from tests.experiments import tiny

LENGTH = 48


@pytest.fixture(scope="module")
def parts():
    own = tiny.resolve(model__N=2)
    corpus = tiny.corpus()
    program = program_of(own, corpus.vocabulary().size, LENGTH)
    state = initial_state(program, own)
    # Scores of some size, as after training.
    params = jax.tree.map(lambda x: 3 * x, state.params)
    return program, state._replace(params=params), corpus.test


def batches(parts):
    program, _, test = parts
    for _, batch in padded(test.ids, len(test.ids.source), LENGTH, program.objective):
        lengths = [
            (segments > 0).sum(-1)
            for segments in (batch.source_segments, batch.target_segments)
        ]
        yield batch, lengths


def test_equals_the_measures_of_heads(parts):
    program, state, test = parts
    ((batch, lengths),) = batches(parts)
    found = watch_attention(program, state, batch.source, batch.target_in, lengths)
    weights = jax.jit(lambda *of: attention_weights(program, *of))
    rows = len(test.ids.source)
    expected = head_importance.attention_statistics(weights, state, test, rows, LENGTH)
    assert len(found) == 3 * 2 * 3
    for name, measured in (("entropy", "entropy"), ("first_token", "first")):
        for kind in ("encoder", "decoder", "cross"):
            of_layers = [
                found[f"{kind}/layer_{layer + 1}/{name}"] for layer in range(2)
            ]
            by_head = expected[f"{kind}/{measured}"]
            np.testing.assert_allclose(of_layers, by_head.mean(1), rtol=2e-5)


def test_the_highest_score_is_of_queries_that_are_there(parts, monkeypatch):
    scores = np.array([[[1, 5, 2], [0, 1, 9]], [[7, 8, 8], [3, 4, 9]]], np.float32)
    kept = dict(weights=np.ones((2, 2, 3, 3), np.float32), max_score=scores)
    for kind, highest in (("encoder", 7), ("decoder", 5), ("cross", 5)):
        monkeypatch.setattr(
            "experiments.evaluation.attention_watch.attentions",
            lambda *of, kind=kind: {kind: {3: kept}},
        )
        lengths = np.array([1, 1]), np.array([2, 0])
        found = watch_attention(*parts[:2], None, None, lengths)
        assert found[f"{kind}/layer_4/max_score"] == highest


def test_what_has_scores_of_its_own_has_no_highest():
    own = tiny.resolve(model__heads="talking", model__kind="language")
    corpus = tiny.corpus()
    program = program_of(own, corpus.vocabulary().size, LENGTH)
    state = initial_state(program, own)
    tokens = np.ones((2, 5), np.int32)
    lengths = np.array([5, 3])
    kept = attentions(program, state, tokens, tokens, lengths)
    assert set(kept["decoder"][0]) == {"weights"}
    found = watch_attention(program, state, tokens, tokens, (lengths, lengths))
    assert set(found) == {"decoder/layer_1/entropy", "decoder/layer_1/first_token"}


@pytest.mark.parametrize("watch", [True, False])
def test_a_trial_writes_them_where_they_are_asked_for(tmp_path, watch):
    own = tiny.resolve(evaluation__watch_attention=watch)
    loop.run(own, tiny.corpus(), tmp_path)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    of_validation = [line for line in lines if line["split"] == "validation"]
    assert len(of_validation) == 2
    for line in of_validation:
        assert ("attention/cross/layer_1/max_score" in line) == watch
        assert ("attention/decoder/layer_1/entropy" in line) == watch
