#!/bin/bash
# Trains one part of a sweep on a machine that shares no directory with the others:
#   PART=3 PARTS=20 KEEP=remote:runs/quick bash launch/clusters/part.sh \
#     --config=experiments/configs/quick.py --sweep=table,seed
# KEEP is any place that rclone copies to. The part's workdir is fetched from there, and kept
# there when all is trained or SIGTERM has come. Ends with the status of launch.sweep: 75
# where the same call goes on. In a Kubernetes Job the part is that of the pod's index.
set -u
: "${PARTS:?is how many parts there are}" "${KEEP:?is where workdirs are kept}"
part=${PART:-$((JOB_COMPLETION_INDEX + 1))}
workdir=${WORKDIR:-runs}/part-$part

rclone copy "$KEEP/part-$part" "$workdir"
fetched=$?
# 3 is rclone's status for a directory that is not there: this part has not begun. After any
# other failure nothing is trained, or it would replace what is kept.
if [ "$fetched" != 0 ] && [ "$fetched" != 3 ]; then exit 75; fi

python -m launch.sweep "$@" --part="$part/$PARTS" --workdir="$workdir" &
sweep=$!
trap 'kill -TERM "$sweep"' TERM
wait "$sweep"
# The signal ends `wait` too, while the sweep still saves.
while kill -0 "$sweep" 2>/dev/null; do wait "$sweep"; done
# Bash keeps the status of a process that has ended.
wait "$sweep"
status=$?
# Not `copy`, which would leave checkpoints there that the sweep has removed. A part without
# trials has no workdir.
if [ -d "$workdir" ]; then rclone sync "$workdir" "$KEEP/part-$part" || exit 75; fi
exit "$status"
