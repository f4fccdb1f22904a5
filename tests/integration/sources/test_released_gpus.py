"""A real daemon whose GPUs somebody wants for himself."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.node import gpu_release

pytestmark = pytest.mark.slow
ONE_GPU = Path(__file__).parents[2] / "programs" / "one_busy_gpu"
SECONDS = 60.0


def until(daemon: DaemonChild, condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        daemon.check()
        assert time.monotonic() < end, f"{what}: not within {SECONDS:.0f} s; {daemon.log.read_text()[-2000:]}"
        time.sleep(0.1)


def readers_of_gpus(daemon: DaemonChild) -> list[psutil.Process]:
    below = psutil.Process(daemon.pid).children(recursive=True)
    return [one for one in below if "stallwatch.sensors.child gpus" in " ".join(one.cmdline())]


def said(daemon: DaemonChild) -> tuple[bool, bool, str]:
    (gpus,) = [one for one in daemon.client.ranks().sensors if one.sensor == "gpus"]
    return gpus.up, gpus.required, gpus.reason


def test_the_process_that_holds_gpus_ends_and_comes_back_when_the_release_does(tmp_path: Path) -> None:
    daemon = DaemonChild(tmp_path, {**os.environ, "PYTHONPATH": str(ONE_GPU)})
    daemon.start()
    file = tmp_path / "run" / gpu_release.FILE
    try:
        until(daemon, lambda: said(daemon)[0], "the GPU is read")
        (reader,) = readers_of_gpus(daemon)
        gpu_release.release(file, 900, "12:15", "anna")
        until(daemon, lambda: "left alone until 12:15 for anna" in said(daemon)[2], "it is said")
        assert said(daemon)[:2] == (False, False), "and alarms nobody"
        psutil.wait_procs([reader], timeout=SECONDS)
        assert not reader.is_running()
        gpu_release.release(file, 0, "", "")
        until(daemon, lambda: said(daemon)[0], "the GPU is read again")
    finally:
        daemon.stop()
