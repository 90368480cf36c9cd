"""The door: what comes in is checked, and what is refused is named."""

import json

import ml_collections
import pytest
from attn.mixing import CELLS
from attn.multihead import CHOICES, HEADS

from attn import POSITIONS, SCORES, layers
from experiments import settings as door
from experiments.settings import Settings, SettingsError, default_config, resolve


def test_defaults_are_the_papers_base():
    settings = resolve(default_config())
    assert settings == Settings()
    m, t = settings.model, settings.training
    assert (m.N, m.d_model, m.d_ff, m.h, m.d_k, m.d_v, m.P_drop) == (
        6,
        512,
        2048,
        8,
        64,
        64,
        0.1,
    )
    assert (t.warmup, t.beta_1, t.beta_2, t.eps, t.eps_ls, t.steps) == (
        4000,
        0.9,
        0.98,
        1e-9,
        0.1,
        100_000,
    )
    e = settings.evaluation
    assert (e.beam, e.alpha, e.max_extra, e.weights) == (4, 0.6, 50, "raw")


def test_a_point_goes_on_top_and_leaves_the_config_alone():
    config = default_config()
    settings = resolve(config, {"model.h": 2, "seed": 3, "model.P_drop": 0})
    assert (settings.model.h, settings.seed, settings.model.P_drop) == (2, 3, 0.0)
    assert isinstance(settings.model.P_drop, float)
    assert config.model.h == 8


def test_digest_tells_settings_apart_and_survives_json():
    a, b = resolve({}), resolve({"seed": 1})
    assert a.digest() != b.digest()
    assert resolve(json.loads(json.dumps(b.to_dict()))) == b


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "model.hh",
            2,
            "model.hh: no such setting; did you mean model.h? (known: model.kind, ",
        ),
        ("modle.h", 2, "modle.h: no such setting; did you mean model?"),
        ("model", 2, "model is a group of settings"),
        ("model.h.x", 2, "model.h is a value, not a group"),
        ("model.h", "two", "model.h='two' must be int, not str"),
        ("model.h", 2.0, "model.h=2.0 must be int, not float"),
        ("model.h", True, "model.h=True must be int, not bool"),
        ("model.h", None, "model.h=None must be int, not NoneType"),
        ("model.h", 0, "model.h=0 must be at least 1"),
        (
            "model.positions",
            "sinusoidle",
            "model.positions='sinusoidle' must be one of sinusoidal, sinusoidal_halves,",
        ),
        ("model.P_drop", 1.0, "model.P_drop=1.0 must be at least 0 and below 1"),
        ("model.P_drop", float("nan"), "model.P_drop=nan must be"),
        (
            "training.learning_rate",
            float("inf"),
            "training.learning_rate=inf must be finite",
        ),
        ("model.d_model", 511, "model.d_model=511 must be even"),
        (
            "training.warmup",
            200_000,
            "training.warmup=200000 must not exceed training.steps=100000",
        ),
        (
            "data.max_length",
            65,
            "training.sequence_length=64 must hold the longest sentence, data.max_length=65",
        ),
        ("data.corpus", "files", "needs data.directory"),
        (
            "data.directory",
            "somewhere",
            "data.directory='somewhere' is read by data.corpus=files",
        ),
        ("data.target", "en", "data.source and data.target are both 'en'"),
        ("data.tokenized", True, "data.tokenized=True is for data.corpus=files"),
        (
            "training.precision",
            "float16",
            "training.precision='float16' must be one of float32, bfloat16",
        ),
        (
            "training.accumulate",
            3,
            "training.batch_size=16 must be divisible by training.accumulate=3",
        ),
        ("training.ema", 1.0, "training.ema=1.0 must be at least 0 and below 1"),
        (
            "evaluation.weights",
            "ema",
            "evaluation.weights=ema needs training.ema above 0",
        ),
        (
            "evaluation.weights",
            "average",
            "evaluation.weights=average needs training.average above 0",
        ),
    ],
)
def test_nonsense_is_named(key, value, message):
    with pytest.raises(SettingsError) as caught:
        resolve(default_config(), {key: value})
    assert message in str(caught.value)


def test_holes_of_ml_collections_are_closed():
    config = default_config()
    config.model.h = None  # which a ConfigDict takes, and then takes anything
    config.model.h = "x"
    with pytest.raises(SettingsError, match=r"model\.h='x' must be int"):
        resolve(config)
    with pytest.raises(
        SettingsError, match=r"model must be a group of settings, not 3"
    ):
        resolve(ml_collections.ConfigDict({"model": 3}))


def test_the_door_knows_the_names_of_the_library():
    assert tuple(POSITIONS) == door.POSITIONS
    assert (*SCORES, "none") == door.SCORES
    assert ("none", *door.RELATIVE) == layers.RELATIVE
    assert (layers.NORMS, tuple(layers.EMBEDDINGS)) == (door.NORMS, door.EMBEDDINGS)
    assert tuple(layers.ACTIVATIONS) == door.ACTIVATIONS
    assert (tuple(layers.MIXING), tuple(CELLS)) == (door.MIXING, door.CELLS)
    assert (door.HEADS, door.CHOICES) == (HEADS, CHOICES)
