"""The door: what comes in is checked, and what is refused is named."""

import ast
import inspect
import itertools
import json

import ml_collections
import pytest

from attn import config as models
from experiments.settings import (
    Settings,
    SettingsError,
    corpora,
    data,
    default_config,
    known_fields,
    override,
    resolve,
    schema,
    tasks,
)

pytestmark = pytest.mark.quick


def test_defaults_are_the_papers_base():
    settings = resolve(default_config())
    assert settings == Settings()
    m, t = settings.model, settings.training
    assert (m.N, m.d_model, m.d_ff, m.h, m.d_k, m.d_v, settings.rates.P_drop) == (
        6,
        512,
        2048,
        8,
        64,
        64,
        0.1,
    )
    assert (t.optimizer, t.schedule, t.clip) == ("adam", "paper", 0)
    assert (t.eps_ls, t.steps) == (0.1, 100_000)
    e = settings.evaluation
    assert (e.beam, e.alpha, e.max_extra, e.weights) == (4, 0.6, 50, "raw")


def test_a_point_goes_on_top_and_leaves_the_config_alone():
    config = default_config()
    settings = resolve(config, {"model.h": 2, "seed": 3, "model.P_drop": 0})
    assert (settings.model.h, settings.seed, settings.rates.P_drop) == (2, 3, 0.0)
    assert isinstance(settings.rates.P_drop, float)
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
            "must be one of sinusoidal, learned, none, rotary, alibi, t5, relative",
        ),
        ("model.P_drop", 1.0, "model.P_drop=1.0 must be at least 0 and below 1"),
        ("model.P_drop", float("nan"), "model.P_drop=nan must be"),
        (
            "training.learning_rate",
            float("inf"),
            "training.learning_rate=inf must be finite",
        ),
        ("model.d_model", 511, "d_model=511 must be even"),
        (
            "model.h_kv",
            3,
            "model.h_kv=3: 8 heads of queries cannot share 3 of keys",
        ),
        (
            "model.d_r",
            2,
            "model.d_r=2 is the width of a key",
        ),
        (
            "training.schedule",
            "paper(warmup=200000)",
            "training.schedule=paper(warmup=200000): warmup=200000, with the decay if any, "
            "does not fit into training.steps=100000",
        ),
        (
            "data.max_length",
            65,
            "training.sequence_length=64 must hold the longest text of training: "
            "data.max_length=65",
        ),
        ("data.corpus", "files", "needs data.directory"),
        (
            "data.directory",
            "somewhere",
            "data.directory does not apply to data.corpus=cldr; it is of files, tsv, csv, "
            "jsonl, text",
        ),
        ("data.target", "en", "data.source and data.target are both 'en'"),
        ("data.tokenized", True, "data.tokenized does not apply to data.corpus=cldr"),
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


def test_an_rnn_has_no_heads():
    config = default_config(model="rnn")
    assert "h" not in config.model and "cell" in config.model
    settings = resolve(config)
    assert settings.model.kind == "rnn" and "h" not in settings.to_dict()["model"]


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        ({}, "model.cell", "does not apply to model.kind=transformer; it is of rnn"),
        ({}, "data.train", "does not apply to data.corpus=cldr; it is of files, tsv"),
        (
            {"model": {"kind": "rnn"}},
            "model.h",
            "does not apply to model.kind=rnn; it is of transformer, language",
        ),
        (
            {"model": {"kind": "language"}},
            "model.selection",
            "does not apply to model.kind=language; it is of transformer, rnn",
        ),
        (
            {
                "data": {"corpus": "text", "directory": "x"},
                "model": {"kind": "language"},
            },
            "data.tokenized",
            "does not apply to data.corpus=text; it is of files, tsv, csv, jsonl, tfds, "
            "huggingface, file.py:Name",
        ),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_what_does_not_apply_is_refused(config, key, message, inside):
    group, name = key.split(".")
    point = {key: 1}
    if inside:
        config = config | {group: {**config.get(group, {}), name: 1}}
        point = {}
    with pytest.raises(SettingsError, match=f"^{key} {message}"):
        resolve(config, point)


def test_a_text_of_a_task_that_fits_into_no_row_says_what_to_give():
    """Such a corpus has no setting data.max_length."""
    own = {"model.kind": "language", "data.corpus": "recall", "data.length": 128}
    with pytest.raises(SettingsError, match=r"sequence_length=64 must .*: give it 129"):
        resolve(default_config(), own)


def test_weights_drop_only_where_there_are_any():
    own = {"model.kind": "language", "model.positions": "none"}
    own |= {"model.decoder_mixing": "deltanet", "model.P_attention": 0.1}
    with pytest.raises(SettingsError, match=r"P_attention=0\.1 drops weights of"):
        resolve(default_config(), own)
    assert resolve(default_config(), own | {"model.decoder_mixing": "attention"})


def test_a_flag_that_does_not_apply_to_a_points_kind_is_refused():
    flags = {"model.h": 2}
    with pytest.raises(
        SettingsError, match=r"^model\.h does not apply to model\.kind=rnn"
    ):
        resolve(override({}, flags), {"model.kind": "rnn"}, flags)


def test_switching_the_kind_keeps_what_both_have():
    config = default_config()
    config.model.update(h=2, d_model=64, P_drop=0.3)
    settings = resolve(config, {"model.kind": "rnn"})
    assert (settings.model.d_model, settings.rates.P_drop) == (64, 0.3)


def test_override_gives_a_config_of_the_new_kind():
    config = override(default_config(), {"model.kind": "rnn", "data.corpus": "tsv"})
    assert config.model.cell == "lstm" and "h" not in config.model
    assert config.data.source_column == "0" and "pairs" not in config.data


def test_an_rnn_has_no_stacks_for_remat():
    with pytest.raises(SettingsError, match=r"training.remat=True must be False"):
        resolve({}, {"model.kind": "rnn", "training.remat": True})


def test_columns_of_a_table_are_two():
    point = {"data.corpus": "tsv", "data.directory": "x", "data.source_column": "1"}
    with pytest.raises(SettingsError, match=r"data.target_column are both '1'"):
        resolve({}, point)


def documented(module):
    """Gives the names of annotated fields that a docstring follows."""
    for cls in ast.parse(inspect.getsource(module)).body:
        statements = getattr(cls, "body", [])
        for field, following in itertools.pairwise(statements):
            if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
                yield field.target.id


def test_every_setting_has_a_sentence():
    """Those that choose a kind have it in the class that all kinds share."""
    modules = (models, data, corpora, tasks, schema)
    names = {name for module in modules for name in documented(module)} | {"kind"}
    settings = {key.rpartition(".")[2] for key, _, _ in known_fields()}
    assert settings <= names


def test_whole_values_have_no_weights_to_drop():
    config = {"model": {"selection": "argmax", "P_attention": 0.1}}
    with pytest.raises(
        SettingsError,
        match=r"model.selection=argmax takes .* P_attention=0.1 must be 0",
    ):
        resolve(config)
    assert resolve({"model": {"selection": "argmax"}}).rates.P_attention == 0
    config = {"model": {"selection": "argmax", "normaliser": "stick_breaking"}}
    with pytest.raises(
        SettingsError,
        match=r"model.selection=argmax takes the key of the best score, .* StickBreaking",
    ):
        resolve(config)
