"""Trained models scored on other files: as their trials scored them, and two side by side."""

import itertools
import json

import numpy as np
import pytest

from experiments import scoring
from experiments.data import dataset
from experiments.errors import UserError
from experiments.evaluation.metrics import BITS_PER_CHARACTER, BLEU, PERPLEXITY
from experiments.stats.resampling import resamples
from experiments.training import loop
from tests.experiments import tiny


def run(directory, **changes):
    own = tiny.resolve(**changes)
    prepared = dataset.prepare(own.data)
    return prepared, loop.run(own, prepared, directory)


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    directory = tmp_path_factory.mktemp("translators")
    found = {}
    for name, changes in (("one", {}), ("two", dict(seed=1))):
        found[name] = run(directory / name, **changes)
    return directory, found


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    directory = tmp_path_factory.mktemp("language")
    return directory, *run(directory, model__kind="language")


def by_key(scored):
    return {metric.key: scored.score(metric) for metric in scored.metrics}


def test_scores_of_its_own_test_are_those_of_the_trial(translators):
    directory, found = translators
    prepared, result = found["one"]
    test, validation = prepared.test.text, prepared.validation.text
    scored = scoring.score(directory / "one", test.source, test.target)
    for key, value in by_key(scored).items():
        if key != "perplexity":
            assert value == pytest.approx(result[key], rel=1e-6, abs=1e-9), key
    assert (
        list(scored.texts)
        == (directory / "one/translations.txt").read_text().splitlines()
    )
    assert scored.signatures == result["signatures"]
    scored = scoring.score(directory / "one", validation.source, validation.target)
    assert scored.score(PERPLEXITY) == pytest.approx(result["perplexity"], rel=1e-5)


def test_two_models_are_compared_on_the_same_resampled_texts(translators):
    directory, found = translators
    test = found["one"][0].test.text
    one, two = (
        scoring.score(directory / name, test.source, test.target)
        for name in ("one", "two")
    )
    sets = resamples(len(test.source))
    expected = []
    for scored in (one, two):
        nll, tokens = scored.tables["perplexity"].T
        expected.append(np.exp((sets @ nll) / (sets @ tokens)))
    draws = one.draws(PERPLEXITY) - two.draws(PERPLEXITY)
    np.testing.assert_allclose(draws, expected[0] - expected[1], rtol=1e-9, atol=1e-9)
    low, high = np.percentile(draws, (2.5, 97.5))
    (line,) = [x for x in scoring.differences(one, two) if x.startswith("perplexity")]
    assert f"[{low:+.3f}, {high:+.3f}]" in line
    assert line.endswith(scoring.verdict(PERPLEXITY, low, high))


@pytest.mark.parametrize(
    ("metric", "ends", "said"),
    [
        (PERPLEXITY, (0.1, 0.2), "worse"),
        (PERPLEXITY, (-0.2, -0.1), "better"),
        (BLEU, (0.1, 0.2), "better"),
        (BLEU, (-0.2, -0.1), "worse"),
        (BLEU, (-0.1, 0.1), "undecided by this text"),
    ],
)
def test_what_an_interval_decides(metric, ends, said):
    assert scoring.verdict(metric, *ends) == said


def test_by_length_every_text_is_in_one_part(translators):
    directory, found = translators
    test = found["one"][0].test.text
    scored = scoring.score(directory / "one", test.source, test.target)
    buckets = scored.buckets()
    numbers = np.concatenate([part for _, _, part in buckets])
    assert sorted(numbers) == list(range(len(test.source)))
    for (_, longest, _), (shortest, _, _) in itertools.pairwise(buckets):
        assert longest < shortest
    table = scored.tables["perplexity"]
    for _, _, part in buckets:
        nll, tokens = table[part].sum(0)
        assert scored.score(PERPLEXITY, part) == pytest.approx(np.exp(nll / tokens))


def test_a_language_model_has_the_scores_of_its_trial(language):
    directory, prepared, result = language
    scored = scoring.score(directory, prepared.test.text.target)
    expected = {key: result[f"test_{key}"] for key in by_key(scored)}
    assert by_key(scored) == pytest.approx(expected, rel=1e-5)
    assert set(expected) == {"perplexity", "bits_per_character"}


def test_lines_without_a_text_are_left_out_as_in_training(language, translators):
    directory, prepared, _ = language
    texts = prepared.test.text.target[:3]
    scored = scoring.score(directory, ["", texts[0], " ", *texts[1:]])
    assert by_key(scored) == by_key(scoring.score(directory, texts))
    assert scored.texts == ("", texts[0], "", *texts[1:]) and scored.empty == 2
    assert any("2 lines without" in line for line in scoring.lines_of(scored))
    # Lines are counted as in the file.
    assert "Ж in line 2" in scoring.score(directory, ["", "Ж"]).unseen
    directory, found = translators
    (sources, targets) = (side[:2] for side in found["one"][0].test.text)
    gaps = [sources[0], "", sources[1], "a"], [targets[0], "", targets[1], " "]
    scored = scoring.score(directory / "one", *gaps)
    whole = scoring.score(directory / "one", sources, targets)
    assert by_key(scored) == by_key(whole)
    assert scored.texts == (whole.texts[0], "", whole.texts[1], "")
    with pytest.raises(UserError, match="there is no text with a reference to score"):
        scoring.score(directory / "one", ["a", ""], ["", "b"])


def test_a_long_text_is_read_in_parts(language):
    directory, prepared, _ = language
    long = " ".join(prepared.test.text.target)
    one = scoring.score(directory, [long, "ein"])
    nll, characters = one.tables[BITS_PER_CHARACTER.key].T
    assert characters[0] == len(long) and characters[1] == 3
    # Some parts, each with an end.
    ids = len(prepared.vocabulary().encode([long])[0])
    assert ids + 2 <= one.lengths[0] <= ids + 2 + ids // 20
    assert (nll > 0).all()


def test_models_of_two_vocabularies_share_no_perplexity(language, tmp_path):
    directory, prepared, _ = language
    run(tmp_path, model__kind="language", data__vocabulary="characters")
    texts = prepared.test.text.target
    both = [scoring.score(place, texts) for place in (directory, tmp_path)]
    of_tokens, of_characters = scoring.differences(*both)
    assert "not compared" in of_tokens
    assert of_characters.startswith("bits per character") and "[" in of_characters


def test_what_cannot_be_scored_is_said(translators, language):
    directory, _ = translators
    one = directory / "one"
    with pytest.raises(UserError, match="that writes: give it references"):
        scoring.score(one, ["a"])
    with pytest.raises(UserError, match="2 sources for 1 references: a line each"):
        scoring.score(one, ["a", "b"], ["c"])
    with pytest.raises(UserError, match="there are no texts to score"):
        scoring.score(one, ["", " "], ["a", "b"])
    with pytest.raises(UserError, match="a language model: it needs no references"):
        scoring.score(language[0], ["a"], ["b"])


def test_labels_are_scored(tmp_path):
    changes = {
        "model.kind": "classifier",
        "data.corpus": "first",
        "data.length": 9,
        "data.symbols": 5,
    }
    own = {key.replace(".", "__"): value for key, value in changes.items()}
    prepared, result = run(tmp_path, **own)
    test = prepared.test.text
    scored = scoring.score(tmp_path, test.source, test.target)
    for key in ("accuracy", "macro_f1"):
        assert by_key(scored)[key] == pytest.approx(result[key])
    with pytest.raises(UserError, match="'nothing' is none of the labels"):
        scoring.score(tmp_path, test.source[:1], ["nothing"])


def test_all_of_it_is_kept_as_data(translators):
    directory, found = translators
    test = found["one"][0].test.text
    scored = scoring.score(directory / "one", test.source, test.target)
    (record,) = json.loads(json.dumps(scoring.as_json([scored])))
    assert set(record["scores"]) == set(by_key(scored))
    bleu = record["scores"]["bleu"]
    assert bleu["score"] == scored.score(BLEU) and bleu["signature"].startswith(
        "nrefs:1"
    )
    assert sum(part["texts"] for part in record["by_length"]) == len(test.source)
