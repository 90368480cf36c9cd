"""Answers to tasks: what counts as one, how they are scored, and a trial that gives them."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Context, Mask
from experiments.data import dataset
from experiments.data.batches import Batches, Encoded
from experiments.data.vocabulary import Vocabulary, symbol_vocabulary
from experiments.errors import WorkdirError
from experiments.evaluation.answers import accuracy_by, choose, choose_batch
from experiments.evaluation.evaluator import metrics_of
from experiments.evaluation.metrics import ACCURACY, Texts, corpus_scores
from experiments.evaluation.perplexity import sentence_losses
from experiments.inference import Sampler
from experiments.objectives import NOTHING_ID, Answer, Translate
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.report.write import write_report
from experiments.settings import resolve
from experiments.training import loop
from experiments.trial import step
from experiments.trial.lanes import Lanes, distribute, over_lanes
from experiments.trial.program import (
    build_model,
    hyper_of,
    initial_state,
    program_of,
)
from tests.experiments import own_parts, tiny


def settings(**changes):
    recall = dict(
        model__kind="language",
        model__P_drop=0.0,
        data__corpus="recall",
        data__length=23,
        data__symbols=14,
        training__eps_ls=0.0,
    )
    return tiny.resolve(**{**recall, **changes})


@functools.cache
def trial():
    """(corpus, program, state) of an untrained model."""
    own = settings()
    corpus = dataset.prepare(own.data)
    program = program_of(own, corpus.vocabulary().size, corpus.length(own))
    return corpus, program, jax.device_get(initial_state(program, own))


@functools.partial(jax.jit, static_argnums=0)
def hidden_states(program, variables, ids):
    ctx = Context(Mask.causal())
    return build_model(program).apply(variables, ids[None], ctx)[0]


def log_probabilities(state, program, ids):
    """log p of each token after each of one text's, in a pass of its own; float64."""
    variables = state.variables
    hidden = hidden_states(program, variables, jnp.asarray(ids))
    logits = np.asarray(hidden, float) @ np.asarray(state.params["embedding"], float).T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_answers_of_texts_are_right_word_by_word():
    ours = ["_ a _ b", "a b", "", "_ c"]
    references = ["_ a _ c", "a b c", "a b", "_ _"]
    texts = Texts(ours, references)
    counts = ACCURACY.of_sentences(texts)
    assert counts.tolist() == [[1, 2], [2, 3], [0, 2], [0, 0]]
    assert ACCURACY.of_corpus(texts) == pytest.approx(3 / 7)
    assert ACCURACY.of_sums(np.zeros((3, 2)), 0).tolist() == [0, 0, 0]


def test_accuracy_by_position_and_distance():
    ours = ["_ a _ b a", "x x"]
    references = ["_ a _ c a", "x y"]
    by = accuracy_by(ours, references, [[0, 3, 9], [1, 2]])
    assert by["position"] == {
        "1": dict(accuracy=1.0, answers=2),
        "2-3": dict(accuracy=1 / 3, answers=3),
    }
    assert by["distance"] == {
        "0": dict(accuracy=1.0, answers=1),
        "1": dict(accuracy=1.0, answers=1),
        "2-3": dict(accuracy=0.0, answers=2),
        "8-15": dict(accuracy=1.0, answers=1),
    }
    assert accuracy_by(ours, references, None).keys() == {"position"}


def test_a_vocabulary_of_symbols():
    vocabulary = Vocabulary(symbol_vocabulary(["b", ">", "s10", "s1"]))
    assert vocabulary.size == 9
    (ids,) = vocabulary.encode(["_ _ s1 > s10 _ b _"])
    assert len(ids) == 8 and (ids[[0, 1, 5, 7]] == NOTHING_ID).all()
    assert vocabulary.decode([ids]) == ["_ _ s1 > s10 _ b _"]


def test_losses_are_those_of_answers_in_passes_of_their_own():
    corpus, program, state = trial()
    losses, tokens = sentence_losses(
        over_lanes(lambda *of: step.token_losses(program, *of)),
        Lanes().stack([state]),
        corpus.test.ids,
        8,
        program.length,
        objective=Answer(),
    )
    for i, (ids, labels) in enumerate(zip(*corpus.test.ids, strict=True)):
        logs = log_probabilities(state, program, ids)
        answers = [(t, label) for t, label in enumerate(labels) if label > NOTHING_ID]
        expected = -sum(logs[t, label] for t, label in answers)
        assert tokens[i] == len(answers) == 4
        assert losses[0, i] == pytest.approx(expected, rel=1e-5)


def test_a_step_is_of_the_answers_alone():
    """Rows hold two texts; the step's loss is the mean over the answers of all of them."""
    corpus, program, state = trial()
    own = settings()
    batches = Batches(corpus.train, batch_size=4, sequence_length=48, seed=0)
    slots = batches.take(1)
    assert (slots >= 0).sum() == 8
    step_of = functools.partial(step.train_steps, program)
    lanes = Lanes()
    steps = distribute(step_of, lanes, donate=False)
    _, metrics = steps(
        lanes.stack([state]), lanes.stack([hyper_of(own)]), corpus.train, slots[None], 1
    )
    expected = []
    for i in slots[slots >= 0]:
        ids, labels = (
            side.ids[side.starts[i] + 1 : side.starts[i] + side.lengths[i]]
            for side in corpus.train
        )
        logs = log_probabilities(state, program, np.asarray(ids, np.int32))
        expected += [-logs[t, label] for t, label in enumerate(labels) if label > 4]
    assert len(expected) == 32 == np.ravel(metrics["tokens"])[0]
    assert np.ravel(metrics["nll"])[0] == pytest.approx(np.mean(expected), rel=1e-5)


def test_answers_are_the_likeliest():
    corpus, program, state = trial()
    answers = over_lanes(functools.partial(choose_batch, program))
    vocabulary = corpus.vocabulary()
    common = (vocabulary, corpus.test.ids, 5, program.length)
    ((*texts,),) = choose(answers, Lanes().stack([state]), *common)
    assert len(texts) == 12
    for ids, labels, text in zip(*corpus.test.ids, texts, strict=True):
        best = log_probabilities(state, program, ids).argmax(-1)
        shown = np.where((labels > NOTHING_ID) & (best > NOTHING_ID), best, NOTHING_ID)
        assert vocabulary.decode([shown]) == [text]


def test_a_mark_for_an_answer_is_wrong_and_ends_nothing():
    vocabulary = Vocabulary(symbol_vocabulary(["a", "b"]))
    (source, target) = vocabulary.encode(["a b a", "a a a"])
    given = np.tile([2, source[1], 1, 0, 3], (1, 2, 1))
    texts = choose(
        lambda states, batch: given,
        None,
        vocabulary,
        Encoded([source], [target]),
        2,
        5,
    )
    assert texts == [["_ b _"]]


def test_padding_and_marks_are_no_answers():
    corpus, *_ = trial()
    batch = next(Batches(corpus.train, batch_size=4, sequence_length=48, seed=0))
    labelled = Answer().scored(batch)
    assert labelled.sum() == 32 and not labelled[batch.target_out <= NOTHING_ID].any()
    assert (Translate().scored(batch) == (batch.target_segments > 0)).all()


def test_a_trial_of_labels(tmp_path):
    own = settings(evaluation__head_importance=True)
    result = loop.run(own, dataset.prepare(own.data), tmp_path)
    assert result["status"] == "finished"
    assert not {"bleu", "chrf", "test_perplexity"} & set(result)
    assert 0 <= result["accuracy"] <= 1 and 0 <= result["exact_match"] <= 1
    answers = sum(
        bucket["answers"] for bucket in result["accuracy_by"]["distance"].values()
    )
    assert answers == 12 * 4
    assert 0 < result["first_token_mass"] < 1 and result["attention_entropy"] > 0
    sentences = read_sentences(read_results(tmp_path).trials[0])
    right, asked = sentences["test_accuracy"].sum(0)
    assert asked == 48 and right / asked == pytest.approx(result["accuracy"])
    assert sentences["validation_tokens"].sum() == 48
    lines = (tmp_path / "translations.txt").read_text().splitlines()
    references = (tmp_path / "references.txt").read_text().splitlines()
    assert ACCURACY.of_corpus(Texts(lines, references)) == result["accuracy"]
    report = write_report(tmp_path)
    page = report.html.read_text("utf-8")
    assert "accuracy" in page and "first-token mass" in page and "BLEU" not in page
    example = json.loads((tmp_path / "examples.json").read_text())[0]
    # The decoder reads the source.
    words = [token.removeprefix("▁") for token in example["target_tokens"]]
    assert words[:-1] == example["source"].split()
    with pytest.raises(WorkdirError, match="has its answers to the test set"):
        Sampler(tmp_path)


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (dict(corpus=f"{own_parts.PLACE}:Classes"), ["exact_match", "accuracy"]),
        (
            dict(corpus="tsv", directory="x", objective="write"),
            ["exact_match", "accuracy"],
        ),
        (dict(corpus="tsv", directory="x"), ["bleu", "chrf", "exact_match"]),
        (dict(corpus=f"{own_parts.PLACE}:Symbols"), ["bleu", "chrf", "exact_match"]),
    ],
)
def test_answers_are_not_scored_as_translations(data, keys):
    """A perfect classifier has no BLEU of 0."""
    labels = ["positive", "negative"]
    scores = corpus_scores(Texts(labels, labels), metrics_of(resolve({"data": data})))
    assert list(scores) == keys
    if "accuracy" in scores:
        assert scores == dict(exact_match=1.0, accuracy=1.0)


@pytest.mark.ci
def test_an_encoder_decoder_answers_pairs(tmp_path):
    own = settings(model__kind="transformer", data__form="pairs")
    result = loop.run(own, dataset.prepare(own.data), tmp_path)
    assert 0 <= result["accuracy"] <= 1 and "bleu" not in result
    answers = result["accuracy_by"]["position"]
    assert answers["1"]["answers"] == 12
