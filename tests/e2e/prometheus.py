"""Debian's Prometheus with the shipped configuration, only faster and with a test's target."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus"
DEADLINE_SECONDS = 60.0

needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")


class Prometheus:
    def __init__(self, port: int, pid: int) -> None:
        self._pid = pid
        self._base = f"http://127.0.0.1:{port}/api/v1"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str) -> Any:
        with self._open(f"{self._base}/{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = self.get(f"query?query={urllib.parse.quote(expression)}")["result"]
        assert isinstance(found, list)
        return found

    def alerts(self, name: str) -> list[dict[str, Any]]:
        return [alert for alert in self.get("alerts")["alerts"] if alert["labels"]["alertname"] == name]

    @contextlib.contextmanager
    def between_two_scrapes(self) -> Iterator[None]:
        """It scrapes nothing until the end of the block."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)


def until(look: Callable[[], Any], what: str) -> Any:
    """Ask again and again until the answer is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except OSError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(0.1)
    raise AssertionError(f"{what}: {last}")


@contextlib.contextmanager
def prometheus_server(target: str, folder: Path, alertmanager: str = "127.0.0.1:1") -> Iterator[Prometheus]:
    """Scrape `target` (host:port) every second, send alerts to `alertmanager`, and end with the block."""
    shipped = (DEPLOYED / "prometheus.yml").read_text()
    config = shipped.replace("127.0.0.1:9477", target).replace("interval: 5s", "interval: 1s")
    config = config.replace("127.0.0.1:9093", alertmanager)
    assert config.count(target) == config.count(alertmanager) == 1
    assert config.count("interval: 1s") == 2
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(DEPLOYED / "stallwatch.rules.yml", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = (folder / "prometheus.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
