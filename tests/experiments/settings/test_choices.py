"""Choices: names, options and classes from outside, all written as texts."""

import dataclasses

import pytest

import attn
from experiments.settings import SettingsError, resolve
from experiments.settings.choices import MIXERS, POSITIONS, SCORES


def canonical(choices, text):
    return choices.parse(text, "model.x").text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rotary", attn.Rotary()),
        ("rotary()", attn.Rotary()),
        ("rotary(base=500000, fraction=0.5)", attn.Rotary(500_000.0, 0.5)),
        ("sinusoidal(layout=halves)", attn.Sinusoidal(layout="halves")),
        ("sinusoidal(layout='halves')", attn.Sinusoidal(layout="halves")),
        ("t5(buckets = 16)", attn.T5(buckets=16)),
        ("none", attn.NoPositions()),
    ],
)
def test_a_text_stands_for_a_value(text, value):
    assert POSITIONS.value(text, "model.positions") == value


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("rotary(fraction=0.5, base=5e5)", "rotary(base=500000, fraction=0.5)"),
        ("rotary(base=10000, fraction=1)", "rotary"),
        ("sinusoidal(layout='halves')", "sinusoidal(layout=halves)"),
        ("learned()", "learned"),
    ],
)
def test_equal_choices_have_one_text(text, short):
    assert canonical(POSITIONS, text) == short
    assert canonical(POSITIONS, short) == short


def test_equal_texts_make_equal_scores_for_the_compiler():
    first = SCORES.value("additive(d_a=4)", "model.score")
    second = SCORES.value("additive( d_a=4 )", "model.score")
    assert first == second and hash(first) == hash(second)
    assert first != SCORES.value("additive(d_a=5)", "model.score")


def test_a_class_of_the_library_is_its_name():
    assert canonical(MIXERS, attn.Recurrent) == "recurrence"
    assert resolve({"model": {"score": attn.Additive}}).model.score == "additive"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotory", "must be one of sinusoidal, learned, .*; did you mean rotary?"),
        ("", "must be one of sinusoidal"),
        ("rotary(", "must be one of sinusoidal"),
        ("rotary(5)", r"options are written as name=value, not \(5\)"),
        ("rotary(base=1)(2)", "options are written as name=value"),
        (
            "rotary(bass=5)",
            r"no option bass; did you mean base\? \(known: base, fraction\)",
        ),
        ("learned(x=1)", r"no option x \(known: none\)"),
        ("rotary(base=[1])", "option base must be a number, a word"),
        ("rotary(base=open('x'))", "option base must be a number, a word"),
        ("rotary(base=two)", "option base='two' must be float, not str"),
        ("t5(buckets=2.5)", "option buckets=2.5 must be int, not float"),
        ("t5(buckets=True)", "option buckets=True must be int, not bool"),
        ("rotary(base=1, base=2)", "each once"),
        ("rotary(**x)", "each once"),
    ],
)
def test_what_cannot_be_chosen_is_named(text, message):
    with pytest.raises(SettingsError, match=f"^model.positions=.*{message}"):
        resolve({}, {"model.positions": text})


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"model.positions": "relative(reach=0)"}, "reach=0 must be at least 1"),
        ({"model.positions": "sinusoidal(layout=x)"}, "model.positions=sinusoidal"),
        ({"model.positions": "rotary", "model.d_k": 3}, "d_k=3 must be even"),
        ({"model.encoder_mixing": "restricted(radius=-1)"}, "radius=-1 must be"),
        ({"model.decoder_mixing": "recurrence(cell=x)"}, "model.decoder_mixing"),
    ],
)
def test_options_that_make_no_sense_are_refused(point, message):
    with pytest.raises(SettingsError, match=message):
        resolve({}, point)


def test_settings_hold_the_canonical_text():
    point = {"model.positions": "rotary( fraction=0.5 )"}
    settings = resolve({}, point)
    assert settings.model.positions == "rotary(fraction=0.5)"
    assert settings.model.position_encoding == attn.Rotary(fraction=0.5)
    assert resolve(settings.to_dict()) == settings
    assert dataclasses.replace(settings) == settings
