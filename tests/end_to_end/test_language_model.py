"""Language models as trials: on the target side of pairs and on text alone, and what they write."""

import dataclasses

import jax
import numpy as np
import pytest

from attn import Context, Mask
from experiments import scoring
from experiments.data import corpora, dataset
from experiments.data.corpora import CorpusError
from experiments.errors import WorkdirError
from experiments.evaluation.metrics import BITS_PER_CHARACTER, PERPLEXITY
from experiments.evaluation.perplexity import perplexity, sentence_losses
from experiments.inference import Sampler, Translator
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.report.write import write_report
from experiments.settings import SettingsError
from experiments.training import loop
from experiments.training.start_point import StartPoint
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.program import (
    build_model,
    initial_state,
    program_of,
)
from experiments.trial.step import token_losses
from tests.calls import call
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
    data = dict.fromkeys(("train", "validation", "test"), "all.txt")
    data |= dict(corpus="text", directory=str(folder), heldout=20)
    data |= dict(vocabulary_size=400, max_length=24)
    own = {f"data__{name}": value for name, value in data.items()}
    own |= dict(model__kind="language", training__sequence_length=24)
    return tiny.resolve(**own | changes)


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
    nll = sentences["validation_nll"].sum() / sentences["validation_tokens"].sum()
    assert np.exp(nll) == pytest.approx(result["perplexity"], rel=1e-5)
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
    each = over_lanes(lambda *of: token_losses(program, *of))
    sentences = corpus.validation.ids
    states = Lanes().stack([state])
    losses = sentence_losses(each, states, sentences, 8, program.length)
    model = build_model(program)
    variables = state.variables
    variables = jax.tree.map(jax.numpy.asarray, variables)
    embedding = np.asarray(state.params["embedding"], np.float64)
    found = []
    for ids in sentences.target:
        read = np.array([1, *ids])
        hidden = model.apply(variables, read[None], Context(Mask.causal()))[0]
        log_probs = jax.nn.log_softmax(np.asarray(hidden, np.float64) @ embedding.T)
        found += [log_probs[t, token] for t, token in enumerate([*ids, 2])]
    expected = float(np.exp(-np.mean(found)))
    assert perplexity(*losses)[0] == pytest.approx(expected, rel=1e-4)


def test_bits_are_of_the_characters(trained):
    _, own, result = trained
    validation = dataset.prepare(own.data).validation
    characters = sum(map(len, validation.text.target))
    tokens = sum(len(ids) + 1 for ids in validation.ids.target)
    bits = np.log2(result["perplexity"]) * tokens / characters
    assert result["bits_per_character"] == pytest.approx(bits, rel=1e-6)
    test = dataset.prepare(own.data).test
    tokens = sum(len(ids) + 1 for ids in test.ids.target)
    bits = np.log2(result["test_perplexity"]) * tokens / sum(map(len, test.text.target))
    assert result["test_bits_per_character"] == pytest.approx(bits, rel=1e-6)


@pytest.mark.ci
def test_bits_are_of_the_same_text_whatever_the_vocabulary(folder, tmp_path):
    for name in ("bpe", "characters"):
        own = settings(folder, data__vocabulary=name)
        result = loop.run(own, dataset.prepare(own.data), tmp_path / name)
        sentences = read_sentences(read_results(tmp_path / name).trials[0])
        counted = BITS_PER_CHARACTER.statistics(sentences).sum(0)
        bits = BITS_PER_CHARACTER.of_sums(counted, 1)
        assert result["bits_per_character"] == pytest.approx(bits, rel=1e-6)
        written = write_report(tmp_path / name).markdown.read_text("utf-8")
        assert "; bits per character: validation" in written


@pytest.mark.ci
def test_more_text_goes_on_in_the_vocabulary_of_before(trained, tmp_path):
    donor = trained[0]
    (tmp_path / "all.txt").write_text("\n".join(f"so {line}" for line in LINES))
    own = settings(tmp_path, data__vocabulary=str(donor), training__learning_rate=0.01)
    corpus = dataset.prepare(own.data)
    assert (
        corpus.vocabulary().digest
        == dataset.prepare(trained[1].data).vocabulary().digest
    )
    begun = loop.run(
        own, corpus, tmp_path / "begun", start=StartPoint(init_from=str(donor))
    )
    fresh = loop.run(own, corpus, tmp_path / "fresh")
    assert begun["perplexity"] < 0.5 * fresh["perplexity"]


def test_a_stream_goes_on_from_line_to_line(folder):
    own = settings(folder, data__lines="stream", data__vocabulary="characters")
    corpus = dataset.prepare(own.data)
    text = "".join(line + "↵" for line in LINES[360:380])
    # Each text has a token for its beginning, which is no character.
    assert "".join(corpus.validation.text.target) == text
    lengths = [len(ids) for ids in corpus.validation.ids.target]
    assert set(lengths[:-1]) == {23} and sum(lengths) == 1 + len(text)
    assert corpus.train.source.lengths.sum() == 1 + len(
        corpus.train.source.lengths
    ) + sum(len(line) + 1 for line in LINES[:360])


@pytest.mark.parametrize("lines", ["texts", "stream"])
def test_blocks_of_a_long_text_make_no_difference(folder, monkeypatch, lines):
    own = settings(folder).data
    source = corpora.open(dataclasses.replace(own, lines=lines))
    texts = lambda split: [
        text.strip("↵") for pairs in source.read(split) for text in pairs.target
    ]
    whole = [texts(split) for split in ("train", "validation", "test")]
    monkeypatch.setattr(corpora.parallel, "BLOCK", 7)
    parts = [texts(split) for split in ("train", "validation", "test")]
    if lines == "texts":
        assert parts == whole
    for part, one in zip(parts, whole, strict=True):
        assert "↵".join(part) == "↵".join(one)


@pytest.mark.parametrize("lines", ["texts", "stream"])
def test_scored_on_its_own_file_it_has_the_scores_of_training(tmp_path, lines):
    """With blanks around lines, and characters that are spelled in bytes and cut between these."""
    held_out = [f"  {line} 漢字{'é' * (i % 9)} " for i, line in enumerate(LINES[:30])]
    (tmp_path / "all.txt").write_text("\n".join([*LINES, *held_out]), "utf-8")
    own = settings(tmp_path, data__lines=lines, data__heldout=30, data__max_length=10)
    corpus = dataset.prepare(own.data)
    result = loop.run(own, corpus, tmp_path / "run")
    text = "".join(corpus.test.text.target)
    end = "↵" if lines == "stream" else ""
    assert "\ufffd" not in text
    strip = str.lstrip if end else str.strip
    assert text == strip(
        "".join((line if end else line.strip()) + end for line in held_out)
    )
    scored = scoring.score(tmp_path / "run", held_out)
    assert scored.score(PERPLEXITY) == pytest.approx(
        result["test_perplexity"], rel=1e-4
    )
    bits = scored.score(BITS_PER_CHARACTER)
    assert bits == pytest.approx(result["test_bits_per_character"], rel=1e-4)


def test_lines_that_are_one_text_have_no_mark_of_it(folder, tmp_path):
    own = settings(folder, data__lines="stream")
    loop.run(own, dataset.prepare(own.data), tmp_path)
    with pytest.raises(CorpusError, match=r"^line:2: ↵ is in it"):
        scoring.score(tmp_path, ["one", "t↵wo"])


def test_a_stream_has_no_line_end_of_its_own(tmp_path):
    lines = ["one", "t↵wo", "three"] * 9
    (tmp_path / "all.txt").write_text("\n".join(lines), "utf-8")
    own = settings(tmp_path, data__lines="stream", data__heldout=3)
    with pytest.raises(CorpusError, match=r"all.txt:2: ↵ is in it"):
        dataset.prepare(own.data)
    skipped = settings(
        tmp_path,
        data__lines="stream",
        data__heldout=3,
        data__bad_lines="skip",
        data__vocabulary="characters",
    )
    corpus = dataset.prepare(skipped.data)
    assert "".join(corpus.test.text.target) == "one↵three↵"
    assert corpus.counts["train_bad"] == 7


def test_long_lines_are_cut_and_nothing_is_lost(folder):
    own = settings(folder)
    corpus = dataset.prepare(own.data)
    vocabulary = corpus.vocabulary()
    assert corpus.counts["train_too_long"] == 0
    assert corpus.train.source.lengths.max() == 24
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
        text = "".join(split.text.target)
        assert text == "".join(LINES[first : first + 20])
        assert len(split.text.target) == len(split.ids.target)


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
            "is of self-attention, and there is none: decoder_mixing=Recurrent",
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
    message = r"the beginning has \d+ tokens; a text has at most 12"
    with pytest.raises(WorkdirError, match=message):
        sampler(1, beginning="very " * 30)
    with pytest.raises(WorkdirError, match=r"99 tokens are more than the \d\d that"):
        sampler(1, max_length=99)
    message = r"a model that translates nothing: launch\.sample uses it"
    with pytest.raises(WorkdirError, match=message):
        Translator(workdir)


@pytest.mark.ci
def test_a_translator_writes_nothing(tmp_path):
    loop.run(tiny.resolve(training__steps=4), tiny.corpus(), tmp_path)
    with pytest.raises(WorkdirError, match="a model that writes nothing by itself"):
        Sampler(tmp_path)


@pytest.mark.ci
def test_the_command(trained):
    workdir, *_ = trained
    options = ("--count=2", "--scores", "--beginning=7 little")
    done = call("sample", f"--workdir={workdir}", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(float(line.partition("\t")[0]) < 0 for line in lines)
    wrong = call("sample", "--workdir=nowhere")
    assert wrong.returncode == 2 and len(wrong.stderr.strip().splitlines()) == 1
