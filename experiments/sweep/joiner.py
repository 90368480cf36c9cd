"""Takes trials of a sweep, and trains them, as long as there are free ones.

Any number of processes, on any number of machines, join a sweep's directory and take its
trials by `claims`. The process that a person or a scheduler starts shows signs of life and
decides how its trials are run (`run_trials`); its workers (`workers`), or processes on several
nodes (`nodes`), take them one by one in its name (`Board.take`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

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
from experiments.sweep.workdir import (
    begin_again,
    is_cancelled,
    is_finished,
    record_failure,
    trained_alike,
)
from experiments.system.files import read_json
from experiments.system.signals import Interruption

TICK = 0.5
"""Seconds between two looks at what trains."""

AGE = 2.0
"""Seconds for which a list of claims is good enough to choose by."""


class CancelledError(UserError):
    """Raised when `launch.cancel` has ended a sweep."""


def name_of(trial: Trial) -> str:
    """Returns a trial's name among the claims: that of its directory."""
    return Path(trial.directory).name


def begin(workdir: Path, todo: Sequence[Trial]) -> None:
    """Makes all trials free that are to be trained and that nobody trains.

    Those that failed are tried again, and so are those whose results were removed.
    """
    begin_again(workdir)
    listing = list_claims(workdir)
    claims = Claims(workdir, "launch.sweep")
    for trial in todo:
        # Another process may have ended it since.
        if is_finished(workdir, trial):
            continue
        name = name_of(trial)
        number = listing.numbers.get(name, -1)
        has_failed = number % 2 and claims.failures(name, number)
        if name in listing.ended or has_failed:
            claims.ask_again(name, listing)


class Board:
    """Says which of some trials are free, and takes them for a `worker` of a process."""

    def __init__(
        self, workdir: Path, trials: Sequence[Trial], joiner: str, worker: int = 0
    ):
        self.workdir = workdir
        self.by_name = {name_of(trial): trial for trial in trials}
        self.claims = Claims(workdir, joiner, worker)
        self._alike = trained_alike(workdir)
        # {(trial, claim): whether it may be taken} of trials that were given back.
        self._allowed = {}
        self._listing = None
        self._listed = 0.0

    def listing(self, now: bool = False) -> Listing:
        """Returns the claims, as they were a moment ago, or `now`."""
        if now or self._listing is None or time.monotonic() - self._listed > AGE:
            self._listing = list_claims(self.workdir)
            self._listed = time.monotonic()
        return self._listing

    def free(self) -> list[Trial]:
        """Returns trials that may be taken, as the claims are now."""
        self.listing(now=True)
        return list(filter(self.is_free, self.by_name.values()))

    def is_free(self, trial: Trial) -> bool:
        """Returns whether a trial may be taken.

        Where one that trains the same runs it may be when that has ended.
        """
        return self._is_allowed(trial) and not self.running_alike(trial)

    def running(self) -> list[str]:
        """Returns which trials processes have whose end would make any free."""
        running = set(self.listing().running()) & self.by_name.keys()
        for trial in filter(self._is_allowed, self.by_name.values()):
            running |= self.running_alike(trial)
        return sorted(running)

    def running_alike(self, trial: Trial) -> set[str]:
        """Returns which trials of the same training run: `trial` is to copy one of them."""
        alike = {path.name for path in self.alike(trial)}
        running = filter(self.listing().is_running, alike)
        # The list may be older than a claim of this process.
        return {*running, *alike.intersection(self.claims.held)} - {name_of(trial)}

    def programs(self) -> set:
        """Returns the programs of trials that any process has."""
        running = map(self.by_name.get, self.listing().running())
        return {lane_key(trial.settings) for trial in running if trial}

    def take(self, trials: list[Trial]) -> Trial | None:
        """Takes the first of `trials` that is free; None where there is none.

        It is removed there, and so are those that have ended.
        """
        for trial in list(trials):
            if self.is_free(trial) and self._claim(trial):
                trials.remove(trial)
                return trial
            if name_of(trial) in self.listing().ended:
                trials.remove(trial)
        return None

    def _claim(self, trial):
        name = name_of(trial)
        if not self.claims.take(name, self.listing().next_number(name)):
            # Another was first, so that the list is old.
            self.listing(now=True)
            return False
        # It may have ended since, or before there were claims.
        if is_finished(self.workdir, trial):
            self.claims.end(name)
            return False
        return True

    def path(self, trial: Trial) -> Path:
        """Returns the directory of a trial."""
        return self.workdir / trial.directory

    def alike(self, trial: Trial) -> tuple[Path, ...]:
        """Returns the directories of trials that train the same, among them its own."""
        names = self._alike.get(trial.directory, ())
        return tuple(self.workdir / name for name in names)

    def settle_ended(self) -> None:
        """Settles what this worker has and that has its result: lanes end one by one."""
        for trial in map(self.by_name.get, self.claims.held):
            if is_finished(self.workdir, trial):
                self.settle(trial)

    def settle(self, trial: Trial) -> None:
        """Ends this process's part in a trial, with its result or its failure."""
        name = name_of(trial)
        if is_finished(self.workdir, trial):
            return self.claims.end(name)
        result = read_json(self.workdir / trial.directory / "result.json") or {}
        why = result.get("error", "no result was written")
        self.claims.give_back(name, why, failed=True)

    def fail(self, trial: Trial, error: str, trace: str = "") -> None:
        """Writes the failure of a trial that this process has, and gives it back."""
        if not is_finished(self.workdir, trial):
            record_failure(self.workdir, trial, error, trace)
        self.settle(trial)

    def fail_for(self, worker: int, error: str) -> int:
        """Fails the trials of a worker that has died; returns how many it had."""
        owners = self.claims.of_all_workers()
        had = [name for name, owner in owners.items() if owner == worker]
        for name in had:
            self.fail(self.by_name[name], error)
        return len(had)

    def give_back(self, names: Iterable[str]) -> None:
        """Gives back trials of this process, but for those that have ended."""
        for name in names:
            if is_finished(self.workdir, self.by_name[name]):
                self.claims.end(name)
            else:
                self.claims.give_back(name, "its process left")

    def _is_allowed(self, trial):
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
            mine = self.claims.joiner in failed
            self._allowed[key] = not mine and len(failed) < MOST_FAILURES
        return self._allowed[key]


Run = Callable[[Board, list[Trial]], Iterator[None]]
"""Runs free trials, or some of them; yields while they are trained."""


def run_trials(
    workdir: Path,
    trials: Sequence[Trial],
    run: Run,
    interruption: Interruption,
    *,
    stays: bool = True,
    silence: float = SILENCE,
    job: str | None = None,
) -> Iterator[None]:
    """Trains what nobody else does, and yields twice a second until nothing is left.

    `run(board, free)` runs free trials, or some of them: the others' turn comes
    later. A process that `stays` waits for trials that others train, as those may die;
    another leaves when all of them live. `silence` is how many seconds they may have without
    a sign of life, and `job` the name that a scheduler gives to this process.

    A failure is written to the trial's result.json. Raises CancelledError; and after a stop
    signal, with all saved and given back, Interrupted.
    """
    with Presence(workdir, silence, job) as presence:
        board = Board(workdir, trials, presence.name)
        others = Others(workdir, silence)
        try:
            while True:
                check(workdir, interruption)
                if free := board.free():
                    yield from run(board, free)
                elif _waits(board, others, stays):
                    time.sleep(TICK)
                    yield
                else:
                    return
        finally:
            board.give_back(board.claims.of_all_workers())


def check(workdir: Path, interruption: Interruption) -> None:
    """Raises Interrupted or CancelledError when this process is to leave."""
    if is_cancelled(workdir):
        raise CancelledError(
            f"{workdir}: the sweep was cancelled; launch.sweep goes on with it"
        )
    interruption.check()


def _waits(board, others, stays):
    """Whether trials that others have may become free; gives back those of the dead."""
    running = board.running()
    lives = [_owner_lives(board, others, name) for name in running]
    return bool(running) if stays else None in lives


def _owner_lives(board, others, name):
    """Whether a trial's owner lives, None for not known; gives it back for a dead one."""
    number = board.listing().numbers[name]
    owner = read_claim(board.workdir, name, number).get("joiner", "")
    lives = others.is_alive(owner)
    if lives is False:
        why = f"{owner or 'its owner'} shows no sign of life"
        board.claims.give_back_for(name, number, why)
        # So that the next look finds it.
        return None
    return lives
