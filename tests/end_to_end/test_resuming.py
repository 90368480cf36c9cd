"""Trials that are stopped, damaged, begun from others: they end as if nothing had been."""

import functools
import json
import os
import resource
import shutil
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.data.batches import Batches
from experiments.errors import CheckpointError, WorkdirError
from experiments.inference import Translator
from experiments.system import checksums
from experiments.system.files import write_json
from experiments.system.signals import Interrupted
from experiments.training import loop, run_dir
from experiments.training.checkpoints import Checkpoints
from experiments.training.device_data import DeviceData
from experiments.training.start_point import StartPoint, check_start
from experiments.training.trial_run import DrawnBatches, TrialRun, batches_of
from experiments.trial.lanes import Lanes, distribute, take_lane
from experiments.trial.program import (
    hyper_of,
    initial_state,
    program_of,
)
from experiments.trial.step import train_steps
from tests.experiments import tiny

MORE = dict(training__ema=0.6, training__average=2, training__keep_best=True)
SETTINGS = tiny.resolve(**MORE)
CLOCKED = ("seconds", "tokens_per_second", "peak_memory")


def run(workdir, settings=SETTINGS, **options):
    return unclocked(loop.run(settings, tiny.corpus(), workdir, **options))


def unclocked(entries):
    return {key: value for key, value in entries.items() if key not in CLOCKED}


def metrics(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [unclocked(json.loads(line)) for line in lines]


def validated(workdir):
    """Returns {step: perplexity} of the validation set."""
    lines = [line for line in metrics(workdir) if line["split"] == "validation"]
    return {line["step"]: line["perplexity"] for line in lines}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, run(workdir)


@pytest.fixture
def copied(finished, tmp_path):
    """The finished trial without its result: as if the power had gone at the end."""
    workdir = shutil.copytree(finished[0], tmp_path / "trial")
    (workdir / "result.json").unlink()
    return workdir


def assert_same(workdir, result, finished):
    assert result == finished[1] and metrics(workdir) == metrics(finished[0])
    assert (workdir / "translations.txt").read_bytes() == (
        finished[0] / "translations.txt"
    ).read_bytes()


@pytest.mark.ci
def test_a_trial_that_is_told_to_stop_again_and_again_ends_the_same(finished, tmp_path):
    """While it trains, evaluates and is scored; moments are at most a second of steps apart."""
    at = []
    for n in (1, 2, 1, 3, 0, 1, 9, 15, 23):
        with pytest.raises(Interrupted):
            run(tmp_path, interruption=tiny.StopAt(n))
        with Checkpoints(tmp_path, None) as checkpoints:
            at.append(checkpoints.steps()[-1])
    assert at == sorted(at) and {1, 6, 12} < set(at)
    assert_same(tmp_path, run(tmp_path), finished)


def test_the_best_weights_are_those_of_the_lowest_perplexity(finished):
    workdir, result = finished
    perplexities = validated(workdir)
    assert len(perplexities) == 2
    best = result["beside"]["best"]
    assert best["steps"] == [min(perplexities, key=perplexities.get)]
    assert best["validation"]["perplexity"] == pytest.approx(
        min(perplexities.values()), rel=1e-6
    )


def test_the_best_stays_where_what_follows_is_worse(tmp_path):
    settings = tiny.resolve(
        **MORE,
        evaluation__weights="best",
        training__learning_rate=30.0,
        training__steps=9,
        training__evaluate_every=1,
    )
    with pytest.raises(Interrupted):
        run(tmp_path, settings, interruption=tiny.StopAt(25))
    result = run(tmp_path, settings)
    perplexities = validated(tmp_path)
    best = min(perplexities, key=perplexities.get)
    assert len(perplexities) == 9 and best < 5, perplexities
    assert result["beside"]["best"]["steps"] == [best]
    assert result["perplexity"] == pytest.approx(min(perplexities.values()), rel=1e-6)


def test_a_damaged_checkpoint_costs_time_alone(finished, copied, capsys):
    path = copied / "checkpoints/12/checksums.json"
    path.write_text(path.read_text().replace('"batch": ', '"batch": 1'))
    assert_same(copied, run(copied), finished)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "checkpoints/12 is damaged" in said
    assert (copied / "damaged/12").is_dir()


@pytest.mark.ci
def test_another_number_of_devices_and_strategy_goes_on(finished, tmp_path):
    """From four devices to two; numbers are the same to rounding."""
    with pytest.raises(Interrupted):
        run(tmp_path, interruption=tiny.StopAt(4))
    job = loop.Job(SETTINGS, tmp_path)
    lanes = Lanes(1, "shard_map", tuple(jax.local_devices()[:2]))
    (result,) = loop.run_all([job], tiny.corpus(), lanes)
    assert result["perplexity"] == pytest.approx(finished[1]["perplexity"], rel=1e-4)
    for line, other in zip(metrics(tmp_path), metrics(finished[0]), strict=True):
        assert line["step"] == other["step"]
        assert line.get("loss", 0) == pytest.approx(other.get("loss", 0), rel=1e-4)


def test_resuming_another_trial_is_as_if_it_had_gone_on(finished, tmp_path):
    # A temperature of 1 is none, and a number of the settings here, not of the other's.
    score = dict(model__score="annealed(start=1)")
    longer = tiny.resolve(**MORE, **score, training__steps=16)
    straight = run(tmp_path / "straight", longer)
    other = StartPoint(resume=str(finished[0]))

    def power_cut(line):
        raise KeyError(line)

    with pytest.raises(KeyError, match="step     12"):
        run(tmp_path / "resumed", longer, start=other, say=power_cut)
    record = json.loads((tmp_path / "resumed/record.json").read_text())
    assert record["begun"] == dict(resume=str(finished[0]), step=12)
    # Its own checkpoint comes first, without the other.
    result = run(tmp_path / "resumed", longer)
    assert result["beside"]["average"]["steps"] == [12, 16]
    # A trial has the FLOPs of its own steps: 4 of 16.
    own = result.pop("training_flops")
    assert 0.2 < own / straight.pop("training_flops") < 0.3
    assert result == straight
    lines = metrics(tmp_path / "straight")
    later = [line for line in lines if (line["step"], line["split"]) > (12, "train")]
    assert metrics(tmp_path / "resumed") == later


def files(folder):
    """Returns {name: content} of all files of a folder but its checkpoints and its lock."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {path: path.relative_to(folder) for path in paths}
    return {
        str(name): path.read_bytes()
        for path, name in names.items()
        if name.parts[0] not in ("checkpoints", ".lock")
    }


@pytest.mark.parametrize(
    "killed",
    [
        None,
        "rename",
        pytest.param("write_checksums", marks=pytest.mark.ci),
        pytest.param("write_json", marks=pytest.mark.ci),
    ],
)
def test_a_longer_trial_is_as_if_it_had_been_so_from_the_first_step_on(
    finished, tmp_path, monkeypatch, killed
):
    """And what it had reached stays, also where it is killed on the way."""
    workdir = shutil.copytree(finished[0], tmp_path / "longer")
    before = files(workdir)
    longer = tiny.resolve(**MORE, training__steps=16)
    if killed:
        place = dict(rename=os, write_checksums=checksums).get(killed, run_dir)
        rename = os.rename

        def die(*paths, **__):
            if killed == "rename":
                rename(*paths)
            raise KeyError(killed)

        with monkeypatch.context() as patch:
            patch.setattr(place, killed, die)
            with pytest.raises(KeyError, match=killed):
                run_dir.RunDir(workdir).open(longer)
    result = run(workdir, longer)
    assert files(workdir / "at-12") == before
    # It is a whole trial, whose result the same settings read, and whose model translates.
    lines = ["3 days ago", "May 4"]
    assert Translator(workdir / "at-12")(lines) == Translator(finished[0])(lines)
    assert unclocked(run_dir.RunDir(workdir / "at-12").open(SETTINGS)) == finished[1]
    straight = run(tmp_path / "straight", longer)
    assert result == straight and metrics(workdir) == metrics(tmp_path / "straight")
    record = json.loads((workdir / "record.json").read_text())
    assert record["settings_digest"] == longer.digest()


@pytest.mark.parametrize("name", ["resume", "init_from"])
def test_a_trial_that_goes_on_needs_the_other_no_more(finished, tmp_path, name):
    gone = StartPoint(**{name: str(tmp_path / "gone")})
    begun = tmp_path / "begun"
    shutil.copytree(finished[0], begun)
    record = json.loads((begun / "record.json").read_text())
    write_json(begun / "record.json", record | {"begun": {name: getattr(gone, name)}})
    check_start(begun, gone, tiny.corpus())
    with pytest.raises(WorkdirError, match="gone holds no trained model"):
        check_start(tmp_path / "new", gone, tiny.corpus())
    # One that was begun otherwise goes on otherwise, so that the flag would be of no effect.
    with pytest.raises(WorkdirError, match="without another trial, and would go on so"):
        check_start(finished[0], gone, tiny.corpus())
    with pytest.raises(WorkdirError, match=f"was begun from {gone[0] or gone[1]}, and"):
        check_start(begun, StartPoint(**{name: "another"}), tiny.corpus())


def test_an_unfinished_trial_may_get_more_steps(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path / "trial", interruption=tiny.StopAt(4))
    longer = tiny.resolve(**MORE, training__steps=16)
    straight = run(tmp_path / "straight", longer)
    assert run(tmp_path / "trial", longer) == straight
    assert not (tmp_path / "trial/at-12").exists()


@pytest.mark.parametrize(
    ("settings", "result", "message"),
    [
        (
            dict(training__schedule="cosine(warmup=4)"),
            dict(status="finished", steps=12),
            r"training.steps=12, towards which training.schedule=cosine\(warmup=4\) decays",
        ),
        (
            {},
            dict(status="diverged", error="diverged: loss nan", step=3),
            "diverged: loss nan; more steps change nothing",
        ),
        (
            {},
            dict(status="finished", steps=6),
            "ended at step 6 of 12, where validation perplexity had stopped falling",
        ),
    ],
)
def test_more_steps_that_would_make_another_trial_are_refused(
    tmp_path, settings, result, message
):
    trial = run_dir.RunDir(tmp_path)
    trial.open(tiny.resolve(**settings))
    trial.describe("trial", {}, tiny.resolve(**settings), tiny.corpus(), 48, None)
    trial.finish(result)
    before = files(tmp_path)
    with pytest.raises(WorkdirError, match=message):
        trial.open(tiny.resolve(**settings, training__steps=16))
    assert files(tmp_path) == before


def test_fewer_steps_are_another_trial_whose_result_is_named(finished, tmp_path):
    workdir = shutil.copytree(finished[0], tmp_path / "longer")
    run_dir.RunDir(workdir).open(tiny.resolve(**MORE, training__steps=16))
    with pytest.raises(WorkdirError, match="at-12 is the trial of 12 steps"):
        run_dir.RunDir(workdir).open(SETTINGS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(model__d_ff=20),
            r"checkpoints/12 does not fit: \w+/.* is float32 \(.*24.*\) there, and float32 .*20",
        ),
        (
            dict(training__optimizer="muon"),
            r"does not fit: moments/.* here; --init_from takes the weights alone",
        ),
        (dict(seed=1), "in another order: seed is 0 there, and 1 here"),
        (dict(training__batch_size=8), "training.batch_size is 4 there, and 8 here"),
        (
            dict(training__steps=8),
            "at step 12 already; set training.steps to more than that, not 8",
        ),
    ],
)
def test_what_cannot_be_resumed(finished, tmp_path, changes, message):
    settings = tiny.resolve(**MORE | changes)
    with pytest.raises((CheckpointError, WorkdirError), match=message):
        run(tmp_path, settings, start=StartPoint(resume=str(finished[0])))
    nowhere = StartPoint(resume=str(tmp_path / "nowhere"))
    with pytest.raises(WorkdirError, match="holds no trained model"):
        run(tmp_path, settings, start=nowhere)


def test_what_another_trial_read_must_be_the_same(finished, tmp_path):
    donor = shutil.copytree(finished[0], tmp_path / "donor")
    record = json.loads((donor / "record.json").read_text())
    other = json.dumps(record | dict(corpus="0123", vocabulary="4567"))
    (donor / "record.json").write_text(other)
    message = r"is of other data: corpus 0123, now \w+, vocabulary 4567, now"
    with pytest.raises(WorkdirError, match=message):
        run(tmp_path / "resumed", start=StartPoint(resume=str(donor)))
    with pytest.raises(
        WorkdirError,
        match=r"has another vocabulary: 4567, and .*; give --config.data.vocabulary=",
    ):
        run(tmp_path / "own", start=StartPoint(init_from=str(donor)))
    shutil.rmtree(donor / "checkpoints")
    (donor / "record.json").write_text(json.dumps(record))
    with pytest.raises(WorkdirError, match="donor has no checkpoint;"):
        run(tmp_path / "own", start=StartPoint(init_from=str(donor)))


def test_beginning_with_the_weights_of_another(finished, tmp_path):
    """Its averaged ones, as they are its own; everything else is fresh."""
    donor = shutil.copytree(finished[0], tmp_path / "donor")
    config = json.loads((donor / "config.json").read_text())
    config["evaluation"]["weights"] = "average"
    (donor / "config.json").write_text(json.dumps(config))
    # Numbers of scores are no weights: those of the settings hold.
    score = dict(model__score="annealed(start=1)")
    settings = tiny.resolve(
        **MORE, **score, training__learning_rate=1e-25, training__steps=4, seed=3
    )
    result = run(tmp_path / "own", settings, start=StartPoint(init_from=str(donor)))
    assert result["perplexity"] == pytest.approx(
        finished[1]["beside"]["average"]["validation"]["perplexity"], rel=1e-6
    )
    record = json.loads((tmp_path / "own/record.json").read_text())
    assert record["begun"] == dict(
        init_from=str(donor), weights="average", steps=[8, 12]
    )
    assert result["steps"] == 4 and [
        line["step"] for line in metrics(tmp_path / "own")
    ] == [4, 4]
    other = tiny.resolve(model__d_ff=20)
    with pytest.raises(CheckpointError, match=r"does not fit: params/\w+"):
        run(tmp_path / "other", other, start=StartPoint(init_from=str(donor)))


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(finished, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def say(line):
        if "step      6" in line:  # files of checkpoints are larger
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    message = r"\S+/\d cannot be written: .*. Make room or give the right to"
    try:
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path, say=say)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # What the first run still writes ends with its process, which here is the second's too.
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("orbax"):
            threading.Thread.join(thread, 30)
    assert_same(tmp_path, run(tmp_path), finished)


@pytest.mark.ci
def test_a_step_without_numbers_changes_nothing_but_counts():
    settings = tiny.resolve(**MORE, training__nonfinite="skip")
    program = program_of(settings, 500, 48)
    lanes = Lanes(1, devices=tuple(jax.local_devices()[:1]))
    run_steps = distribute(functools.partial(train_steps, program), lanes, donate=False)
    state = initial_state(program, settings)
    states = lanes.stack([jax.device_get(state)])
    hyper = jax.device_get(hyper_of(settings))
    source = batches_of(tiny.corpus(), settings.training, 0)
    after = []
    for eps_ls in (hyper.eps_ls, np.float32(np.nan), hyper.eps_ls):
        fed = DeviceData(tiny.corpus().train, lanes, 48)(source.take(1)[None])
        hypers = lanes.stack([hyper._replace(eps_ls=eps_ls)])
        states, metrics = run_steps(states, hypers, *fed, 1)
        after.append(jax.device_get(take_lane(states, (0, 0))))
        assert np.isfinite(np.asarray(metrics["loss"])).all() == np.isfinite(eps_ls)
    trained = [(one.params, one.positions, one.moments) for one in after]
    jax.tree.map(np.testing.assert_array_equal, *trained[:2])
    assert [int(one.step) for one in after] == [1, 2, 3]
    tables = np.array([one.params["embedding"] for one in after])
    assert not np.array_equal(tables[2], tables[1])
    # The average has the parameters after each step, the skipped one too.
    mean = np.average(tables, axis=0, weights=[0.36, 0.6, 1])
    average = after[2].ema["params"]["embedding"]
    np.testing.assert_allclose(average, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.ci
def test_steps_without_numbers_are_skipped_and_too_many_end_the_trial(tmp_path):
    settings = tiny.resolve(
        training__learning_rate=1e30, training__nonfinite="skip", training__steps=16
    )
    with pytest.raises(Interrupted):
        run(tmp_path, settings, interruption=tiny.StopAt(4))
    result = run(tmp_path, settings)
    assert result["status"] == "diverged" and 11 <= result["step"] <= 13
    assert result["error"].endswith(
        f"at step {result['step']}, the last of 10 such in a row"
    )
    train = [line for line in metrics(tmp_path) if line["split"] == "train"]
    assert [line["step"] for line in train] == [4] and train[0]["skipped"] == 4 - (
        result["step"] - 10
    )
    # From step 5 on there is nothing to write: a line without numbers waits for the next.
    assert np.isfinite(train[0]["loss"]) and np.isfinite(train[0]["grad_norm"])


@pytest.mark.parametrize(
    ("nonfinite", "finite", "ends"),
    [
        ("stop", [1, 1, 0, 1], 2),
        ("stop", [1, 1], None),
        ("skip", [0] * 6 + [1] + [0] * 9, None),
        ("skip", [0] * 6 + [1] + [0] * 10, 16),
    ],
)
def test_when_steps_without_numbers_are_too_many(nonfinite, finite, ends):
    training = SimpleNamespace(nonfinite=nonfinite)
    run_ = SimpleNamespace(training=training, bad_steps=0)
    assert TrialRun.fatal_step(run_, np.array(finite, bool)) == ends
    if nonfinite == "skip" and ends:  # over several dispatches too
        run_.bad_steps = 0
        assert TrialRun.fatal_step(run_, np.array(finite[:12], bool)) is None
        assert TrialRun.fatal_step(run_, np.array(finite[12:], bool)) == ends - 12


def test_the_batch_without_numbers_is_named():
    source = Batches(tiny.corpus().train, batch_size=4, sequence_length=48, seed=1)
    source.take(2)
    drawn = DrawnBatches(before=source.get_state(), slots=source.take(5))
    for i in range(5):
        pairs = drawn.slots[i][drawn.slots[i] >= 0].tolist()
        actual = TrialRun.identify(SimpleNamespace(batches=source), drawn, i)
        assert actual == dict(epoch=0, part=0, batch=2 + i, pairs=pairs)
