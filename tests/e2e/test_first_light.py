"""One real fault through every stage: hook, sensors, detector, capture, diagnosis, metrics, Slack, resolution."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stallwatch.demo.catalogue import culprits, find
from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import PROGRAMS, job_environment
from stallwatch.outputs.documents import IncidentDocument
from tests.bench.jobs import ForkedJob, Server
from tests.e2e.prometheus import prometheus_server, until
from tests.e2e.webhook import Webhook

SEED, RANKS = 1, 4
FAULT = find("lock")
(CULPRIT,) = culprits(FAULT, SEED, RANKS)
JOB = "first-light"
SECONDS = 60.0

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def start_job(server: Server, daemon: DaemonChild, folder: Path) -> ForkedJob:
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = job_environment(os.environ, daemon.rank_directory, folder / "mark", scratch, JOB)
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    program = PROGRAMS / f"{FAULT.program}.py"
    return server.launch(program, [f"--seed={SEED}", "--backend=gloo"], RANKS, changed, folder / "job.log")


def incident_when(daemon: DaemonChild, condition: Callable[[IncidentDocument], bool]) -> IncidentDocument:
    """The job's incident once the condition holds; fail with what there is when it never does."""
    until = time.monotonic() + SECONDS
    incidents: list[IncidentDocument] = []
    while time.monotonic() < until:
        daemon.check()
        incidents = [i for i in daemon.client.incidents().incidents if i.training_job == JOB]
        for incident in incidents:
            if condition(incident):
                return incident
        time.sleep(0.2)
    pytest.fail(f"not within {SECONDS:.0f} s; incidents: {incidents}; daemon: {daemon.log.read_text()[-2000:]}")


def asked_by_promql(daemon: DaemonChild, folder: Path) -> None:
    """A real Prometheus knows the culprit and its code line, and alerts."""
    address = urlsplit(daemon.client.page_url() or "").netloc
    with prometheus_server(address, folder) as prometheus:
        query = f'stallwatch_culprit{{training_job="{JOB}"}}'
        (culprit,) = until(lambda: prometheus.query(query), "no culprit in Prometheus")
        assert culprit["metric"]["rank"] == str(CULPRIT)
        assert "feature_cache.py:" in culprit["metric"]["code"]
        alerts = until(lambda: prometheus.alerts("StallwatchCollectiveStall"), "no alert fires")
        assert JOB in [alert["labels"]["training_job"] for alert in alerts]


@pytest.mark.timeout(240)
def test_a_lock_held_for_ever_is_named_in_api_metrics_and_slack_and_ended_with_the_job(
    job_server: Server, tmp_path: Path
) -> None:
    with Webhook().running() as slack:
        daemon = DaemonChild(tmp_path, os.environ, {"slack": {"webhook_url": slack.url}})
        try:
            daemon.start()
            job = start_job(job_server, daemon, tmp_path)
            incident = incident_when(daemon, lambda incident: bool(incident.verdicts))
            verdict = incident.verdicts[0]
            assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (CULPRIT,), "lock")
            frame = verdict.culprit_processes[0].frame
            assert frame is not None
            assert frame.source is not None
            assert frame.source.strip() == "with cache_lock:"
            assert verdict.culprit_processes[0].pid == job.pids[CULPRIT]

            told = json.dumps(slack.wait(1, SECONDS))
            for part in ("not_entered", f"ank {CULPRIT}", "feature_cache.py", "with cache_lock:"):
                assert part in told

            metrics = daemon.client.metrics()
            assert [line for line in metrics.splitlines() if 'cause="not_entered"' in line and f'"{JOB}"' in line]
            if shutil.which("prometheus"):
                asked_by_promql(daemon, tmp_path)

            job.stop()
            ended = incident_when(daemon, lambda incident: incident.state == "ended")
            assert ended.incident_id == incident.incident_id
        finally:
            daemon.stop()
