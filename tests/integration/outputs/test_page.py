"""The status page in a real browser: what it shows, and that what a job writes stays text."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stallwatch.model.verdict import CulpritProcess, Frame, StackNode
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import FakeControl, diagnosis, incident, node_report, verdict, view

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
    *("--virtual-time-budget=4000", "--no-proxy-server"),
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


def browse(node: Served, profile: Path, path: str = "") -> tuple[str, list[str]]:
    """Open the page as a person does; return its final markup and what the console said."""
    url = node.client.page_url()
    assert BROWSER is not None
    assert url is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", url + path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def test_it_shows_verdict_culprit_code_line_stacks_and_ranks_without_complaint(tmp_path: Path) -> None:
    with served(node_report(incident()), FakeControl(incidents=(incident(),))) as node:
        shown, console = browse(node, tmp_path)
    for words in (
        "Rank 2 never entered all_reduce #412",
        "/home/anna/locks.py:41 in take_lock",
        "with self._lock:",
        "Waiting: ranks 0-1,3 in all_reduce #412 of default_pg",
        "Look at who holds the lock.",
        "Evidence complete, safe to kill",
        "llama-7b: 4 of 4 ranks",
        "live ·",
    ):
        assert words in shown, words
    assert re.search(r'<li class="outlier"><span class="frame"><span class="ranks">2</span>take_lock', shown)
    assert console == []


def test_what_a_job_writes_stays_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    culprit = CulpritProcess(2, evil, 1, evil, "lock", Frame(evil, 1, evil, evil))
    hostile = incident(
        report=diagnosis(
            verdict(summary=evil, operation=evil, next_steps=(evil,), culprit_processes=(culprit,)),
            stacks=StackNode(evil, evil, 1, "2", 1),
        ),
        resolution=evil,
        bundle=evil,
    )
    report = node_report(hostile, ranks=(view(2, phase=evil, limit_reason=evil, gpu_uuid=evil),))
    with served(report, FakeControl(incidents=(hostile,))) as node:
        shown, console = browse(node, tmp_path)
    body = shown.partition("<main>")[2]
    assert "&lt;img src=x onerror" in body
    assert "<img" not in body
    assert "<title>owned" not in shown
    assert console == []


def test_a_quiet_node_says_so_and_a_linked_past_incident_opens(tmp_path: Path) -> None:
    past = incident(state="resolved", resolution="the job ended")
    with served(node_report(), FakeControl(past=(past,))) as node:
        shown, console = browse(node, tmp_path, "#llama-7b-1")
    assert "No open incident." in shown
    assert "Resolved: the job ended" in shown
    assert console == []


def test_a_wrong_token_shows_nothing(tmp_path: Path) -> None:
    with served(node_report(incident()), FakeControl(incidents=(incident(),))) as node:
        shown, _ = browse(node, tmp_path, "wrong")
    assert "This page needs its token" in shown
    assert "llama-7b" not in shown
