"""Trains trials of a sweep in this process's workers, as long as there are free ones.

Any number of machines may do so at the same time: each trial is claimed first (`claims`). A
group is the trials that can be lanes of one program; groups of the same number of processes
share a pool of workers, and in a pool a worker gets trials of the program that it has compiled.
"""

import collections
import concurrent.futures as futures
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.errors import UserError
from experiments.sweep.claims import (
    MOST_FAILURES,
    SILENCE,
    Claims,
    Listing,
    Others,
    Presence,
    list_claims,
    read_claim,
)
from experiments.sweep.plan import Trial, lane_key
from experiments.sweep.schedule import Layout, Schedule
from experiments.sweep.workdir import (
    begin_again,
    is_cancelled,
    is_finished,
    record_failure,
    trained_alike,
)
from experiments.sweep.workers import Pools
from experiments.system.files import read_json, write_json
from experiments.system.signals import STATUS, Interrupted, Interruption

PATIENCE = 120.0
"""Seconds that workers have to save and leave; more than a compilation takes."""

TICK = 0.5
"""Seconds between two looks at the workers."""

AGE = 2.0
"""Seconds for which a list of claims is good enough to choose by."""

ROUNDS = 4
"""A call takes so many trials for each lane, at most: a lane that is free takes the next."""

Chosen = list[tuple[list[Trial], Schedule]]
"""Groups of trials, and how each is run."""


class CancelledError(UserError):
    """Raised when `launch.cancel` has ended a sweep."""


class Share(NamedTuple):
    """Holds the trials that one worker runs in one call, and how many at a time."""

    trials: list[Trial]
    lanes: int

    @property
    def program(self):
        return lane_key(self.trials[0].settings)


def run_trials(
    pools: Pools,
    workdir: Path,
    trials: Sequence[Trial],
    choose: Callable[[list[Trial]], Chosen],
    interruption: Interruption | None = None,
    *,
    stays: bool = True,
    silence: float = SILENCE,
    job: str | None = None,
) -> Iterator[None]:
    """Trains what nobody else does, and yields twice a second until nothing is left.

    `choose(free)` says how free trials are run, or some of them: the others' turn comes
    later. A process that `stays` waits for trials that others train, as those may die;
    another leaves when all of them live. `silence` is how many seconds they may have without
    a sign of life, and `job` the name that a scheduler gives to this process.

    A failure is written to the trial's result.json. Raises CancelledError; and after a stop
    signal, with all saved and given back, Interrupted.
    """
    interruption = interruption or Interruption()
    with Presence(workdir, silence, job) as presence:
        crew = _Crew(workdir, trials, presence, interruption, silence)
        try:
            while True:
                crew.check()
                if free := crew.free():
                    yield from crew.run(pools, choose(free))
                elif crew.waits(stays):
                    time.sleep(TICK)
                    yield
                else:
                    return
        finally:
            crew.leave()


def begin(workdir: Path, todo: Sequence[Trial]) -> None:
    """Makes all trials free that are to be trained and that nobody trains.

    Those that failed are tried again, and so are those whose results were removed.
    """
    begin_again(workdir)
    listing = list_claims(workdir)
    claims = Claims(workdir, "launch.sweep")
    for trial in todo:
        name = name_of(trial)
        number = listing.numbers.get(name, -1)
        has_failed = number % 2 and claims.failures(name, number)
        if name in listing.ended or has_failed:
            claims.ask_again(name, listing)


class _Crew:
    """The workers of this process, and what they have claimed."""

    def __init__(self, workdir, trials, presence, interruption, silence):
        self.workdir = workdir
        self.by_name = {name_of(trial): trial for trial in trials}
        self.alike = trained_alike(workdir)
        self.presence = presence
        self.claims = Claims(workdir, presence.name)
        self.others = Others(workdir, silence)
        self.interruption = interruption
        # {future: (worker, trials)}
        self.running = {}
        # {(trial, claim): whether it may be taken}, of trials that were given back.
        self._allowed = {}
        self._listing = None
        self._listed = 0.0

    def listing(self) -> Listing:
        """Returns the claims, as they were a moment ago."""
        if self._listing is None or time.monotonic() - self._listed > AGE:
            self._listing = list_claims(self.workdir)
            self._listed = time.monotonic()
        return self._listing

    def free(self) -> list[Trial]:
        """Returns trials that may be taken, as the claims are now.

        Not those of which one that trains the same is run: they are free when it has ended.
        """
        self._listing = None
        trials = [trial for trial in self.by_name.values() if self._is_free(trial)]
        return [trial for trial in trials if not self._running_alike(trial)]

    def waits(self, stays: bool) -> bool:
        """Whether trials that others have may become free; gives back those of the dead."""
        running = {name for name in self.listing().running() if name in self.by_name}
        for trial in filter(self._is_free, self.by_name.values()):
            running |= self._running_alike(trial)
        lives = [self._lives(name) for name in sorted(running)]
        return bool(running) if stays else None in lives

    def check(self) -> None:
        """Raises Interrupted or CancelledError when this process is to leave."""
        if is_cancelled(self.workdir):
            raise CancelledError(
                f"{self.workdir}: the sweep was cancelled; launch.sweep goes on with it"
            )
        self.interruption.check()

    def _is_free(self, trial):
        name = name_of(trial)
        listing = self.listing()
        if name in listing.ended or listing.is_taken(name):
            return False
        number = listing.numbers.get(name, -1)
        if number < 0:
            return True
        key = name, number
        if key not in self._allowed:
            failed = self.claims.failures(name, number)
            mine = self.presence.name in failed
            self._allowed[key] = not mine and len(failed) < MOST_FAILURES
        return self._allowed[key]

    def _running_alike(self, trial):
        """Returns which trials of the same training run: `trial` is to copy one of them."""
        alike = {Path(other).name for other in self.alike.get(trial.directory, ())}
        running = filter(self.listing().is_running, alike)
        # The list may be older than a claim of this process.
        return {*running, *alike.intersection(self.claims.held)} - {name_of(trial)}

    def _lives(self, name):
        """Whether a trial's owner lives, None for not known; gives it back for a dead one."""
        number = self.listing().numbers[name]
        owner = read_claim(self.workdir, name, number).get("joiner", "")
        lives = self.others.is_alive(owner)
        if lives is False:
            why = f"{owner or 'its owner'} shows no sign of life"
            self.claims.give_back_for(name, number, why)
            # So that the next look finds it.
            return None
        return lives

    def run(self, pools: Pools, chosen: Chosen) -> Iterator[None]:
        """Runs groups, pool after pool, until none of their trials is free."""
        layouts = {schedule.layout.workers: schedule.layout for _, schedule in chosen}
        running = [self.by_name.get(name) for name in self.listing().running()]
        elsewhere = {lane_key(trial.settings) for trial in running if trial}
        for count, layout in layouts.items():
            groups = [
                _Group(trials, schedule.layout, elsewhere)
                for trials, schedule in chosen
                if schedule.layout.workers == count
            ]
            yield from self.run_pool(pools.workers(layout), groups)

    def run_pool(self, workers, groups: list["_Group"]) -> Iterator[None]:
        """Runs groups on workers, each as soon as one is free."""
        while True:
            if self.interruption.asked:
                self._interrupt()
            self._start_idle(workers, groups)
            if not self.running:
                return
            some_done = futures.FIRST_COMPLETED
            futures.wait(self.running, timeout=TICK, return_when=some_done)
            if self.presence.was_silent():
                self._drop(self.claims.renew())
            if is_cancelled(self.workdir):
                self.interruption.asked = True
            # The workers may have got the signal too, so their errors mean nothing.
            if not self.interruption.asked:
                self._settle()
            yield

    def _start_idle(self, workers, groups):
        for worker in workers:
            busy = [other for other, _ in self.running.values()]
            if worker not in busy and (share := self._take(worker, busy, groups)):
                future = worker.run(self.workdir, *share)
                self.running[future] = worker, list(share.trials)

    def _take(self, worker, busy, groups) -> Share | None:
        """Claims the next trials of a worker; None where nothing is free.

        They are of the program that the worker has compiled, else of the group that has the
        most left, preferably one that no other worker is at, here or elsewhere.
        """
        taken = {other.program for other in busy}
        while groups:
            mine = [group for group in groups if group.program == worker.program]
            group = mine[0] if mine else max(groups, key=lambda g: g.rank(taken))
            if trials := self._claim(group):
                return Share(trials, group.layout.lanes)
            # What is given back later is found by the next look at all trials.
            groups.remove(group)
        return None

    def _claim(self, group):
        """Claims trials of a group for one call."""
        claimed = []
        count = group.share()
        while group.trials and len(claimed) < count:
            trial = group.trials.popleft()
            name = name_of(trial)
            number = self.listing().next_number(name)
            if self._running_alike(trial):
                continue
            if not self._is_free(trial) or not self.claims.take(name, number):
                group.shared = True
            # It may have ended since, or before there were claims.
            elif is_finished(self.workdir, trial):
                self.claims.end(name)
            else:
                claimed.append(trial)
        return claimed

    def _settle(self):
        """Takes note of trials that have ended, and of calls that failed."""
        for future, (worker, trials) in list(self.running.items()):
            for trial in [t for t in trials if is_finished(self.workdir, t)]:
                # Lanes end one by one, long before their share does.
                trials.remove(trial)
                self.claims.end(name_of(trial))
            if not future.done():
                continue
            del self.running[future]
            error = future.exception()
            if _is_interruption(worker, error):
                # Another process than this one has stopped the worker.
                self.interruption.asked = True
                return
            if error is not None:
                self._record_death(trials, _cause_of_death(worker, error))
                worker.restart()
            for trial in trials:
                self._end(trial)

    def _end(self, trial):
        """Ends this process's part in a trial, with its result or its failure."""
        name = name_of(trial)
        if is_finished(self.workdir, trial):
            self.claims.end(name)
            return
        result = read_json(self.workdir / trial.directory / "result.json") or {}
        why = result.get("error", "no result was written")
        self.claims.give_back(name, why, failed=True)

    def _record_death(self, trials, message):
        for trial in trials:
            if not is_finished(self.workdir, trial):
                record_failure(self.workdir, trial, message)

    def _drop(self, names):
        """Stops workers with trials that are others' now."""
        for future, (worker, trials) in list(self.running.items()):
            if any(name_of(trial) in names for trial in trials):
                del self.running[future]
                worker.restart()
                for trial in trials:
                    if name_of(trial) not in names:
                        self.claims.give_back(name_of(trial), "it was silent")

    def _interrupt(self):
        """Has the workers save their checkpoints and leave; then raises."""
        for worker, _ in self.running.values():
            worker.terminate()
        futures.wait(self.running, timeout=PATIENCE)
        self.check()

    def leave(self) -> None:
        """Gives back what this process still has."""
        for name in self.claims.held:
            if is_finished(self.workdir, self.by_name[name]):
                self.claims.end(name)
            else:
                self.claims.give_back(name, "its process left")


class _Group:
    """Trials of one program that are left, and how they are run."""

    def __init__(self, trials, layout: Layout, elsewhere=frozenset()):
        self.trials = collections.deque(trials)
        self.layout = layout
        self.program = lane_key(trials[0].settings)
        # Whether another process is at it too.
        self.shared = self.program in elsewhere

    def share(self):
        """Returns how many trials a worker takes; without lanes one, the rest is shared."""
        lanes = self.layout.lanes
        fair = -(-len(self.trials) // self.layout.workers)
        return 1 if lanes == 1 else max(lanes, min(ROUNDS * lanes, fair))

    def rank(self, taken):
        """Returns what is larger for a group that should be taken first."""
        return not self.shared, self.program not in taken, len(self.trials)


def name_of(trial: Trial) -> str:
    """Returns a trial's name among the claims: that of its directory."""
    return Path(trial.directory).name


def write_schedule(workdir: Path, chosen: Chosen) -> None:
    """Keeps how groups are run, and why, in schedule.json."""
    entries = []
    for group, schedule in chosen:
        directories = [trial.directory for trial in group]
        layout = schedule.layout._asdict()
        entries.append(dict(trials=directories, layout=layout, why=schedule.why))
    write_json(workdir / "schedule.json", entries)


def _is_interruption(worker, error):
    """Whether a call ended because its process was asked to stop.

    With nothing to save it leaves at once, even in the middle of a compilation.
    """
    if isinstance(error, futures.BrokenExecutor):
        return worker.exit_status() == STATUS
    return isinstance(error, Interrupted)


def _cause_of_death(worker, error):
    """Returns what to say of a call that its process did not survive."""
    is_dead = isinstance(error, futures.BrokenExecutor)
    status = (worker.exit_status() or 0) if is_dead else 0
    if status == -signal.SIGKILL:
        return "the worker process was killed; the machine may have run out of memory"
    if status < 0:
        name = signal.Signals(-status).name
        return f"the worker process crashed with {name}, in compiled code most likely"
    return f"the worker process died ({error})"
