import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stallwatch.demo.job import end_processes, job_environment, need_gpu
from stallwatch.errors import UsageError

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


def test_nccl_without_a_gpu_says_what_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs an NVIDIA GPU") as refused:
        need_gpu(tmp_path / "nvidiactl")
    assert "gloo" in refused.value.help
    (tmp_path / "nvidiactl").touch()
    need_gpu(tmp_path / "nvidiactl")


def test_ranks_that_share_a_gpu_are_hosts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses two ranks on one GPU of a host."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    training = importlib.import_module("stallwatch.demo.training")
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, value in {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4", "NCCL_HOSTID": ""}.items():
        monkeypatch.setenv(name, value)
    assert training.choose_device("nccl") == ("nccl", torch.device("cuda", 0))
    assert os.environ["NCCL_HOSTID"] == "rank-3"
    assert training.choose_device(None) == ("gloo", torch.device("cpu"))
