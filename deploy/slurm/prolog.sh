#!/bin/sh
# Slurm prolog: takes a node out of service when the self-test proves that it is bad, and for no other reason.
#
#   slurm.conf: Prolog=/etc/slurm/prolog.d/*   (install -m 0755 deploy/slurm/prolog.sh /etc/slurm/prolog.d/50-stallwatch)
#
# For nodes that a job has to itself: the test uses all GPUs of the job. A prolog that ends with another code than 0
# drains the node and puts the job back into the queue, so only exit code 10 of the self-test ("the node is not all
# right") becomes one. Wrong usage, a crash of ours, a test that takes too long or is not installed let the job run.
#
#   STALLWATCH                   the command (/opt/stallwatch/bin/stallwatch)
#   STALLWATCH_TRAINING_PYTHON   an interpreter with torch; without it the one on PATH
#   STALLWATCH_PROLOG_SECONDS    most time for the test (120); Slurm's PrologEpilogTimeout must be longer
#   STALLWATCH_PROLOG_REPORT     where the JSON report is left (/var/log/stallwatch-prolog.json)

case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
tool=${STALLWATCH:-/opt/stallwatch/bin/stallwatch}
report=${STALLWATCH_PROLOG_REPORT:-/var/log/stallwatch-prolog.json}
seconds=${STALLWATCH_PROLOG_SECONDS:-120}
[ -x "$tool" ] || exit 0
if [ -n "${SLURM_JOB_GPUS:-}" ]; then
    CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
    export CUDA_VISIBLE_DEVICES
fi

set -- selftest --json --most-bytes 16M --step-seconds 20
[ -z "${STALLWATCH_TRAINING_PYTHON:-}" ] || set -- "$@" --python "$STALLWATCH_TRAINING_PYTHON"
said=$(timeout -k 10 "$seconds" "$tool" "$@" 2>/dev/null)
code=$?
[ -z "$said" ] || printf '%s\n' "$said" >"$report" 2>/dev/null || true
if [ "$code" -eq 10 ]; then
    echo "stallwatch: the self-test of $(uname -n) failed; its report is $report" >&2
    exit 1
fi
exit 0
