"""TODO."""

from pathlib import Path
from typing import Any

from experiments.errors import WorkdirError
from experiments.settings import resolve
from experiments.sweep.plan import Planned
from experiments.system.files import DamagedError, inside, read_json, write_json
from experiments.training.run_dir import ENDED, differences


def adopt_directories(workdir: Path, planned: list[Planned]) -> list[Planned]:
    """`planned`, where trials of equal settings keep the directory that an earlier call in `workdir` gave them.

    So a table that is extended by --seeds does not train its first seed again under another name.
    """
    there = {
        t["directory"].split("-")[-1]: t
        for t in (read_sweep_file(workdir) or {}).get("trials", [])
    }

    def adopted(one):
        before = there.get(one.settings.digest())
        if before and read_json(workdir / before["directory"] / "config.json") in (
            None,
            one.settings.to_dict(),
        ):
            return one._replace(
                directory=before["directory"],
                label=one.label or before.get("label", ""),
            )
        return one

    return [adopted(one) for one in planned]


def read_sweep_file(workdir: Path) -> dict[str, Any] | None:
    """What sweep.json says, None where there is none. Raises DamagedError for a file that no sweep wrote."""
    path = workdir / "sweep.json"
    if (found := read_json(path)) is None:
        return None
    kinds = dict(name=str, directory=str, point=dict, label=str)
    if not (
        isinstance(found.get("base"), dict)
        and isinstance(found.get("trials"), list)
        and all(
            isinstance(t, dict)
            and all(
                isinstance(t.get(name, kind()), kind) for name, kind in kinds.items()
            )
            for t in found["trials"]
        )
    ):
        raise DamagedError(
            path,
            "it lists no trials",
            "remove it; the same call then keeps the finished trials",
        )
    for t in found["trials"]:
        inside(workdir, t.get("directory"), path)
    return found


def open_workdir(
    workdir: Path, config_path: str, config, names: list[str], planned: list[Planned]
) -> None:
    """Writes sweep.json: the base config, and every trial that this workdir is asked for, now or before.

    Raises WorkdirError where the workdir is another config's, or a single trial's.
    """
    if (workdir / "config.json").exists():
        raise WorkdirError(
            f"{workdir} is the directory of a single trial; choose another --workdir for a sweep"
        )
    base = resolve(config).to_dict()
    before = read_sweep_file(workdir)
    if before and before["base"] != base:
        raise WorkdirError(
            f"{workdir} belongs to a sweep of another config: {differences(before['base'], base)}. "
            "Choose another --workdir, or remove this one"
        )
    trials = [
        dict(name=p.name, directory=p.directory, point=p.point, label=p.label)
        for p in planned
    ]
    asked = {p.directory for p in planned}
    trials += [
        t for t in (before or {}).get("trials", []) if t["directory"] not in asked
    ]
    names = list(dict.fromkeys([*(before or {}).get("sweeps", []), *names]))
    write_json(
        workdir / "sweep.json",
        dict(config=config_path, base=base, sweeps=names, trials=trials),
    )


def is_finished(workdir: Path, one: Planned) -> bool:
    """Whether a trial is done with, for better or for worse: a failure is tried again, a divergence would repeat."""
    result = read_json(workdir / one.directory / "result.json")
    return result is not None and result.get("status") in ENDED


def record_failure(workdir: Path, one: Planned, error: str, trace: str = "") -> None:
    line = " ".join(error.split())
    write_json(
        workdir / one.directory / "result.json",
        dict(status="failed", error=line, traceback=trace),
    )
