"""From a stalled job to one message in Slack and its end, through Debian's Prometheus and Alertmanager as shipped."""

import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from stallwatch import config
from stallwatch.clock import SystemClock
from stallwatch.demo.catalogue import culprits, find
from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import PROGRAMS, job_environment
from stallwatch.model.reading import Unavailable
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.alertmanager import AlertmanagerOutput, alertmanager
from stallwatch.outputs.build import build
from stallwatch.outputs.delivery import Delivered
from stallwatch.outputs.http import HttpOutput
from tests.bench.jobs import ForkedJob, Server
from tests.builders.clock import FakeClock
from tests.e2e.alertmanager import DEPLOYED, alertmanager_server, needs_alertmanager
from tests.e2e.panels import EXPLAINED, OPTIONS, every_expression_has_data
from tests.e2e.prometheus import Prometheus, needs_prometheus, prometheus_server, until
from tests.e2e.webhook import Webhook
from tests.integration.outputs.serving import served
from tests.unit.outputs.notifier_bench import FakePoster
from tests.unit.outputs.reports import (
    FakeControl,
    diagnosis,
    incident,
    node_report,
    sample,
    verdict,
    view,
    with_snapshot,
)

pytestmark = [needs_prometheus, needs_alertmanager]

SECONDS = 60.0


@pytest.fixture
def slack() -> Iterator[Webhook]:
    with Webhook().running() as made:
        yield made


def words(message: dict[str, Any]) -> str:
    """Title and text of a message as Alertmanager writes it."""
    (attachment,) = message["attachments"]
    return f"{attachment['title']}\n{attachment['text']}"


def test_the_shipped_configuration_is_valid() -> None:
    done = subprocess.run(["amtool", "check-config", "alertmanager.yml"], cwd=DEPLOYED, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=StallwatchCollectiveStall", "training_job=a"], "stallwatch-slack"),
        (["alertname=StallwatchCollectiveStall", "training_job=a", "told_by=slack"], "nobody"),
        (["alertname=StallwatchDaemonAbsent", "instance=n1"], "stallwatch-slack"),
    ],
)
def test_what_the_daemon_tells_by_itself_alertmanager_does_not(labels: list[str], receiver: str) -> None:
    command = ["amtool", "config", "routes", "test", "--config.file=alertmanager.yml", *labels]
    done = subprocess.run(command, cwd=DEPLOYED, capture_output=True, text=True)
    assert done.stdout.split() == [receiver], done.stderr


def test_what_a_job_is_called_calls_nobody_in_slack(tmp_path: Path) -> None:
    evil = "<!channel> & `code` <https://evil.example|click>"
    annotations = {
        "summary": f"{evil}: not_entered",
        "description": f"Rank 2 is at {evil}.",
        "runbook": evil,
        "acknowledged_by": "anna",
    }
    alert = {"status": "firing", "labels": {}, "annotations": annotations, "generatorURL": "http://prometheus"}
    data = {"status": "firing", "commonLabels": {"severity": "critical"}, "alerts": [alert, alert]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    for text in ("title", "text"):
        command = ["amtool", "template", "render", f"--template.glob={DEPLOYED}/stallwatch.tmpl"]
        template = f'{{{{ template "stallwatch.{text}" . }}}}'
        command += [f"--template.data={tmp_path}/data.json", f"--template.text={template}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "&lt;!channel&gt; &amp; 'code' &lt;https://evil.example|click&gt;" in done.stdout
        assert not set(done.stdout.replace("&lt;", "").replace("&gt;", "")) & set("<>"), done.stdout
        assert ("👀 anna is on it" in done.stdout) == (text == "text")
        assert done.stdout.count("`") in (0, 8)  # the two runbooks' own, and code in the two descriptions


def test_jobs_that_stand_at_one_file_system_are_one_message_from_whatever_nodes(slack: Webhook, tmp_path: Path) -> None:
    """They have stood for minutes when people are told, a moment apart, and the clock of one node is an hour behind."""
    now_ns, bodies = SystemClock().wall_ns(), []
    for number, behind_ns in enumerate((0, 3600 * 10**9, 0)):
        poster, clock = FakePoster(), FakeClock(wall_ns=now_ns - behind_ns)
        stands = incident(
            incident_id=f"job-{number}-1",
            job=JobKey(f"job-{number}", "127.0.0.1:29500/8/0"),
            waits_on="nfs4 filer:/vol",
            opened_wall_ns=clock.wall_ns() - 120 * 10**9,
        )
        node = AlertmanagerOutput([poster], clock, "warning", "west", "")
        node.start()
        node.publish(node_report(stands))
        bodies.append(poster.attempts.get(timeout=SECONDS))
        poster.answers.put(Delivered("200"))
        node.close(5)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    with alertmanager_server(slack.url, tmp_path) as address:
        for body in bodies:
            url, kind = f"http://{address}/api/v2/alerts", {"Content-Type": "application/json"}
            direct(urllib.request.Request(url, body.encode(), kind)).close()
        (message,) = slack.wait(1, SECONDS)
    assert words(message).startswith("🔴 3 jobs wait for nfs4 filer:/vol: job-0: rank 2: not_entered")
    assert all(f"job-{number}: rank 2: not_entered" in words(message) for number in range(3))


def test_a_verdict_inhibits_what_follows_from_it(slack: Webhook, tmp_path: Path) -> None:
    stall = {"alertname": "StallwatchCollectiveStall", "training_job": "a", "incident_id": "a-1"}
    alerts = [
        {"labels": {**stall, "severity": "critical"}},
        {"labels": {**stall, "severity": "warning"}},
        {"labels": {"alertname": "StallwatchJobStandsStill", "training_job": "a", "severity": "warning"}},
        {"labels": {"alertname": "StallwatchJobStandsStill", "training_job": "b", "severity": "warning"}},
    ]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    with alertmanager_server(slack.url, tmp_path) as address:
        url = f"http://{address}/api/v2/alerts"
        direct(urllib.request.Request(url, json.dumps(alerts).encode(), {"Content-Type": "application/json"}))
        messages = slack.wait(2, SECONDS)
        known = json.load(direct(url, timeout=5))
    inhibited = {
        (alert["labels"]["alertname"], alert["labels"]["training_job"], alert["labels"]["severity"])
        for alert in known
        if alert["status"]["inhibitedBy"]
    }
    assert inhibited == {
        ("StallwatchCollectiveStall", "a", "warning"),
        ("StallwatchJobStandsStill", "a", "warning"),
    }
    assert len(messages) == 2  # one for each job


@pytest.mark.timeout(180)
def test_what_the_daemon_posts_is_one_message_with_line_steps_and_deadline_and_one_at_the_end(
    slack: Webhook, tmp_path: Path
) -> None:
    told = "Rank 3 waits at /home/anna/locks.py:41 in take_lock (`with self._lock:`)."
    twice = incident(incident_id="llama-7b-2", report=diagnosis(verdict(culprits=(3,), summary=told)))
    with alertmanager_server(slack.url, tmp_path) as address:
        settings, _ = config.load(overrides={("alertmanager", "urls"): f"http://{address}"})
        output = alertmanager(settings, SystemClock())
        assert output is not None
        output.start()
        try:
            for severity in ("warning", "critical"):  # it is still the same alert
                output.publish(node_report(incident(severity=severity), twice))
                (message,) = slack.wait(1, SECONDS)
            text = words(message)
            for part in (
                "llama-7b: rank 2: not_entered, lock at locks.py:41 (and 1 more)",
                "Rank 2 never entered all_reduce #412",
                "safe to kill; torch's own timeout ends the job at 00:10:00 UTC",
                "```/home/anna/locks.py:41 in take_lock: with self._lock:```",
                "1. Look at who holds the lock.",
                "`stallwatch incidents llama-7b-1` on `gpu-node-17` · since 00:00 UTC",
            ):
                assert part in text, text
            assert text.count("with self._lock:") == 2, text  # of the second its sentence has said it
            over_ns = SystemClock().wall_ns()
            ends = (
                msgspec.structs.replace(one, state="resolved", resolution="the job moves", resolved_wall_ns=over_ns)
                for one in (incident(), twice)
            )
            output.publish(node_report(*ends))
            *_, last = slack.wait(2, SECONDS)
            assert "resolved" in last["attachments"][0]["title"]
            assert words(last).count("rank 2: not_entered") == words(last).count("rank 3: not_entered") == 1
        finally:
            output.close(5)
    assert len(slack.received) == 2, [words(message) for message in slack.received]


@pytest.mark.timeout(180)
def test_sixty_stalled_ranks_of_two_incidents_are_one_message_and_one_for_the_end(
    slack: Webhook, tmp_path: Path
) -> None:
    ranks = range(60)
    lost = incident(report=diagnosis(verdict(cause="rank_exited", culprits=tuple(ranks), culprit_processes=())))
    many = with_snapshot(
        node_report(
            incident(report=diagnosis(verdict(waiting="0-1,3-59"))),
            msgspec.structs.replace(lost, incident_id="llama-7b-2"),
            ranks=tuple(view(rank, world_size=60) for rank in ranks),
        ),
        ranks=tuple(sample(rank) for rank in ranks),
        gpus=Unavailable("no GPU", 0),
    )
    over = msgspec.structs.replace(
        many, incidents=tuple(msgspec.structs.replace(i, state="resolved") for i in many.incidents)
    )
    with (
        served(many) as node,
        alertmanager_server(slack.url, tmp_path) as alertmanager,
        prometheus_server(f"127.0.0.1:{node.port}", tmp_path, alertmanager) as prometheus,
    ):
        (message,) = slack.wait(1, SECONDS)
        until(lambda: len(prometheus.query("stallwatch_rank_state")) == 60, "60 ranks are not in Prometheus")
        text = words(message)
        assert message["channel"] == "#training"
        for part in ("llama-7b: not_entered, rank 2", "locks.py:41 take_lock", "ranks 0-1,3-59 wait"):
            assert part in text, text
        assert len(text) < 3000
        node.output.publish(over)
        until(lambda: not prometheus.alerts("StallwatchCollectiveStall"), "the alert outlives its incident")
        # The two rules may be evaluated a second apart, which is the group's interval here (a minute as shipped).
        until(lambda: "resolved" in slack.received[-1]["attachments"][0]["title"], "its end is not told")
        assert (message["attachments"][0]["color"], slack.received[-1]["attachments"][0]["color"]) == ("danger", "good")
        assert len(slack.received) <= 3, [words(one) for one in slack.received]


@pytest.mark.timeout(180)
def test_a_crash_that_was_over_between_two_scrapes_is_told_and_its_end_is_not_green(
    slack: Webhook, tmp_path: Path
) -> None:
    crash = incident(
        report=diagnosis(verdict(cause="rank_exited", culprit_processes=())), state="ended", resolution="the job ended"
    )
    quiet = with_snapshot(node_report(ranks=()), ranks=(), gpus=Unavailable("no GPU", 0))
    over_ns = quiet.snapshot.wall_ns
    seen = msgspec.structs.replace(quiet, incidents=(msgspec.structs.replace(crash, resolved_wall_ns=over_ns),))
    with (
        served(quiet) as node,
        alertmanager_server(slack.url, tmp_path) as alertmanager,
        prometheus_server(f"127.0.0.1:{node.port}", tmp_path, alertmanager) as prometheus,
    ):
        node.output.publish(seen)
        (message,) = slack.wait(1, SECONDS)
        assert "llama-7b: rank_exited, rank 2" in words(message)
        node.output.publish(with_snapshot(seen, wall_ns=over_ns + 301 * 10**9))
        until(lambda: not prometheus.alerts("StallwatchRankLost"), "the alert outlives its five minutes")
        *_, last = slack.wait(2, SECONDS)
        assert "the job is over, it was" in last["attachments"][0]["title"]
        assert [m["attachments"][0]["color"] for m in slack.received] == ["danger", "#808080"]


@pytest.mark.timeout(180)
def test_with_the_daemons_own_slack_and_alertmanager_both_on_an_incident_is_told_once(
    slack: Webhook, tmp_path: Path
) -> None:
    """The same channel for both. That Alertmanager has the alert and keeps silent is asked of Alertmanager itself."""
    keys = {("slack", "webhook_url"): slack.url, ("http", "listen"): "127.0.0.1:0"}
    with tempfile.TemporaryDirectory(prefix="sw-") as run_directory:
        folders = {("daemon", "run_directory"): run_directory, ("daemon", "state_directory"): str(tmp_path / "state")}
        settings, _ = config.load(overrides=keys | folders)
        outputs = build(settings, FakeControl(incidents=(incident(),)), SystemClock())
        for output in outputs:
            output.start()
        try:
            (port,) = [output.port for output in outputs if isinstance(output, HttpOutput)]
            with (
                alertmanager_server(slack.url, tmp_path) as alertmanager,
                prometheus_server(f"127.0.0.1:{port}", tmp_path, alertmanager),
            ):
                for incident_now in (incident(), incident(state="resolved", resolution="over")):
                    report = with_snapshot(node_report(incident_now), gpus=Unavailable("no GPU", 0))
                    for output in outputs:
                        output.publish(report)
                    if report.incidents[0].state == "open":
                        until(lambda: routed_to(alertmanager), "Alertmanager never got the alert")
                        assert routed_to(alertmanager) == {"nobody"}
                messages = slack.wait(3, 15)  # longer than the group's wait, which is a second here
        finally:
            for output in outputs:
                output.close(5)
    assert [message["text"].partition(" llama-7b")[0] for message in messages] == ["🔴", "🟢"]


def routed_to(alertmanager: str) -> set[str]:
    """The receivers of all alerts that Alertmanager has of incidents."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    with direct(f"http://{alertmanager}/api/v2/alerts?filter=incident_id=~%22.%2B%22", timeout=5) as answer:
        return {receiver["name"] for alert in json.load(answer) for receiver in alert["receivers"]}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_fault_is_one_message_with_culprit_and_code_line_and_another_when_it_is_over(
    slack: Webhook, tmp_path: Path, job_server: Server
) -> None:
    with real_servers(slack, tmp_path) as (daemon, prometheus):
        culprit, job = strike("lock", 4, "am-job", daemon, job_server, tmp_path)
        messages = slack.wait(1, SECONDS)
        assert messages, daemon.log.read_text()[-2000:]
        every_expression_has_data(prometheus, EXPLAINED)
        job.stop()
        text = words(messages[0])
        assert f"am-job: not_entered, rank {culprit}" in text
        assert "feature_cache.py:" in text
        # It stays for five minutes after the job: what was over within a scrape's interval is told too.
        ended = 'stallwatch_incident_info{state="ended"}'
        until(lambda: prometheus.query(ended), "the end of the job is not seen")
        until(
            lambda: prometheus.alerts("StallwatchCollectiveStall")[0]["annotations"]["state"] == "ended",
            "the alert does not know that the job is over",
        )
        assert len(slack.received) == 1, [words(message) for message in slack.received]


@contextmanager
def real_servers(slack: Webhook, folder: Path) -> Iterator[tuple[DaemonChild, Prometheus]]:
    """A whole daemon that Prometheus scrapes, whose alerts Alertmanager sends to this Slack."""
    daemon = DaemonChild(folder, os.environ)
    try:
        daemon.start()
        address = urlsplit(daemon.client.page_url() or "").netloc
        with (
            alertmanager_server(slack.url, folder) as alertmanager,
            prometheus_server(address, folder, alertmanager) as prometheus,
        ):
            yield daemon, prometheus
    finally:
        daemon.stop()


def strike(name: str, ranks: int, job: str, daemon: DaemonChild, server: Server, folder: Path) -> tuple[int, ForkedJob]:
    """Start a job that a fault of the demo will strike; return the rank at fault, and the job."""
    fault, seed = find(name), 1
    (culprit,) = culprits(fault, seed, ranks)
    environment = job_environment(os.environ, daemon.rank_directory, folder / "mark", folder, job)
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    program = PROGRAMS / f"{fault.program}.py"
    return culprit, server.launch(program, [*OPTIONS, f"--seed={seed}"], ranks, changed, folder / "job.log")


def has_ended(daemon: DaemonChild, job: str) -> bool:
    """Other tests' jobs may run beside it."""
    return any((one.training_job, one.state) == (job, "ended") for one in daemon.client.incidents().incidents)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_real_crash_that_was_over_between_two_scrapes_is_told(
    slack: Webhook, tmp_path: Path, job_server: Server
) -> None:
    with real_servers(slack, tmp_path) as (daemon, prometheus):
        until(lambda: prometheus.query("stallwatch_ticks_total"), "the daemon is not in Prometheus")
        with prometheus.between_two_scrapes():  # its whole life
            culprit, _ = strike("killed", 2, "am-crash", daemon, job_server, tmp_path)
            until(lambda: has_ended(daemon, "am-crash"), "its incident has no end")
            assert slack.received == []
        messages = slack.wait(1, SECONDS)
        assert messages, daemon.log.read_text()[-2000:]
        assert f"am-crash: rank_exited, rank {culprit}" in words(messages[0])
        asked = "count by (state) (count_over_time(stallwatch_incident_info{training_job='am-crash'}[5m]))"
        assert [one["metric"]["state"] for one in prometheus.query(asked)] == ["ended"]
