"""Trials that are scored, and that translate, with matrices in 8 bits a number."""

import jax
import numpy as np
import pytest

from attn.io import Int8, dequantise, quantise
from experiments.evaluation.perplexity import perplexity, sentence_losses
from experiments.inference import Translator, load_model
from experiments.training import loop
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.step import token_losses
from tests.experiments import tiny
from tests.experiments.training.trials import ONE_DEVICE, metrics

LARGE = dict(model__d_model=64, model__d_ff=96, evaluation__beam=2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two lanes that differ in how they are scored alone: the directory, and their results."""
    root = tmp_path_factory.mktemp("int8")
    settings = dict(
        float32=tiny.resolve(**LARGE),
        int8=tiny.resolve(**LARGE, evaluation__int8=True),
    )
    jobs = [loop.Job(own, root / name, name) for name, own in settings.items()]
    results = loop.run_all(jobs, tiny.corpus(), ONE_DEVICE)
    return root, dict(zip(settings, results, strict=True))


def test_training_is_the_same(pair):
    root, _ = pair
    assert metrics(root / "int8") == metrics(root / "float32")


def test_scores_are_those_of_rounded_matrices(pair):
    root, results = pair
    model = load_model(root / "float32")
    params = dequantise(quantise(model.state.params))
    exact = model.state.params["embedding"]
    assert 0 < np.abs(params["embedding"] - exact).max() < np.abs(exact).max() / 200
    states = Lanes().stack([model.state._replace(params=jax.device_get(params))])
    losses = sentence_losses(
        over_lanes(jax.tree_util.Partial(token_losses, model.program)),
        states,
        tiny.corpus().validation.ids,
        8,
        model.program.length,
    )
    (expected,) = perplexity(*losses)
    assert results["int8"]["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert results["float32"]["perplexity"] != pytest.approx(expected, rel=1e-5)


def test_either_trial_translates_with_either(pair):
    root, _ = pair
    lines = tiny.corpus().test.text.source
    written = {}
    for name in ("float32", "int8"):
        text = (root / name / "translations.txt").read_text("utf-8")
        written[name] = text.split("\n")[:-1]
        assert Translator(root / name)(lines) == written[name]
    assert Translator(root / "float32", int8=True)(lines) == written["int8"]
    assert Translator(root / "int8", int8=False)(lines) == written["float32"]


def test_a_loaded_model_takes_a_quarter_of_the_memory(pair):
    root, _ = pair
    small = load_model(root / "int8").state.params
    exact = load_model(root / "float32").state.params
    assert isinstance(small["embedding"], Int8)
    bytes_of = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
    # Vectors stay as they are.
    assert bytes_of(small) < 0.3 * bytes_of(exact)
