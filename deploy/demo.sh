#!/usr/bin/env bash
# Sets everything up on a fresh machine and shows the main job: a real training job hangs, stallwatch names the rank.
# Arguments go to `stallwatch demo`: bash deploy/demo.sh --fault lock --ranks 4
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
need_torch
need_stallwatch daemon
wait # for what need_torch left running: the demo needs both cores
exec "$venv/bin/stallwatch" demo "$@"
