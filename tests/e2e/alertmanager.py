"""Debian's Alertmanager with the shipped configuration, only faster and with a test's server in the place of Slack."""

import contextlib
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.selftest.launching import free_port
from tests.e2e.prometheus import until

DEPLOYED = Path(__file__).parents[2] / "deploy" / "alertmanager"
PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

needs_alertmanager = pytest.mark.skipif(PROGRAM is None, reason="prometheus-alertmanager is not installed")


_WAITS = (
    ("group_wait: 30s", "group_wait: 1s", 1),
    ("group_wait: 5s", "group_wait: 1s", 1),
    ("group_interval: 5m", "group_interval: 1s", 1),
    ("group_wait: 15s", "group_wait: 1s", 1),
    ("group_interval: 1m", "group_interval: 1s", 2),
)


def shipped_configuration(slack_url: str, folder: Path, *, hurried: bool = True) -> str:
    """The shipped file with the webhook's URL in a file of the test; `hurried`: and a second for each of its waits."""
    text = (DEPLOYED / "alertmanager.yml").read_text()
    (folder / "slack-url").write_text(slack_url)
    for old, new, times in (
        *(_WAITS if hurried else ()),
        ("/etc/prometheus/stallwatch-slack-url", str(folder / "slack-url"), 1),
    ):
        assert text.count(old) == times, old
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def alertmanager_server(
    slack_url: str, folder: Path, host: str = "127.0.0.1", *, hurried: bool = True
) -> Iterator[str]:
    """Run it until the end of the block; the value is its host:port."""
    assert PROGRAM is not None
    config = folder / "alertmanager.yml"
    config.write_text(shipped_configuration(slack_url, folder, hurried=hurried))
    shutil.copy(DEPLOYED / "stallwatch.tmpl", folder)
    address = f"{host}:{free_port()}"
    command = [
        PROGRAM,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    log = (folder / "alertmanager.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
            until(lambda: direct(f"http://{address}/-/ready", timeout=5).status == 200, "Alertmanager is not ready")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
