"""Language models as trials: on the target side of pairs and on text alone, and what they write."""

import gzip
import subprocess
import sys

import jax
import numpy as np
import pytest

from attn import Context, Mask
from experiments.data import corpora, dataset
from experiments.data.corpora import CorpusError
from experiments.errors import WorkdirError
from experiments.evaluation.perplexity import perplexity, sentence_losses
from experiments.inference import Sampler, Translator
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.report.write import write_report
from experiments.settings import SettingsError
from experiments.training import loop
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.program import (
    build_model,
    initial_state,
    program_of,
)
from experiments.trial.step import token_losses
from tests.experiments import tiny

LINES = [
    f"{i} little {'very ' * (i % 40)}word{'s' * (i % 3)} of number {i * 7}"
    for i in range(400)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "all.txt").write_text("".join(line + "\n" for line in LINES), "utf-8")
    return folder


def settings(folder, **changes):
    return tiny.resolve(
        **{
            **dict(
                model__kind="language",
                data__corpus="text",
                data__directory=str(folder),
                data__train="all.txt",
                data__validation="all.txt",
                data__test="all.txt",
                data__heldout=20,
                data__vocabulary_size=400,
                data__max_length=24,
                training__sequence_length=24,
            ),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("language")
    own = settings(folder)
    return workdir, own, loop.run(own, dataset.prepare(own.data), workdir)


def test_a_trial_of_text(trained):
    workdir, _, result = trained
    assert result["status"] == "finished" and "bleu" not in result
    assert result["perplexity"] > 1 and result["test_perplexity"] > 1
    assert not (workdir / "translations.txt").exists()
    sentences = read_sentences(read_results(workdir).trials[0])
    assert {name.partition("_")[0] for name in sentences} == {"validation"}
    assert np.exp(
        sentences["validation_nll"].sum() / sentences["validation_tokens"].sum()
    ) == pytest.approx(result["perplexity"], rel=1e-5)
    page = write_report(workdir).html.read_text("utf-8")
    assert "decoder" in page and f"{result['perplexity']:.3f}" in page


@pytest.mark.ci
def test_the_target_side_of_pairs(tmp_path):
    own = tiny.resolve(model__kind="language")
    result = loop.run(own, tiny.corpus(), tmp_path)
    assert result["perplexity"] < 500 and "alignment_error" not in result


@pytest.mark.ci
def test_perplexity_is_that_of_every_piece_after_all_before(trained, folder):
    """Each text by itself, one forward pass for each beginning."""
    _, own, _ = trained
    corpus = dataset.prepare(own.data)
    program = program_of(own, corpus.vocabulary().size, corpus.length(own))
    state = jax.device_get(initial_state(program, own))
    losses = sentence_losses(
        over_lanes(lambda *of: token_losses(program, *of)),
        Lanes().stack([state]),
        corpus.validation.ids,
        8,
        program.length,
    )
    model = build_model(program)
    variables = jax.tree.map(
        jax.numpy.asarray, dict(params=state.params, positions=state.positions)
    )
    total = 0.0
    for ids in corpus.validation.ids.target:
        read = np.array([1, *ids])
        hidden = model.apply(variables, read[None], Context(Mask.causal()))[0]
        each_ = jax.nn.log_softmax(
            np.asarray(hidden, np.float64)
            @ np.asarray(state.params["embedding"], np.float64).T
        )
        total -= sum(each_[t, token] for t, token in enumerate([*ids, 2]))
    count = sum(len(ids) + 1 for ids in corpus.validation.ids.target)
    assert perplexity(*losses)[0] == pytest.approx(
        float(np.exp(total / count)), rel=1e-4
    )


def test_long_lines_are_cut_and_nothing_is_lost(folder):
    own = settings(folder)
    corpus = dataset.prepare(own.data)
    vocabulary = corpus.vocabulary()
    assert (
        corpus.counts["train_too_long"] == 0 and corpus.train.source.lengths.max() == 24
    )
    lines = vocabulary.encode(LINES)
    expected = [token for line in lines[:360] for token in line.tolist()]
    sides = corpus.train.source
    inside = [
        sides.ids[start + 1 : start + length].tolist()
        for start, length in zip(sides.starts, sides.lengths, strict=True)
    ]
    assert [token for part in inside for token in part] == expected
    assert max(map(len, inside)) == 23 and len(inside) > 360
    for split, first in ((corpus.validation, 360), (corpus.test, 380)):
        parts = [token for ids in split.ids.target for token in ids.tolist()]
        assert parts == [
            token for line in lines[first : first + 20] for token in line.tolist()
        ]
        assert split.text.target == vocabulary.decode(split.ids.target)
        assert len(split.text.target) == len(split.ids.target)


def test_three_files_are_read_as_they_are(tmp_path):
    for name, lines in (("a", LINES[:300]), ("b", LINES[300:310]), ("c", LINES[310:])):
        with gzip.open(tmp_path / f"{name}.gz", "wt", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    own = settings(tmp_path, data__train="a", data__validation="b", data__test="c")
    source = corpora.open(own.data)
    assert [
        line for pairs in source.read("validation") for line in pairs.target
    ] == LINES[300:310]
    assert sum(len(pairs.source) for pairs in source.read("train")) == 300
    assert source.place("test", 2).endswith("c.gz:3")
    assert (
        source.fingerprint()
        != corpora.open(
            settings(
                tmp_path, data__train="b", data__validation="b", data__test="c"
            ).data
        ).fingerprint()
    )


def test_held_out_lines_are_the_last(folder):
    source = corpora.open(settings(folder).data)
    assert [line for pairs in source.read("test") for line in pairs.source] == LINES[
        380:
    ]
    assert source.place("validation", 0).endswith("all.txt:361")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(data__heldout=200),
            "has 400 lines, too few to hold out data.heldout=200",
        ),
        (
            dict(data__train="al.txt"),
            r"no such file, plain or .gz \(the folder has all.txt\); data.train, data.validation",
        ),
        (dict(data__directory="nowhere"), "nowhere: no such folder"),
    ],
)
def test_text_that_is_not_there(folder, changes, message):
    with pytest.raises(CorpusError, match=message):
        dataset.prepare(settings(folder, **changes).data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(model__kind="rnn"),
            "data.corpus=text has objective=continue: model.kind=rnn must be language",
        ),
        (dict(data__directory=""), "data.corpus=text needs data.directory"),
        (
            dict(model__selection="argmax"),
            "model.selection does not apply to model.kind=language; it is of transformer, rnn",
        ),
        (
            dict(model__positions="alibi", model__decoder_mixing="recurrence"),
            "are a part of self-attention, and there is none: decoder_mixing=Recurrent",
        ),
    ],
)
def test_settings_that_contradict_each_other(folder, changes, message):
    with pytest.raises(SettingsError, match=message):
        settings(folder, **changes)


def test_what_it_writes(trained):
    workdir, *_ = trained
    sampler = Sampler(workdir)
    # As many each time, so that all are of one program.
    first, again = (sampler(9, beginning="7 little", seed=4) for _ in range(2))
    assert first == again and all(
        text.startswith("7 little") and log_prob < 0 for log_prob, text in first
    )
    five, six = (sampler(9, seed=seed) for seed in (5, 6))
    assert len({text for _, text in five}) > 1 and five != six
    one, two = (sampler(9, temperature=0.0, seed=seed) for seed in (1, 2))
    assert one == two
    with pytest.raises(
        WorkdirError, match=r"the beginning has \d+ tokens; a text has at most 12"
    ):
        sampler(1, beginning="very " * 30)
    with pytest.raises(WorkdirError, match=r"99 tokens are more than the \d\d that"):
        sampler(1, max_length=99)
    with pytest.raises(
        WorkdirError,
        match=r"a language model, which translates nothing: launch\.sample",
    ):
        Translator(workdir)


@pytest.mark.ci
def test_a_translator_writes_nothing(tmp_path):
    loop.run(tiny.resolve(training__steps=4), tiny.corpus(), tmp_path)
    with pytest.raises(WorkdirError, match="a model that translates"):
        Sampler(tmp_path)


@pytest.mark.ci
def test_the_command(trained):
    workdir, *_ = trained
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "launch.sample",
            f"--workdir={workdir}",
            "--count=2",
            "--scores",
            "--beginning=7 little",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(float(line.partition("\t")[0]) < 0 for line in lines)
    wrong = subprocess.run(
        [sys.executable, "-m", "launch.sample", "--workdir=nowhere"],
        capture_output=True,
        text=True,
    )
    assert wrong.returncode == 2 and len(wrong.stderr.strip().splitlines()) == 1
