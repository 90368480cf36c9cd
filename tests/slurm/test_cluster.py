"""The SLURM of the tests does what a real one does."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.ci

SLEEP = "--wrap=sleep 300"


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


def other_than(cluster, node):
    (other,) = {*cluster.nodes} - {node}
    return other


def test_a_job_runs_and_its_status_counts(cluster, tmp_path):
    job = cluster.sbatch("--wrap=hostname", f"--output={tmp_path}/out")
    failing = cluster.sbatch("--wrap=exit 3", f"--output={tmp_path}/none")
    assert cluster.wait(job) == {job: "COMPLETED"}
    assert cluster.wait(failing) == {failing: "FAILED"}
    assert (tmp_path / "out").read_text().strip() == socket.gethostname()


def test_an_array_runs_on_two_nodes(cluster, tmp_path):
    """Each task takes a whole node, so that one node cannot run both."""
    text = "--wrap=echo $SLURMD_NODENAME; sleep 3"
    job = cluster.sbatch(
        "--array=0-1", "--cpus-per-task=2", f"--output={tmp_path}/%a", text
    )
    assert cluster.wait(job) == {f"{job}_0": "COMPLETED", f"{job}_1": "COMPLETED"}
    nodes = {(tmp_path / task).read_text().strip() for task in "01"}
    assert nodes == {*cluster.nodes}


def test_names_of_nodes_resolve(cluster):
    """jax.distributed connects to the first node by its name in SLURM_STEP_NODELIST."""
    for node in cluster.nodes:
        assert socket.gethostbyname(node).startswith("127.")


def test_a_requeued_job_runs_again(cluster, tmp_path):
    script = "--wrap=echo restarts ${SLURM_RESTART_COUNT:-0}; sleep 2"
    job = cluster.sbatch(
        "--requeue", "--open-mode=append", f"--output={tmp_path}/out", script
    )
    cluster.wait_for(lambda: (tmp_path / "out").exists(), "first run")
    cluster.run("scontrol", "requeue", job)
    assert cluster.wait(job) == {job: "COMPLETED"}
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line for line in lines if line.startswith("restarts")] == [
        "restarts 0",
        "restarts 1",
    ]


@pytest.mark.parametrize("way", ["set_down", "kill_node"])
def test_a_job_moves_from_a_node_that_goes_down(cluster, way):
    job = cluster.sbatch("--requeue", "--output=/dev/null", SLEEP)
    node = node_of(cluster, job)
    getattr(cluster, way)(node)
    other = other_than(cluster, node)
    cluster.wait_for(
        lambda: cluster.squeue(f"--jobs={job}") == [[job, "RUNNING", other]],
        "move",
        120,
    )


def test_a_node_without_its_daemon_goes_down_and_comes_back(cluster):
    node = cluster.nodes[0]
    cluster.kill_slurmd(node)
    cluster.wait_for(
        lambda: any(s.startswith("down") for s in cluster.states()), "down"
    )
    job = cluster.sbatch("--nodes=2", "--output=/dev/null", "--wrap=true")
    cluster.start_slurmd(node)
    assert cluster.wait(job) == {job: "COMPLETED"}


def test_jobs_outlive_the_controller(cluster, tmp_path):
    script = f"--wrap=while test ! -e {tmp_path}/go; do sleep 0.2; done"
    job = cluster.sbatch("--output=/dev/null", script)
    node = node_of(cluster, job)
    cluster.restart_controller()
    assert cluster.squeue(f"--jobs={job}") == [[job, "RUNNING", node]]
    (tmp_path / "go").touch()
    assert cluster.wait(job) == {job: "COMPLETED"}


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
