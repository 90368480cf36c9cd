#!/bin/bash
#SBATCH --job-name=attn
#SBATCH --array=1-8
#SBATCH --cpus-per-task=4
#SBATCH --time=4:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=attn-%A_%a.log
# Each task trains what is free of the sweep in WORKDIR, a directory that all nodes see:
#   sbatch --export=ALL,WORKDIR=/shared/runs/quick launch/clusters/slurm.sh
# Two minutes before its time is over a task saves, and goes back to the queue.
set -u
: "${WORKDIR:?names the directory of a planned sweep}"

python -m launch.sweep --join --workdir="$WORKDIR" &
sweep=$!
trap 'kill -TERM "$sweep"' TERM
wait "$sweep"
# The signal ends `wait` too, while the sweep still saves.
while kill -0 "$sweep" 2>/dev/null; do wait "$sweep"; done
# Bash keeps the status of a process that has ended.
wait "$sweep"
status=$?
if [ "$status" = 75 ]; then
  # SLURM ends this script then; without the pause it might end by itself, and be done.
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" && sleep 30
fi
exit "$status"
