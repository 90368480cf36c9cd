"""A trial from its settings to its files, and through interruptions."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.nn.beam_search import BeamResult
from experiments.errors import WorkdirError
from experiments.evaluation import decode
from experiments.evaluation.decode import Search, search_batch
from experiments.evaluation.evaluator import evaluation_functions
from experiments.evaluation.metrics import METRICS
from experiments.inference import Translator
from experiments.objectives import Translate
from experiments.settings import resolve
from experiments.system import machine
from experiments.training import loop
from experiments.training.checkpoints import Checkpoints
from experiments.training.run_dir import RunDir
from experiments.trial.lanes import Lanes
from experiments.trial.program import (
    State,
    initial_state,
    program_of,
)
from tests.experiments import tiny
from tests.experiments.event_files import scalars
from tests.experiments.training.trials import Interrupted, metrics

KEYS = ("perplexity", *Translate().metrics)
OF_TRANSLATIONS = [metric for metric in METRICS if metric.key in KEYS]

MORE = dict(training__average=3, evaluation__beam=3)
SETTINGS = tiny.shared(**MORE)


def run(workdir, settings=SETTINGS, stop_at=None, **options):
    """Runs the tiny trial; with `stop_at`, as if the power went when that step was logged."""

    def say(line):
        if stop_at is not None and f"step {stop_at:6d}  loss" in line:
            raise Interrupted

    return loop.run(settings, tiny.corpus(), workdir, say=say, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, run(workdir)


def test_the_result_is_written(finished):
    workdir, result = finished
    assert json.loads((workdir / "result.json").read_text()) == result
    assert result["status"] == "finished"
    assert result["steps"] == 12
    assert result["test_sentences"] == 12


def test_the_record_says_with_what_it_ran(finished):
    record = json.loads((finished[0] / "record.json").read_text())
    assert record["corpus"] == tiny.corpus().corpus_digest
    assert record["versions"]["jax"] == jax.__version__
    assert record["devices"] == 4
    assert record["threads"] == machine.threads()


def test_lines_are_logged_when_settings_say_so(finished):
    lines = [(line["step"], line["split"]) for line in metrics(finished[0])]
    assert lines == [
        (4, "train"),
        (6, "validation"),
        (8, "train"),
        (12, "train"),
        (12, "validation"),
    ]


def test_every_test_sentence_is_translated(finished):
    lines = (finished[0] / "translations.txt").read_text().splitlines()
    test = tiny.corpus().test.text
    assert (finished[0] / "sources.txt").read_text().splitlines() == test.source
    assert (finished[0] / "references.txt").read_text().splitlines() == test.target
    logged = (finished[0] / "metrics.jsonl").read_text().splitlines()
    arithmetic = sum(json.loads(line).get("flops", 0) for line in logged)
    assert finished[1]["training_flops"] == arithmetic > 0
    assert finished[1]["peak_memory"] > 0
    assert len(lines) == 12


def test_examples_show_attention(finished):
    workdir, _ = finished
    arrays = np.load(workdir / "examples.npz")
    examples = json.loads((workdir / "examples.json").read_text())
    assert len(examples) == 2
    n = len(examples[0]["source_tokens"])
    m = len(examples[0]["target_tokens"])
    assert arrays["0/encoder"].shape == (1, 2, n, n)
    assert arrays["0/cross"].shape == (1, 2, m, n)
    np.testing.assert_allclose(arrays["0/cross"].astype(float).sum(-1), 1, atol=5e-3)


@pytest.mark.parametrize("metric", OF_TRANSLATIONS, ids=lambda metric: metric.key)
def test_sentences_give_the_result(finished, metric):
    workdir, result = finished
    statistics = metric.statistics(np.load(workdir / "sentences.npz"))
    assert len(statistics) == 12
    score = metric.of_sums(statistics.sum(0), len(statistics))
    # Losses are kept in float32.
    assert score == pytest.approx(result[metric.key], rel=1e-6)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_sentences_have_lengths(finished, split):
    lengths = np.load(finished[0] / "sentences.npz")[f"{split}_source"]
    sources = getattr(tiny.corpus(), split).ids.source
    assert lengths.tolist() == [len(ids) + 1 for ids in sources]


def weights_of(state):
    """The parameters and position tables by the names that they have in a checkpoint."""
    weights = dict(params=state.params, positions=state.positions)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(weights)
    }


def test_all_weights_are_scored(finished):
    workdir, result = finished
    beside = result["beside"]
    assert {name: scores["steps"] for name, scores in beside.items()} == {
        "raw": [12],
        "average": [4, 8, 12],
        "ema": [12],
    }
    assert len({scores["validation"]["perplexity"] for scores in beside.values()}) == 3
    assert set(beside["ema"]["validation"]) == {
        metric.key for metric in OF_TRANSLATIONS
    }
    assert result["perplexity"] == beside["raw"]["validation"]["perplexity"]
    of_test = beside["raw"]["test"]
    assert {"bleu", "chrf", "exact_match"} <= set(of_test)
    assert {name: result[name] for name in of_test} == of_test
    last = [line for line in metrics(workdir) if line["split"] == "validation"][-1]
    assert last["perplexity"] == pytest.approx(result["perplexity"], rel=1e-6)


def test_averages_of_checkpoints(finished):
    """Against numpy, over all and over the last two; the state keeps the moving average."""
    workdir, _ = finished
    program = program_of(SETTINGS, 500, 48)
    blank = initial_state(program, SETTINGS)
    with Checkpoints(workdir, keep=None) as checkpoints:
        saved = {step: checkpoints.arrays(step) for step in (4, 8, 12)}
        state, data, noted = checkpoints.restore(blank._replace(moments=()))
        averages = {
            count: checkpoints.weights("average", state, count) for count in (2, 5)
        }
        moving, _ = checkpoints.weights("ema", state, 0)
    assert (int(state.step), state.moments, data["epoch"], noted) == (
        12,
        (),
        0,
        dict(bad=0, logged=RunDir(workdir).logged()),
    )
    for count, steps in ((2, [8, 12]), (5, [4, 8, 12])):
        assert averages[count][1] == steps
        for name, leaf in weights_of(averages[count][0]).items():
            leaves = [saved[step][name] for step in steps]
            mean = np.mean(leaves, axis=0, dtype=np.float64)
            np.testing.assert_allclose(leaf, mean, rtol=1e-6, atol=1e-8)
    for weights, prefix in ((state, ""), (moving, "ema/")):
        for name, leaf in weights_of(weights).items():
            np.testing.assert_array_equal(leaf, saved[12][prefix + name])


@pytest.fixture(scope="module")
def with_ema(finished, tmp_path_factory):
    """The end alone is run again, from the other trial's files, with ema in place of raw."""
    chosen = tiny.shared(**MORE, evaluation__weights="ema")
    workdir = tmp_path_factory.mktemp("ema")
    shutil.copytree(finished[0], workdir, dirs_exist_ok=True)
    (workdir / "result.json").unlink()
    (workdir / "config.json").write_text(json.dumps(chosen.to_dict()))
    return workdir, run(workdir, chosen)


def test_weights_of_choice_are_the_trials_own(finished, with_ema):
    (_, raw), (_, ema) = finished, with_ema
    assert ema["beside"] == raw["beside"]
    assert (
        ema["perplexity"]
        == raw["beside"]["ema"]["validation"]["perplexity"]
        != raw["perplexity"]
    )
    assert not np.array_equal(
        *(
            Translator(workdir)._states.params["embedding"]
            for workdir, _ in (finished, with_ema)
        )
    )


def test_searches_are_what_settings_say(monkeypatch):
    """Greedy while training, a beam at the end, with the limits and the prefix of each sentence."""
    asked = []

    def fake_search(model, variables, source, lengths, **options):
        asked.append(options)
        return BeamResult(jnp.zeros((2, 1, 12)), jnp.zeros((2, 1)), jnp.zeros((2, 1)))

    monkeypatch.setattr(decode, "beam_search", fake_search)
    program = program_of(SETTINGS, 500, 48)
    functions = evaluation_functions(program, Lanes(), Search(3, 0.5, 12, 5))
    state = State(np.zeros((1, 1)), {}, {}, ())
    source = np.zeros((2, 48), np.int32)
    lengths = np.array([3, 9])
    with jax.disable_jit():
        functions.greedy(state, source, lengths)
        functions.search(state, source, lengths)
        state = State(0, {}, {}, ())
        search_batch(program, Search(3, 0.5, 12, 5, 2), (7, 8), state, source, lengths)
    assert [(a["beam"], a["alpha"], a["max_length"], a["n_best"]) for a in asked] == [
        (1, 0.5, 12, 1),
        (3, 0.5, 12, 1),
        (3, 0.5, 12, 2),
    ]
    assert (
        all(a["limits"].tolist() == [8, 14] for a in asked)
        and asked[0]["prefix"] is None
    )
    assert [x.tolist() for x in asked[2]["prefix"]] == [[[7, 8], [7, 8]], [2, 2]]


def test_a_finished_trial_is_not_run_again(finished, monkeypatch):
    workdir, result = finished
    monkeypatch.setattr(loop, "start_run", lambda *_: pytest.fail("trained again"))
    assert run(workdir) == result


@pytest.mark.parametrize("stop_at", [4, 8, 12])
def test_an_interrupted_trial_ends_the_same(finished, tmp_path, stop_at):
    workdir, result = finished
    with pytest.raises(Interrupted):
        run(tmp_path, stop_at=stop_at, trackers=["tensorboard"])
    again = run(tmp_path, trackers=["tensorboard"])
    unclocked = {"seconds", "tokens_per_second", "peak_memory"}
    assert {k: v for k, v in again.items() if k not in unclocked} == {
        k: v for k, v in result.items() if k not in unclocked
    }
    assert metrics(tmp_path) == metrics(workdir)
    assert (tmp_path / "translations.txt").read_bytes() == (
        workdir / "translations.txt"
    ).read_bytes()
    lines = [
        json.loads(line)
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    shown = scalars(tmp_path / "tensorboard")
    ended = [entry for entry in shown if entry[1].startswith("result/")]
    assert (12, "result/bleu", pytest.approx(result["bleu"])) in ended
    assert [entry for entry in shown if entry not in ended] == [
        (line["step"], f"{line['split']}/{name}", pytest.approx(value))
        for line in lines
        for name, value in line.items()
        if name not in ("step", "split")
    ]


def test_a_directory_of_other_settings_is_refused(finished, tmp_path):
    workdir, _ = finished
    with pytest.raises(
        WorkdirError,
        match=r"another config: model\.h is 2, asked for 4, seed is 0, asked for 1",
    ):
        run(workdir, tiny.shared(**MORE, model__h=4, seed=1))
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(WorkdirError, match="directory of a sweep"):
        run(tmp_path)


def test_translator_keeps_order_and_empty_lines(with_ema, capsys):
    workdir, _ = with_ema
    translate = Translator(workdir)
    lines = tiny.corpus().test.text.source
    translations = translate(["", *lines, "  ", lines[0], "5 " * 100])
    assert (
        translations[0] == translations[-3] == ""
        and translations[-2] == translations[1]
    )
    assert (
        translations[1:-3]
        == (workdir / "translations.txt").read_text().split("\n")[:-1]
    )
    assert "line 16 has 200 tokens and is cut to 47" in capsys.readouterr().err
    assert translate([]) == []


def test_translator_gives_the_n_best_from_a_prefix(finished):
    workdir, _ = finished
    translate = Translator(workdir, n_best=3, prefix="am 4")
    empty, hypotheses = translate.n_best(["", "May 4"])
    assert empty == [(0.0, "")]
    assert len({text for _, text in hypotheses}) == 3 and all(
        text.startswith("am 4") for _, text in hypotheses
    )
    assert sorted(hypotheses, reverse=True) == hypotheses and hypotheses[0].score < 0
    with pytest.raises(
        WorkdirError,
        match="n_best=4 translations need a beam of at least 4, and it is 3",
    ):
        Translator(workdir, n_best=4)
    with pytest.raises(
        WorkdirError, match="the prefix has 28 tokens; a translation has at most 12"
    ):
        Translator(workdir, prefix="5 " * 14)


def test_translator_reads_what_was_trained_before_a_setting_was_there(
    finished, tmp_path
):
    workdir, _ = finished
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    config = json.loads((workdir / "config.json").read_text())
    for key in (
        "clip",
        "optimizer",
        "accumulate",
        "precision",
        "remat",
        "scan",
        "average",
        "ema",
    ):
        del config["training"][key]
    for key in ("beam", "alpha", "max_extra", "weights"):
        del config["evaluation"][key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    # Nor had such a trial checksums of its files.
    (tmp_path / "checksums.json").unlink()
    translations = Translator(tmp_path, beam=3, alpha=2.0)(
        tiny.corpus().test.text.source[:1]
    )
    assert translations == (workdir / "translations.txt").read_text().split("\n")[:1]


def test_translator_without_a_model(tmp_path):
    with pytest.raises(WorkdirError, match="holds no trained model"):
        Translator(tmp_path)
    (tmp_path / "sweep.json").write_text(
        json.dumps(dict(trials=[dict(directory="trials/a")]))
    )
    with pytest.raises(WorkdirError, match=r"name one of its trials: .*trials/a"):
        Translator(tmp_path)


def test_a_trial_whose_layers_differ_is_scored_to_its_end(tmp_path):
    """Heads of each layer, and layers of each stack, go into maps, measures and the report."""
    changes = {
        "model.encoder.N": 1,
        "model.cross.h": 1,
        "model.decoder.N": 2,
        "model.decoder.layer_2.h": 4,
        "evaluation.head_importance": True,
    }
    settings = resolve(tiny.resolve().to_dict(), changes)
    assert resolve(settings.to_dict()) == settings
    result = loop.run(settings, tiny.corpus(), tmp_path / "run")
    assert result["status"] == "finished"
    with np.load(tmp_path / "run" / "examples.npz") as examples:
        decoder = examples["0/decoder"]
        assert decoder.shape[:2] == (2, 4) and examples["0/encoder"].shape[0] == 1
    # The first layer has two heads, and so no third.
    assert decoder[0, :2].any() and np.isnan(decoder[0, 2:]).all()
