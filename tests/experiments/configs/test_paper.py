"""The paper's configs: its numbers, its Table 3, and what a README line says of them."""

import dataclasses
import re
from pathlib import Path

import jax
import pytest

from attn import Sinusoidal
from attn.nn.norms import Post
from experiments.configs import paper, table3
from experiments.settings import Settings, resolve
from experiments.settings.schema import Rates
from experiments.trial.program import initial_variables, program_of

ROOT = Path(__file__).parents[3]
VOCABULARY = 7

# Table 3, without the embeddings, in millions.
CORE = {
    "base": 44.10,
    "h=1": 44.10,
    "h=4": 44.10,
    "h=16": 44.10,
    "h=32": 44.10,
    "d_k=16": 37.02,
    "d_k=32": 39.38,
    "N=2": 14.70,
    "N=4": 29.40,
    "N=8": 58.80,
    "d_model=256": 17.34,
    "d_model=1024": 125.93,
    "d_ff=1024": 31.51,
    "d_ff=4096": 69.29,
    "P_drop=0": 44.10,
    "P_drop=0.2": 44.10,
    "eps_ls=0": 44.10,
    "eps_ls=0.2": 44.10,
    "learned": 44.10,
    "big": 176.28,
}


@pytest.fixture(scope="module")
def core():
    """Parameters beside the embeddings of a Settings, built by shape, each shape once.

    Of other widths than the base's one layer of each stack is built, and counted N times.
    """
    known = {}
    base = Settings().model.without_tables()

    def count(settings):
        program = program_of(settings, VOCABULARY, length=2)
        N = program.model.N
        is_deep = program.model == dataclasses.replace(base, N=N)
        built = N if is_deep else 1
        model = dataclasses.replace(program.model, N=built)
        if model not in known:
            known[model] = of_model(program._replace(model=model))
        return known[model] * N // built

    def of_model(program):
        init = jax.eval_shape(
            lambda key: initial_variables(program, key), jax.random.key(0)
        )
        embedding = VOCABULARY * program.model.d_model
        return sum(x.size for x in jax.tree.leaves(init["params"])) - embedding

    return count


@pytest.mark.parametrize(
    ("point", "millions"),
    list(zip(table3.sweep_rows(table3.get_config()), CORE.values(), strict=True)),
    ids=CORE,
)
def test_core_parameters_of_every_row_of_table_3(core, point, millions):
    settings = resolve(
        table3.get_config(),
        {key: value for key, value in point.items() if key != "label"},
    )
    m = settings.model
    parameters = core(settings)
    assert parameters == m.N * (
        6 * m.d_model * m.h * (m.d_k + m.d_v)
        + 4 * m.d_model * m.d_ff
        + 2 * m.d_ff
        + 12 * m.d_model
    )
    assert round(parameters / 1e6, 2) == millions


def test_the_models_are_the_papers():
    base, big = (resolve(paper.get_config(model)) for model in paper.MODELS)
    assert base.model == Settings().model
    for settings, steps, average, P_drop in (
        (base, 100_000, 5, 0.1),
        (big, 300_000, 20, 0.3),
    ):
        m, t, e = settings.model, settings.training, settings.evaluation
        assert (m.norm, m.embeddings, m.scale, m.biases, m.positions) == (
            Post(),
            "tied",
            m.d_model**0.5,
            False,
            Sinusoidal(),
        )
        assert settings.rates == Rates(P_drop)
        assert (
            t.optimizer,
            t.learning_rate,
            t.schedule,
            t.schedule_choice.warmup,
            t.clip,
            t.eps_ls,
            t.ema,
        ) == ("adam", 1, "paper", 4000, 0, 0.1, 0)
        assert (t.steps, t.average, e.weights) == (steps, average, "average")
        assert (e.beam, e.alpha, e.max_extra) == (4, 0.6, 50)
        assert 25_000 <= t.batch_size * t.sequence_length < 27_000


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="unknown model 'huge'; known: base, big"):
        paper.get_config("huge")


def test_the_docstring_names_code_that_is_there():
    """Each statement of the paper is followed by files, and by text that is in them."""
    lines = re.findall(r"(?m)^ {7}([\w/]+\.py): (.+)$", paper.__doc__)
    assert len(lines) >= 20
    for path, snippets in lines:
        code = (ROOT / path).read_text().split('"""')[::2]
        for snippet in re.findall(r"`([^`]+)`", snippets):
            assert any(snippet in part for part in code), f"{path} has no {snippet}"
