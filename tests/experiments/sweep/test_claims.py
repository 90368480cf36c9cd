"""Claims: of several processes one has a trial, the dead lose theirs, and clocks do no harm."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from experiments.sweep import claims as module
from experiments.sweep.claims import (
    CLAIMS,
    JOINERS,
    Claims,
    Others,
    Presence,
    list_claims,
    planner_lives,
    read_claim,
    read_joiner,
)
from experiments.system.identity import is_gone, this_process

pytestmark = pytest.mark.quick


def write_joiner(workdir, name, **says):
    path = workdir / JOINERS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(says))


def test_of_many_at_once_one_has_the_trial(tmp_path):
    start = threading.Barrier(20)
    took = []

    def take(name):
        claims = Claims(tmp_path, name)
        start.wait()
        for i in range(50):
            if claims.take(f"trial-{i}", 0):
                took.append((i, name))

    threads = [threading.Thread(target=take, args=(f"j{i}",)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(i for i, _ in took) == list(range(50))
    for i, name in took:
        assert read_claim(tmp_path, f"trial-{i}", 0)["joiner"] == name


def test_the_story_of_a_trial(tmp_path):
    """Taken, given back, taken by another, who ends it: each step shows in the names."""
    one = Claims(tmp_path, "one")
    two = Claims(tmp_path, "two")
    name = "h=2,d_k=1.5-0123abcd"
    assert not list_claims(tmp_path).is_taken(name)
    assert one.take(name, list_claims(tmp_path).next_number(name))
    listing = list_claims(tmp_path)
    assert listing.is_taken(name) and listing.running() == [name]
    assert not two.take(name, 0)
    one.give_back(name, "interrupted")
    assert one.held == []
    listing = list_claims(tmp_path)
    assert not listing.is_taken(name) and listing.running() == []
    assert two.take(name, listing.next_number(name))
    two.end(name)
    listing = list_claims(tmp_path)
    assert listing.ended == {name} and listing.running() == []
    assert sorted(os.listdir(tmp_path / CLAIMS)) == [
        f"{name}.{end}" for end in ("0", "1", "2", "ended")
    ]
    story = [read_claim(tmp_path, name, i)["joiner"] for i in range(3)]
    assert story == ["one", "one", "two"]
    assert read_claim(tmp_path, name, 1)["why"] == "interrupted"


def test_an_old_list_does_no_harm(tmp_path):
    old = list_claims(tmp_path)
    one = Claims(tmp_path, "one")
    two = Claims(tmp_path, "two")
    one.take("a", old.next_number("a"))
    assert not two.take("a", old.next_number("a"))
    before = list_claims(tmp_path)
    one.give_back("a", "left")
    # Two gives back for the dead what was given back already.
    two.give_back_for("a", before.numbers["a"], "silent")
    assert list_claims(tmp_path).numbers == {"a": 1}
    assert read_claim(tmp_path, "a", 1)["joiner"] == "one"


def test_failures_count_by_process_until_they_are_asked_for_again(tmp_path):
    for i, name in enumerate(("one", "two")):
        claims = Claims(tmp_path, name)
        assert claims.take("a", 2 * i)
        claims.give_back("a", "no memory", failed=True)
    assert claims.failures("a", 3) == ["one", "two"]
    claims.ask_again("a", list_claims(tmp_path))
    listing = list_claims(tmp_path)
    assert not listing.is_taken("a")
    assert claims.failures("a", listing.numbers["a"]) == []


def test_a_trial_whose_result_was_removed_is_free_again(tmp_path):
    claims = Claims(tmp_path, "one")
    claims.take("a", 0)
    claims.end("a")
    claims.ask_again("a", list_claims(tmp_path))
    listing = list_claims(tmp_path)
    assert not listing.ended and not listing.is_taken("a")
    # And one that ended before there were claims.
    claims.ask_again("b", listing)
    assert not list_claims(tmp_path).is_taken("b")


def test_who_stands_still_is_dead_after_a_while_by_the_watchers_clock(tmp_path):
    now = [1000.0]
    others = Others(tmp_path, silence=60, clock=lambda: now[0])
    # A clock of the year 2001, and one of 2050: nothing is decided by them.
    write_joiner(tmp_path, "late", beats=1, since="2001-01-01")
    write_joiner(tmp_path, "early", beats=1, since="2050-01-01")
    assert others.is_alive("late") is None and others.is_alive("early") is None
    now[0] += 50
    write_joiner(tmp_path, "early", beats=2, since="2050-01-01")
    assert others.is_alive("late") is None and others.is_alive("early") is True
    now[0] += 11
    assert others.is_alive("late") is False and others.is_alive("early") is None
    now[0] += 50
    assert others.is_alive("early") is False


def test_who_is_not_to_be_seen_yet_is_waited_for(tmp_path):
    """Over a network a file may show late."""
    now = [0.0]
    others = Others(tmp_path, silence=60, clock=lambda: now[0])
    assert others.is_alive("new") is None
    now[0] += 30
    write_joiner(tmp_path, "new", beats=0)
    assert others.is_alive("new") is True
    assert others.is_alive("") is None
    now[0] += 61
    assert others.is_alive("") is False


def test_a_process_shows_signs_of_life(tmp_path):
    with Presence(tmp_path, silence=0.4, job="12_3") as presence:
        first = read_joiner(tmp_path, presence.name)
        assert (first["process"], first["job"]) == (os.getpid(), "12_3")
        others = Others(tmp_path, silence=30)
        assert others.is_alive(presence.name) is None
        deadline = time.monotonic() + 30
        while not (lives := others.is_alive(presence.name)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert lives
    assert read_joiner(tmp_path, presence.name) == {}


def test_a_process_that_plans_is_waited_for_while_it_lives(tmp_path):
    now = [0.0]
    others = Others(tmp_path, silence=60, clock=lambda: now[0])
    assert not planner_lives(tmp_path, others)
    with Presence(tmp_path):
        assert not planner_lives(tmp_path, others)
    with Presence(tmp_path, plans=True):
        assert planner_lives(tmp_path, others)
    assert not planner_lives(tmp_path, others)
    write_joiner(tmp_path, "elsewhere", plans=True, beats=1)
    assert planner_lives(tmp_path, others)
    now[0] += 61
    assert not planner_lives(tmp_path, others)


@pytest.mark.parametrize("others", [False, True])
def test_a_process_that_slept_ends_where_others_may_train(
    tmp_path, monkeypatch, others
):
    now = [0.0]
    ended = threading.Event()
    monkeypatch.setattr(module, "_clock", lambda: now[0])
    monkeypatch.setattr(module.os, "_exit", lambda status: ended.set())
    if others:
        write_joiner(tmp_path, "elsewhere", beats=1)
    # Those who plan are of the same process.
    with Presence(tmp_path, plans=True), Presence(tmp_path, silence=0.4) as presence:
        assert not ended.wait(0.5)
        now[0] += 0.3
        assert ended.wait(2) == others
        # It is the last that it does; here it goes on.
        assert read_joiner(tmp_path, presence.name)["beats"] > 0


def test_what_a_process_has_is_that_of_all_its_workers(tmp_path):
    one, two, other = (Claims(tmp_path, *who) for who in (("a", 0), ("a", 1), ("b", 0)))
    for claims, names in ((one, "xy"), (two, "z"), (other, "w")):
        for name in names:
            assert claims.take(name, 0)
    one.end("x")
    assert (one.held, two.held) == (["y"], ["z"])
    assert one.of_all_workers() == two.of_all_workers() == {"y": 0, "z": 1}
    # As for a worker that has died.
    one.give_back("z", "killed", failed=True)
    assert list_claims(tmp_path).numbers == {"x": 0, "y": 0, "z": 1, "w": 0}


def test_a_process_of_this_machine_that_has_ended_is_known_at_once(tmp_path):
    assert not is_gone(this_process())
    text = (
        "import json, sys, time\n"
        "from experiments.system.identity import this_process\n"
        "print(json.dumps(this_process()), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        identity = json.loads(child.stdout.readline())
        assert not is_gone(identity)
        # The number alone is not the process: it may be another's by now.
        assert is_gone(dict(identity, started=0))
        child.kill()
    assert is_gone(identity)
    write_joiner(tmp_path, "dead", beats=3, **identity)
    assert Others(tmp_path).is_alive("dead") is False
    # Of another machine, or another boot, nothing is known.
    assert not is_gone(dict(identity, kernel="another"))
    assert not is_gone({})


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_claim_that_is_not_written_yet_is_nobodys(tmp_path, text):
    folder = tmp_path / CLAIMS
    folder.mkdir()
    (folder / "a.0").write_text(text, encoding="latin-1")
    assert read_claim(tmp_path, "a", 0) == {}
    assert list_claims(tmp_path).is_taken("a")


def test_other_files_are_no_claims(tmp_path):
    folder = tmp_path / CLAIMS
    folder.mkdir()
    for name in (".nfs0001", "readme", "a.b", ".DS_Store"):
        (folder / name).write_text("")
    assert list_claims(tmp_path) == ({}, set())
