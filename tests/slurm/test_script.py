"""launch/clusters/slurm.sh on a real SLURM, with a program that stands in for the sweep."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

SCRIPT = Path(__file__).parents[2] / "launch/clusters/slurm.sh"

PYTHON = """#!/bin/bash
# What it has done is in the workdir; SIGTERM has it save, which takes a second.
workdir=${!#}
workdir=${workdir#--workdir=}
log=$workdir/task-$SLURM_ARRAY_TASK_ID
trap 'sleep 1; echo saved >> "$log"; exit 75' TERM
echo "started $*" >> "$log"
if [ "$SLURM_ARRAY_TASK_ID" = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
  while true; do sleep 0.1; done
fi
echo ended >> "$log"
"""


def test_a_task_that_is_told_to_leave_saves_and_goes_back_to_the_queue(
    cluster, tmp_path
):
    program = tmp_path / "bin/python"
    program.parent.mkdir()
    program.write_text(PYTHON)
    program.chmod(0o755)
    job = cluster.sbatch(
        "--array=1-2",
        "--cpus-per-task=1",
        f"--output={tmp_path}/out",
        SCRIPT,
        WORKDIR=str(tmp_path),
        PATH=f"{program.parent}{os.pathsep}{cluster.env['PATH']}",
    )
    log = tmp_path / "task-1"
    cluster.wait_for(log.exists, "start")
    # What `#SBATCH --signal=B:TERM@120` has SLURM do two minutes before the end.
    cluster.run("scancel", "--batch", "--signal=TERM", f"{job}_1")
    assert cluster.wait(job) == {f"{job}_1": "COMPLETED", f"{job}_2": "COMPLETED"}
    started = f"started -m launch.sweep --join --workdir={tmp_path}"
    assert log.read_text().splitlines() == [started, "saved", started, "ended"]
    assert (tmp_path / "task-2").read_text().splitlines() == [started, "ended"]
