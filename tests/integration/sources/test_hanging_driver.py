"""A real daemon on a node whose NVML never answers."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.demo.daemon_child import DaemonChild

pytestmark = pytest.mark.slow
HANGING = Path(__file__).parents[2] / "programs" / "hanging_nvml"
SECONDS = 60.0


def value(daemon: DaemonChild, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", daemon.client.metrics(), re.MULTILINE)
    return float(found[1]) if found else None


def until(daemon: DaemonChild, condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        daemon.check()
        assert time.monotonic() < end, f"{what}: not within {SECONDS:.0f} s; {daemon.log.read_text()[-2000:]}"
        time.sleep(0.2)


def test_nvml_that_never_answers_costs_its_child_and_is_said_everywhere(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    environment = {**os.environ, "PYTHONPATH": str(HANGING), "NVML_STARTS": str(starts)}
    daemon = DaemonChild(tmp_path, environment)
    daemon.start()
    try:
        until(daemon, lambda: value(daemon, 'stallwatch_sensor_up{required="true",sensor="gpus"}') == 0, "it is said")
        status, body = daemon.client._exchange("GET", "/readyz", None, 10)
        problems = {problem["name"]: problem["reason"] for problem in json.loads(body)["problems"]}
        assert status == 503
        assert re.search(r"NVML has not answered for \d+ s", problems["gpus"])
        assert "NVML" in problems["gpu_events"]
        assert "NVML has not answered" in daemon.log.read_text()

        ticks, began = value(daemon, "stallwatch_ticks_total"), time.monotonic()
        assert ticks is not None
        until(daemon, lambda: (value(daemon, "stallwatch_ticks_total") or 0) >= ticks + 5, "five more ticks")
        assert (time.monotonic() - began) / 5 < 2 * 1.0, "it ticks about once a second"
        pids = starts.read_text().split()
        assert len(pids) == len(set(pids)) == 1, "one child, and no second try"
    finally:
        began = time.monotonic()
        daemon.stop()
    assert time.monotonic() - began < 8, "SIGTERM ends it without the driver"
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
