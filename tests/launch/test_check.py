"""launch.check: what a name stands for, and what is said where it stands for nothing."""

import pytest

from launch import check
from tests.experiments.own_parts import PLACE

OWN = "tests/experiments/own_parts.py"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("softcap(inner=dot)", "score"),
        ("sigmoid", "normaliser"),
        ("rotary", "positions"),
        ("talking", "heads"),
        ("restricted(radius=2)", "mixer"),
        ("adamw(weight_decay=0.1)", "optimizer"),
        ("cosine(warmup=4)", "schedule"),
        (f"{OWN}:Distance", "score"),
        (f"{OWN}:Gated", "positions"),
        (f"{OWN}:Heads", "heads"),
        (f"{PLACE}:Mixer(inner=lstm)", "mixer"),
        (f"{PLACE}:Symbols", "corpus"),
        ("experiments.evaluation.metrics:Bleu", "metric"),
    ],
)
def test_a_name_is_of_one_kind(name, kind):
    assert check.kind_of(name).name == kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (OWN, f"{OWN}: name one of {OWN}:Mixer, {OWN}:Twice, {OWN}:Heads, "),
        (
            "scaled_doc",
            "nothing of the library has this name; did you mean scaled_dot?",
        ),
        (
            "rope",
            "nothing of the library has this name; one's own is named as file.py:",
        ),
        ("tests/cases.py", "nothing in it can be checked (--help says what can)"),
        ("nowhere.py", "nowhere.py: cannot be read (No such file or directory)"),
        (f"{OWN}:Hedas", "no class or function Hedas there"),
        (f"{OWN}:Hedas", "; did you mean Heads?"),
        (
            f"{OWN}:TwoTimes",
            "TwoTimes is none of these: a score: a class with the decorator",
        ),
        (f"{OWN}:Mixer(iner=2)", "no option iner; did you mean inner?"),
        ("dot(", "dot(: name a class, as file.py:Name"),
    ],
)
def test_what_cannot_be_checked_is_one_line(run, name, message):
    status, printed, said = run("check", name)
    assert (status, printed) == (2, "") and said.count("\n") == 1
    assert said.startswith("error: ") and message in said


def test_a_corpus_and_a_metric_are_checked(run, monkeypatch):
    from experiments.data import contract

    monkeypatch.setattr(contract, "_elsewhere", lambda corpus, first: None)
    metric = "experiments.evaluation.metrics:Chrf"
    status, printed, said = run("check", f"{PLACE}:Symbols", metric)
    assert (status, said) == (0, "")
    assert f"{PLACE}:Symbols (corpus): 8 of 8 checks passed\n" in printed
    assert f"{metric} (metric): 11 of 11 checks passed\n" in printed
    # No name of a check is folded where the output is no terminal.
    assert "another instance has the same texts and fingerprint" in printed
