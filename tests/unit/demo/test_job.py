import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from stallwatch.demo.job import end_processes, job_environment

FAMILY = """
import subprocess
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_stopped_processes_and_children_in_sessions_of_their_own_are_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(child.pid, signal.SIGSTOP)
        end_processes({psutil.Process(parent.pid)})
        parent.wait(5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_settings_of_another_stallwatch_do_not_reach_the_job() -> None:
    surroundings = {"STALLWATCH_DISABLE": "1", "STALLWATCH_DIR": "/theirs", "HOME": "/home/me"}
    environment = job_environment(surroundings, Path("/ours"), Path("/mark"), Path("/scratch"), "demo-1")
    assert "STALLWATCH_DISABLE" not in environment
    assert environment["STALLWATCH_DIR"] == "/ours"
    assert environment["HOME"] == "/home/me"
