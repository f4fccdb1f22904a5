#!/usr/bin/env bash
# Sets everything up on a fresh machine and shows the main job: a real training job hangs, stallwatch names the rank.
# Arguments go to `stallwatch demo`, whose own --help tells them all:
#   bash deploy/demo.sh --list               its faults
#   bash deploy/demo.sh --fault lock --ranks 4
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
need_torch
need_stallwatch daemon
wait # for what need_torch left running: the demo needs both cores
exec "$venv/bin/stallwatch" demo "$@"
