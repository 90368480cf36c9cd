"""Names that the literature has for what has another name here: hints lead to that."""

import re

import pytest

from experiments.errors import hint
from experiments.settings import SettingsError, aliases, check_key, resolve
from experiments.settings.choices import (
    HEADS,
    MIXERS,
    NORMALISERS,
    OPTIMIZERS,
    POSITIONS,
    SCHEDULES,
    SCORES,
)

pytestmark = pytest.mark.quick

CHOICES = [
    ("model.positions", POSITIONS, aliases.POSITIONS),
    ("model.normaliser", NORMALISERS, aliases.NORMALISERS),
    ("model.score", SCORES, aliases.SCORES),
    ("model.heads", HEADS, aliases.HEADS),
    ("model.decoder_mixing", MIXERS, aliases.MIXERS),
    ("training.optimizer", OPTIMIZERS, aliases.OPTIMIZERS),
    ("training.schedule", SCHEDULES, aliases.SCHEDULES),
]


def refused(key, value):
    with pytest.raises(SettingsError) as caught:
        resolve({}, {key: value})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "choices", "table"), CHOICES, ids=lambda x: str(x)[:17]
)
def test_an_alias_leads_to_what_is_there(key, choices, table):
    for alias, meant in table.items():
        assert alias not in choices.known
        for name in re.split(" with .*| or ", meant):
            assert not name or choices.value(name, key)
        assert f"did you mean {meant}?" in refused(key, alias)
    for setting in re.findall(r"(?:model)\.\w+", " ".join(table.values())):
        check_key(setting)


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("model.positions", "RoPE", "rotary"),
        ("model.positions", "rope(base=1e6)", "rotary"),
        ("model.positions", "rotory", "rotary"),
        ("model.heads", "mqa", "separate with model.h_kv=1"),
        ("model.feed_forward", "swish", "silu"),
        ("model.norm", "prenorm", "pre"),
        ("model.kind", "gpt", "language"),
        ("model.kind", "lstm", "rnn with model.cell=lstm"),
        ("data.corpus", "mqar", "recall"),
        ("training.precision", "bf16", "bfloat16"),
        ("model.n_layers", 2, "model.N"),
        ("model.activation", "gelu", "model.feed_forward"),
        ("training.lr", 2, "training.learning_rate"),
        ("model.lr", 2, "training.learning_rate"),
        ("training.warmup", 100, "training.schedule=paper(warmup=…)"),
        ("training.beta_2", 0.98, "training.optimizer=adam(b2=…)"),
        ("training.eps", 1e-9, "training.optimizer=adam(eps=…)"),
        ("training.optimizer", "momentum", "sgd(momentum=0.9)"),
        ("training.schedule", "wsd", "warmup_stable_decay"),
    ],
)
def test_a_hint_names_what_is_meant(key, value, meant):
    assert f"; did you mean {meant}?" in refused(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # Another published method each, of a name that is near.
        ("model.feed_forward", "relu2"),
        ("model.feed_forward", "relu²"),
        ("model.normaliser", "relu2"),
        ("model.normaliser", "sigsoftmax"),
        ("model.positions", "xpos"),
        ("model.positions", "pope"),
        ("model.positions", "t6"),
        ("training.optimizer", "adamw8"),
        ("training.optimizer", "adam8"),
    ],
)
def test_no_hint_leads_to_another_method(key, value):
    message = refused(key, value)
    assert "must be one of" in message and "did you mean" not in message


def test_an_option_of_another_name_leads_to_a_setting_that_has_it():
    for alias, meant in aliases.OPTIONS.items():
        key, _, value = meant.format(0.8 if "warmup" not in meant else 9).partition("=")
        config = resolve({"training": {key.removeprefix("training."): value}})
        assert config != resolve({})
        assert f"did you mean {meant.format('…')}?" in refused(f"training.{alias}", 1)


def test_aliases_of_settings_are_settings():
    for alias, key in aliases.KEYS.items():
        assert check_key(key) == key
        assert f"did you mean {key}?" in refused(f"model.{alias}", 1)


def test_a_hint_of_many_letters_is_found_in_time():
    assert hint("x" * 10**6, ["dot"]) == ""
