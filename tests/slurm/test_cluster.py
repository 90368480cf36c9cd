"""What the SLURM of the tests does beside what test_sweeps.py asks of it."""

import shutil
import socket
import subprocess
import sys
import time
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


def node_of(cluster, job):
    """Waits until the job runs; returns its node."""
    cluster.wait_for(lambda: cluster.state(job) == "RUNNING", f"start of job {job}")
    ((_, _, node),) = cluster.squeue(f"--jobs={job}")
    return node


def test_names_of_nodes_resolve(cluster):
    """jax.distributed connects to the first node by its name in SLURM_STEP_NODELIST."""
    for node in cluster.nodes:
        assert socket.gethostbyname(node).startswith("127.")


def test_nothing_is_left_of_a_cluster():
    """Neither after an error inside the block, with a job that ignores SIGTERM."""
    own = Cluster()

    def work():
        with own:
            job = own.sbatch(
                "--output=/dev/null", "--wrap=trap '' TERM; sleep 301; sleep 302"
            )
            node_of(own, job)
            assert processes_of(own.directory)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not own.directory.exists()
    assert not processes_of(own.directory)


def test_daemons_end_with_a_process_that_is_killed():
    program = """
from tests.slurm.cluster import Cluster
with Cluster() as own:
    print(own.directory, flush=True)
    input()
"""
    command = [sys.executable, "-c", program]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        directory = Path(process.stdout.readline().strip())
        assert processes_of(directory)
        process.kill()
    for _ in range(100):
        if not processes_of(directory):
            break
        time.sleep(0.1)
    assert not processes_of(directory)
    shutil.rmtree(directory)
