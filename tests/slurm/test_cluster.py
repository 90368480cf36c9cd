"""What the SLURM of the tests does beside what test_sweeps.py asks of it."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.ci


def processes_of(directory):
    """The processes whose environment names the cluster of a directory."""
    mark = f"SLURM_CONF={directory}/slurm.conf".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def test_nothing_is_left_of_a_cluster():
    """Neither after an error inside the block, with a job that ignores SIGTERM."""
    own = Cluster()

    def work():
        with own:
            wrapped = "--wrap=trap '' TERM; sleep 301; sleep 302"
            own.run("sbatch", "--output=/dev/null", wrapped)
            running = lambda: [row for row in own.squeue() if row[1] == "RUNNING"]
            own.wait_for(running, "a job that runs")
            assert processes_of(own.directory)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not own.directory.exists()
    assert not processes_of(own.directory)
