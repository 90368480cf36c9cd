"""Workdirs of several machines, as one: what is taken, what contradicts, what a kill leaves."""

import json
import os
import shutil

import pytest

from experiments import settings
from experiments.errors import UserError
from experiments.report import collect as module
from experiments.report.collect import Collected, collect
from experiments.report.merge import ConflictError, merge, plan_of, read_merged
from experiments.report.results import read_results
from experiments.report.write import write_report, write_results
from experiments.system.checksums import write_checksums
from tests.experiments import fakes

FILES = ("result.json", "record.json", "metrics.jsonl", "sentences.npz")


@pytest.fixture
def whole(tmp_path):
    """A sweep of five rows, of two seeds each, with checkpoints and checksums."""
    workdir = fakes.table_3(tmp_path / "whole", seeds=2, count=40)
    sweep = read(workdir / "sweep.json")
    for entry in sweep["trials"]:
        directory = workdir / entry["directory"]
        (directory / "checkpoints/750").mkdir(parents=True)
        (directory / "checkpoints/750/state").write_text(directory.name)
        write_checksums(directory, FILES)
        # As real ones are called, by which those that have not started are known.
        digest = settings.digest(read(directory / "config.json"))
        entry["directory"] += f"-{digest}"
        directory.rename(workdir / entry["directory"])
    (workdir / "sweep.json").write_text(json.dumps(sweep))
    return workdir


def trial(workdir, number):
    """The directory of a trial by its number in the whole sweep."""
    (directory,) = workdir.glob(f"trials/{number:02d}-*")
    return directory


def read(path):
    return json.loads(path.read_text())


def change(path, **values):
    """Changes a JSON file, and the checksums of its directory with it."""
    path.write_text(json.dumps(read(path) | values))
    if path.parent.parent.name == "trials":
        write_checksums(path.parent, FILES)


def part(whole, name, keep):
    """A workdir beside `whole` with the trials whose numbers `keep` accepts."""
    workdir = whole.parent / name
    sweep = read(whole / "sweep.json")
    sweep["plan"] = [e["directory"].rpartition("-")[2] for e in sweep["trials"]]
    sweep["trials"] = [e for i, e in enumerate(sweep["trials"]) if keep(i)]
    for entry in sweep["trials"]:
        shutil.copytree(whole / entry["directory"], workdir / entry["directory"])
    (workdir / "sweep.json").write_text(json.dumps(sweep))
    return workdir


@pytest.fixture
def halves(whole):
    """Two parts that have every other trial each, and no checkpoint of the other's."""
    return part(whole, "a", lambda i: i % 2 == 0), part(whole, "b", lambda i: i % 2)


def text_of(report):
    return report.markdown.read_text(), report.csv.read_text(), report.latex.read_text()


def tree(directory):
    """The bytes of all files but sweep.json and .lock."""
    paths = [p for p in directory.rglob("*") if p.is_file()]
    files = {str(p.relative_to(directory)): p.read_bytes() for p in paths}
    return {name: files[name] for name in files if name not in ("sweep.json", ".lock")}


def test_the_report_of_all_parts_is_that_of_the_whole(whole, halves, tmp_path):
    expected = text_of(write_report(whole))
    all_trials = tmp_path / "all"
    assert collect(halves, all_trials) == Collected(10, 0, 0, 0)
    assert text_of(write_report(all_trials)) == expected
    merged = read_merged(halves)
    assert text_of(write_results(merged, tmp_path / "report")) == expected
    # Also where the second part is named first.
    assert text_of(write_results(read_merged(halves[::-1]), tmp_path / "c")) == expected


def test_nothing_of_a_trial_is_lost(whole, halves, tmp_path):
    collect(halves, tmp_path / "all")
    assert tree(tmp_path / "all") == tree(whole)


def test_checkpoints_may_be_left_out(whole, halves, tmp_path):
    collect(halves, tmp_path / "all", checkpoints=False)
    without = {n: b for n, b in tree(whole).items() if "checkpoints" not in n}
    assert tree(tmp_path / "all") == without


def test_another_part_may_be_added_later(whole, halves, tmp_path):
    target = tmp_path / "all"
    assert collect(halves[1:], target) == Collected(5, 0, 0, 5)
    assert collect(halves[:1], target) == Collected(5, 5, 0, 0)
    assert collect(halves, target) == Collected(0, 10, 0, 0)
    # A workdir may be the one that all are brought to, under any name.
    assert collect([target / "../all"], target) == Collected(0, 10, 0, 0)
    assert tree(target) == tree(whole)


def test_equal_trials_are_one(whole, halves, tmp_path):
    """Times, speed and memory are the machine's, not the trial's."""
    again = part(whole, "again", lambda i: i < 3)
    for entry in read(again / "sweep.json")["trials"]:
        result = again / entry["directory"] / "result.json"
        change(
            result, seconds=9.0, tokens_per_second=1.0, peak_memory=7, training_flops=8
        )
    assert collect([*halves, again], tmp_path / "all") == Collected(10, 0, 0, 0)
    assert tree(tmp_path / "all") == tree(whole)
    assert len(read_merged([*halves, again]).trials) == 10


def test_unfinished_trials_are_listed_and_not_copied(whole, halves, tmp_path):
    a, b = halves
    os.remove(trial(a, 0) / "result.json")
    change(trial(b, 1) / "result.json", status="failed", error="out of memory")
    assert collect(halves, tmp_path / "all") == Collected(8, 0, 2, 0)
    results = read_results(tmp_path / "all")
    assert len(results.with_status("finished")) == 7  # and one diverged
    assert len([*(tmp_path / "all/trials").iterdir()]) == 8
    # Where one machine ended what another did not, the end counts.
    other = part(whole, "other", lambda i: i == 0)
    assert collect([a, other], tmp_path / "all") == Collected(1, 8, 1, 0)


def test_a_trial_that_ended_replaces_one_that_did_not(whole, halves, tmp_path):
    target = tmp_path / "all"
    collect(halves, target)
    os.remove(trial(target, 4) / "result.json")
    (trial(target, 4) / "half").touch()
    assert collect(halves, target) == Collected(1, 9, 0, 0)
    assert tree(target) == tree(whole)


CONFLICTS = {
    "result.json": (dict(bleu=1.0), "equal settings and other results (bleu is "),
    "record.json corpus": (dict(corpus="beef"), "other text (c0ffee12 and beef)"),
    "record.json vocabulary": (
        dict(vocabulary="x"),
        "other vocabularies (5eed5eed and x)",
    ),
    "record.json git": (dict(git="f00+"), "other commits (0a1b2c3d and f00+)"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_conflict_names_both_trials_before_anything_is_written(whole, tmp_path, name):
    values, words = CONFLICTS[name]
    a = part(whole, "a", lambda i: i < 6)
    b = part(whole, "b", lambda i: i >= 5)
    other = trial(b, 5 if name == "result.json" else 7)
    change(other / name.split()[0], **values)
    for call in (
        lambda: collect([a, b], tmp_path / "all"),
        lambda: read_merged([a, b]),
    ):
        with pytest.raises(ConflictError) as error:
            call()
        message = str(error.value)
        assert words in message
        assert f"{a}/trials/" in message and str(other) in message
        assert "\n" not in message
    assert not (tmp_path / "all/sweep.json").exists()
    assert not (tmp_path / "all/trials").exists()


def test_other_commits_are_taken_where_that_is_asked_for(whole, tmp_path):
    a = part(whole, "a", lambda i: i < 6)
    b = part(whole, "b", lambda i: i >= 6)
    change(trial(b, 7) / "record.json", git=None)
    assert collect([a, b], tmp_path / "all", mixed_code=True).copied == 10
    assert len(read_merged([a, b], mixed_code=True).trials) == 10


def test_other_configs_are_no_one_sweep(whole, halves, tmp_path):
    a, b = halves
    sweep = read(b / "sweep.json")
    sweep["base"]["training"]["steps"] = 751
    change(b / "sweep.json", base=sweep["base"])
    with pytest.raises(
        ConflictError, match=r"training\.steps is 750 and 751; leave"
    ) as error:
        collect(halves, tmp_path / "all")
    assert str(a) in str(error.value) and str(b) in str(error.value)


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        (dict(looks=dict(count=2, interest={})), "--seeds=auto"),
        (dict(tuning=dict(grid={"training.learning_rate": [1]}, seeds=[7])), "--tune"),
    ],
)
def test_sweeps_that_decide_by_the_whole_table_are_refused(
    halves, tmp_path, more, flag
):
    change(halves[1] / "sweep.json", **more)
    with pytest.raises(ConflictError, match=f"b is of a sweep with {flag}"):
        collect(halves, tmp_path / "all")


def test_a_single_trial_is_no_sweep(halves, tmp_path):
    with pytest.raises(ConflictError, match="single trial"):
        read_merged([halves[0], trial(halves[1], 1)])


@pytest.mark.parametrize("name", ["result.json", "sentences.npz", "metrics.jsonl"])
def test_a_damaged_trial_is_named_and_refused(halves, tmp_path, name):
    path = trial(halves[1], 3) / name
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(UserError, match="trials/03-") as error:
        collect(halves, tmp_path / "all")
    assert name in str(error.value)
    assert not (tmp_path / "all/trials").exists()


def test_a_copy_that_is_damaged_on_the_way_is_refused(halves, tmp_path, monkeypatch):
    """Trials before it are whole; the next call goes on."""
    copy = shutil.copytree

    def copy_badly(source, place, *arguments, **options):
        copy(source, place, *arguments, **options)
        if source == trial(halves[1], 3):
            (place / "sentences.npz").write_bytes(b"")

    monkeypatch.setattr(module.shutil, "copytree", copy_badly)
    with pytest.raises(UserError, match=r"trials/03-\w+ is damaged \(sentences.npz"):
        collect(halves, tmp_path / "all")
    assert not [*(tmp_path / "all/trials").glob("03-*")]
    monkeypatch.undo()
    assert collect(halves, tmp_path / "all").kept == 3


def test_a_killed_call_is_made_again(whole, halves, tmp_path, monkeypatch):
    """Killed while the 4th trial is half copied, and before it has its name."""
    target = tmp_path / "all"
    made = []

    def killed(*paths):
        made.append(paths)
        if len(made) == 4:
            raise KeyboardInterrupt
        os.replace(*paths)

    monkeypatch.setattr(module.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        collect(halves, target)
    monkeypatch.undo()
    left = read_results(target)
    assert [len(left.trials), len(left.with_status("unfinished"))] == [10, 7]
    assert collect(halves, target) == Collected(7, 3, 0, 0)
    assert tree(target) == tree(whole)


def test_links_and_hidden_files_are_left_out(halves, tmp_path):
    """A stranger's workdir must not make us read elsewhere."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    directory = trial(halves[0], 2)
    (directory / "more").symlink_to(secret)
    (directory / "folder").symlink_to(tmp_path)
    (directory / ".lock").touch()
    collect(halves, tmp_path / "all")
    names = {path.name for path in trial(tmp_path / "all", 2).iterdir()}
    assert not names & {"more", "folder", ".lock"}


def test_the_order_without_a_plan_is_that_of_the_workdirs(whole):
    a = part(whole, "a", lambda i: i >= 6)
    b = part(whole, "b", lambda i: i < 6)
    for workdir in (a, b):
        sweep = read(workdir / "sweep.json")
        del sweep["plan"]
        (workdir / "sweep.json").write_text(json.dumps(sweep))
    both = [read_results(workdir) for workdir in (a, b)]
    assert plan_of(both) == []
    numbers = [int(t.directory.name[:2]) for t in merge(both).trials]
    assert numbers == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]


def test_links_of_the_report_lead_to_the_trials(halves, tmp_path):
    out = tmp_path / "deep/report"
    page = write_results(read_merged(halves), out).html.read_text()
    for i, workdir in enumerate(halves):
        address = f"../../{workdir.name}/trials/{trial(workdir, i).name}/metrics.jsonl"
        assert f'href="./{address}"' in page
        assert (out / address).exists()


@pytest.mark.parametrize("name", ["trials", "sweep.json"])
def test_a_trial_does_not_replace_what_is_none(whole, halves, tmp_path, name):
    """A stranger's sweep.json may have any name within its workdir."""
    target = tmp_path / "all"
    collect(halves[:1], target)
    before = tree(target)
    stranger = part(whole, "stranger", lambda i: i == 1)
    sweep = read(stranger / "sweep.json")
    (entry,) = sweep["trials"]
    if name == "trials":
        for path in (stranger / entry["directory"]).iterdir():
            path.rename(stranger / "trials" / path.name)
    change(stranger / "sweep.json", trials=[dict(entry, directory=name)])
    if name == "trials":
        with pytest.raises(UserError, match=r"is in the place of .*stranger/trials"):
            collect([stranger], target)
    else:
        assert collect([stranger], target).copied == 0
    assert tree(target) == before
