"""What launch.train says at the end of a trial."""

import sys

import pytest

from experiments.evaluation.metrics import METRICS
from tests.experiments import fakes, tiny


@pytest.fixture
def train(run):
    """The module of the command, whose flags the fixture `run` defines and removes."""
    run("train", "--help")
    return sys.modules["launch.train"]


def test_scores_at_the_end_say_how_they_were_made(train):
    """Greedy scores of the same weights on fewer sentences stand some lines above."""
    scores = dict(perplexity=18.4, bleu=10.54)
    result = fakes.finished(18.4, 10.54) | {
        "beside": {"raw": dict(validation=scores, test=dict(bleu=10.5))}
    }
    settings = tiny.resolve(evaluation__beam=4)
    last, beside = train.ending(settings, tiny.corpus(), result, METRICS)
    assert last.startswith("\ntest, beam 4 on 12 sentences: BLEU 10.5  chrF 95.0")
    assert "; validation perplexity 18.400; 241,664 parameters" in last
    assert beside == (
        "raw       validation, beam 4 on 12 sentences: perplexity 18.4  bleu 10.54  "
        "test, beam 4 on 12 sentences: bleu 10.5"
    )


def test_a_language_model_searches_for_nothing(train):
    result = dict(parameters=1000, perplexity=2.0, test_perplexity=3.0)
    (last,) = train.ending(tiny.resolve(), tiny.corpus(), result, METRICS)
    assert last == (
        "\ntest, on 12 sentences: perplexity 3.000; validation perplexity 2.000; "
        "1,000 parameters"
    )
