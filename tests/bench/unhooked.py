"""Runs a program of the demo without the hook: `unhooked.py PROGRAM [ARGUMENT …]`, started as a rank. Its fault strikes
later: a job without a hook must be seen to work for a while before anything is told of it."""

import runpy
import sys

import stallwatch
import stallwatch.hook.beat

_HEALTHY_STEPS = 400

stallwatch.attach = lambda *arguments, **options: stallwatch.hook.beat.OFF
sys.argv = [*sys.argv[1:], f"--fault-step={_HEALTHY_STEPS}"]
runpy.run_path(sys.argv[0], run_name="__main__")
