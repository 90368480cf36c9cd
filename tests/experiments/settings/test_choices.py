"""Choices: names, options and classes from outside, all written as texts."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

import attn
from experiments.settings import SettingsError, resolve
from experiments.settings.choices import (
    HEADS,
    MIXERS,
    NORMALISERS,
    POSITIONS,
    SCORES,
)
from experiments.trial import cost

pytestmark = pytest.mark.quick


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


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("softcap(inner=scaled_dot(), cap=50)", "softcap"),
        ("softcap(cap=30, inner='qk_norm()')", "softcap(inner=qk_norm, cap=30)"),
        (
            "softcap(inner=qk_norm(inner=additive( d_a=8 )))",
            "softcap(inner=qk_norm(inner=additive(d_a=8)))",
        ),
        ("qk_norm(norm=l2, inner=dot)", "qk_norm(inner=dot, norm=l2)"),
    ],
)
def test_a_score_may_be_an_option_of_another(text, short):
    assert canonical(SCORES, text) == canonical(SCORES, short) == short


def test_a_score_around_another_is_made_with_its_options():
    text = "softcap(cap=30, inner=qk_norm(inner=additive(d_a=8)))"
    score = SCORES.value(text, "model.score")(jax.random.key(0), 2, 3, 5)
    assert isinstance(score, attn.Softcap) and score.cap == 30
    assert score.inner.g_k.shape == (2, 5)
    assert score.inner.inner.v.shape == (2, 8)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("short(inner=attention, taps=4)", "short"),
        ("short(taps=3, inner=deltanet( beta_max=2 ))",) * 2,
        ("short(inner=short(inner=kda()))", "short(inner=short(inner=kda))"),
    ],
)
def test_a_mixer_may_be_an_option_of_another(text, short):
    if text == short:
        short = "short(inner=deltanet(beta_max=2), taps=3)"
    assert canonical(MIXERS, text) == canonical(MIXERS, short) == short
    value = MIXERS.value(text, "model.decoder_mixing")
    assert MIXERS.text_of(value) == short
    assert isinstance(value.inner, attn.Mixer)


def test_a_mixer_inside_is_refused_by_its_name():
    with pytest.raises(SettingsError, match="inner='canon': must be one of attention"):
        MIXERS.value("short(inner=canon)", "model.decoder_mixing")


def test_a_score_from_outside_may_be_inside(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import attn\n\n\n@attn.score\nclass Mine:\n    factor: float = 2.0\n\n"
        "    @classmethod\n    def init(cls, key, h, d_q, d_k, factor: float = 2.0):\n"
        "        return cls(factor)\n\n"
        "    def __call__(self, q, k):\n        return self.factor * (q @ k.T)\n"
    )
    text = f"softcap(inner=qk_norm(inner='{path}:Mine(factor=3)'))"
    settings = resolve({}, {"model.score": text})
    # The digits of its source are in the text, so that a result is of that very source.
    assert f"{path}:Mine@" in settings.to_dict()["model"]["score"]
    assert resolve(settings.to_dict()) == settings
    (outside,) = settings.outside()
    assert outside.cls.__name__ == "Mine"
    score = settings.model.score(jax.random.key(0), 2, 4, 4)
    assert score.inner.inner.factor == 3.0


def test_an_option_with_that_name_need_not_be_a_score(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import attn\n\n\n@attn.score\nclass Wide:\n    inner: int = 8\n\n"
        "    @classmethod\n    def init(cls, key, h, d_q, d_k, inner: int = 8):\n"
        "        return cls(inner)\n\n"
        "    def __call__(self, q, k):\n        return self.inner * (q @ k.T)\n"
    )
    score = SCORES.value(f"{path}:Wide(inner=3)", "model.score")
    assert score(jax.random.key(0), 2, 4, 4).inner == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softcap(inner=nope)", "inner='nope': must be one of dot, scaled_dot"),
        ("softcap(inner=open('x'))", "must be one of dot, scaled_dot"),
        ("softcap(inner=additive(d_x=3))", r"no option d_x; did you mean d_a\?"),
        ("softcap(inner=3)", "option inner=3 must be str, not int"),
        ("softcap(cap=dot(a=1))", "option cap must be a number"),
        ("dot(inner=dot)", r"no option inner \(known: none\)"),
        ("softcap(cap=0)", "cap=0.0 must be finite and above 0"),
        ("softcap(inner=qk_norm(norm=max))", "unknown norm 'max'"),
    ],
)
def test_a_score_inside_is_checked_too(text, message):
    with pytest.raises(SettingsError, match=f"^model.score=.*{message}"):
        resolve({}, {"model.score": text})


def changed(default):
    """Other values than a default, one of which is likely to be allowed."""
    if type(default) is bool:
        return [not default]
    if type(default) is int:
        return [default + 1, 2 * default + 2]
    return [1.25 * default + 0.125, 0.5 * default or 0.25]


def options_of(field, choices):
    """Each option that is a number, with a value that is not its default."""
    for name, cls in choices.known.items():
        for option, parameter in choices.parameters(cls).items():
            if type(parameter.default) in (bool, int, float):
                values = changed(parameter.default)
                yield field, [f"{name}({option}={value})" for value in values]


DEFAULT = resolve({})
ALL_OPTIONS = [
    *options_of("score", SCORES),
    *options_of("normaliser", NORMALISERS),
    *options_of("positions", POSITIONS),
    *options_of("heads", HEADS),
    *options_of("decoder_mixing", MIXERS),
]


@pytest.mark.parametrize("field", sorted({field for field, _ in ALL_OPTIONS}))
def test_every_option_makes_a_program(field):
    for texts in [texts for of, texts in ALL_OPTIONS if of == field]:
        made = []
        for text in texts:
            with contextlib.suppress(SettingsError):
                made.append(resolve({}, {f"model.{field}": text}))
        # At least one of the values is allowed.
        assert made, texts
        for settings in made:
            assert getattr(settings.model, field) != getattr(DEFAULT.model, field)
            # Raises where what was resolved cannot be built.
            cost.program_without_corpus(settings)


@pytest.mark.parametrize("setting", ["model.normaliser", "evaluation.metric"])
def test_an_array_is_no_choice(setting):
    with pytest.raises(SettingsError, match=rf"^{setting}=.*must be str, not ndarray"):
        resolve({}, {setting: np.eye(3)})


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
            r"no option bass; did you mean base\? \(known: base, fraction, scaling",
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
        ({"model.positions": "sinusoidal(layout=x)"}, "positions=Sinusoidal"),
        ({"model.positions": "rotary", "model.d_k": 3}, "d_k=3 must be even"),
        ({"model.encoder_mixing": "restricted(radius=-1)"}, "radius=-1 must be"),
        ({"mixing=Recurrent": "recurrence(cell=x)"}, "mixing=Recurrent"),
        ({"model.heads": "differential(lambda_init=1)"}, "lambda_init=1.0 must be at"),
        ({"model.heads": "talking", "model.selection": "argmax"}, "must be separate"),
        (
            {"model.positions": "cope", "model.h_kv": 1},
            "need separate heads, each with its keys",
        ),
        ({"model.gate": "row"}, "must be one of none, head, element"),
    ],
)
def test_options_that_make_no_sense_are_refused(point, message):
    with pytest.raises(SettingsError, match=message):
        resolve({}, point)


def test_settings_hold_the_canonical_text():
    point = {"model.positions": "rotary( fraction=0.5 )"}
    settings = resolve({}, point)
    assert settings.to_dict()["model"]["positions"] == "rotary(fraction=0.5)"
    assert settings.model.positions == attn.Rotary(fraction=0.5)
    assert resolve(settings.to_dict()) == settings
    assert dataclasses.replace(settings) == settings
