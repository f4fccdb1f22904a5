"""Slack and webhook through the real child process against a local server."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch import config
from stallwatch.clock import SystemClock
from stallwatch.errors import UsageError
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.build import build, notify_test
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.slack import slack, slack_reactions
from stallwatch.outputs.webhook import webhook
from tests.integration.outputs.slack_server import Reply, SlackServer, slack_server
from tests.unit.outputs.reports import FakeControl, diagnosis, incident, node_report, verdict

WAIT = 40.0

Start = Callable[..., Notifier]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's proxy has no business between a test and its own server."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[SlackServer]:
    with slack_server() as made:
        yield made


@pytest.fixture
def start(server: SlackServer, tmp_path: Path) -> Iterator[Start]:
    started: list[Notifier] = []
    secret = tmp_path / "url"

    def make(attempt_seconds: float = 15.0) -> Notifier:
        secret.write_text(server.url)
        settings, _ = config.load(
            overrides={
                ("daemon", "state_directory"): str(tmp_path / "state"),
                ("slack", "webhook_url_file"): str(secret),
                ("slack", "attempt_seconds"): attempt_seconds,
            }
        )
        notifier = slack(settings, SystemClock())
        assert notifier is not None
        notifier.start()
        started.append(notifier)
        return notifier

    yield make
    for notifier in started:
        notifier.close(5)


def wait_until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if holds():
            return
        waiting.wait(0.02)
    raise AssertionError("it did not happen")


def settle(notifier: Notifier, **counts: int) -> None:
    """Wait until the worker has counted so many."""
    waiting = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if counts.items() <= notifier.deliveries().items():
            return
        waiting.wait(0.02)
    raise AssertionError((notifier.deliveries(), notifier.problem()))


def test_slack_gets_told_and_resolved_with_cause_rank_and_code_line(server: SlackServer, start: Start) -> None:
    notifier = start()
    notifier.publish(node_report(incident()))
    told = server.got.get(timeout=WAIT)
    assert told["text"].startswith("🔴 llama-7b: rank 2: not_entered")
    assert "locks.py:41" in str(told["blocks"])
    notifier.publish(node_report(incident(state="resolved", resolution="the job ended")))
    assert "The job ended." in server.got.get(timeout=WAIT)["text"]
    settle(notifier, delivered=2)


def test_it_survives_500_and_429_and_delivers_once(server: SlackServer, start: Start) -> None:
    server.replies.put(Reply(500))
    server.replies.put(Reply(429, (("Retry-After", "1"),)))
    notifier = start()
    notifier.publish(node_report(incident()))
    settle(notifier, retried=2, delivered=1)
    assert server.got.qsize() == 3
    assert notifier.problem() is None


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(drip=True)])
def test_a_server_that_never_answers_is_asked_again(server: SlackServer, start: Start, reply: Reply) -> None:
    server.replies.put(reply)
    notifier = start(attempt_seconds=5)
    notifier.publish(node_report(incident()))
    settle(notifier, retried=1)
    assert notifier.problem() == "not delivered yet: no answer within 5 s"
    settle(notifier, repeated=1)  # the first may have arrived


def test_a_bot_has_one_thread_for_each_incident_and_brings_its_first_message_up_to_date(
    server: SlackServer, tmp_path: Path
) -> None:
    settings, _ = config.load(
        overrides={
            ("daemon", "state_directory"): str(tmp_path),
            ("slack", "bot_token"): "xoxb-secret",
            ("slack", "channel"): "#training",
            ("slack", "api_url"): server.api_url,
        }
    )
    notifier = slack(settings, SystemClock())
    assert notifier is not None
    notifier.start()
    try:
        server.replies.put(Reply(429, (("Retry-After", "1"),)))
        notifier.publish(node_report(incident(severity="warning")))
        settle(notifier, retried=1, delivered=1)
        notifier.publish(node_report(incident()))
        settle(notifier, delivered=2)
        other = diagnosis(verdict(culprits=(3,), summary="Rank 3 never entered it."))
        notifier.publish(node_report(incident(report=other)))
        settle(notifier, delivered=3)
        notifier.publish(node_report(incident(report=other, state="resolved", resolution="the job ended")))
        settle(notifier, delivered=4)
    finally:
        notifier.close(5)
    calls = [(call["method"], call.get("thread_ts"), call.get("ts")) for call in server.calls()]
    first = server.first_ts
    assert calls == [
        ("chat.postMessage", None, None),  # refused with 429
        ("chat.postMessage", None, None),
        *[("chat.postMessage", first, None), ("chat.update", None, first)] * 3,
    ]
    told = [call["text"] for call in server.calls() if call["method"] == "chat.postMessage"]
    assert [text.partition(":")[0] for text in told[1:]] == [
        "🟠 llama-7b",
        "*🔴 llama-7b",
        "*🔴 llama-7b",
        "*🟢 llama-7b",
    ]
    assert ["now rank 3" in text for text in told] == [False, False, False, True, False]
    assert server.calls()[-1]["text"].startswith("🟢 llama-7b: resolved")
    assert {call["channel"] for call in server.calls()[2:]} == {"C1"}


class LaterClock(SystemClock):
    """The system's, some time ahead."""

    later_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.later_ns


def test_a_bot_tells_the_whole_of_who_was_named_in_anothers_message(server: SlackServer, tmp_path: Path) -> None:
    keys = {("slack", "bot_token"): "xoxb-secret", ("slack", "channel"): "C1", ("slack", "api_url"): server.api_url}
    settings, _ = config.load(overrides={("daemon", "state_directory"): str(tmp_path), **keys})
    clock = LaterClock()
    notifier = slack(settings, clock)
    assert notifier is not None
    notifier.start()
    there = {"waits_on": "nfs4 filer:/vol", "report": diagnosis(verdict(waits_on="nfs4 filer:/vol"))}
    first = incident(severity="warning", **there)
    other = incident(incident_id="bert-1", job=JobKey("bert", "e"), severity="warning", **there)
    try:
        notifier.publish(node_report(first, other))
        settle(notifier, delivered=1)
        critical = node_report(first, msgspec.structs.replace(other, severity="critical"))
        notifier.publish(critical)
        clock.later_ns = 20_000_000_000  # the one that named it might have become critical meanwhile
        notifier.publish(critical)
        settle(notifier, delivered=2)
    finally:
        notifier.close(5)
    escalated = server.calls()[1]
    assert (escalated.get("thread_ts"), escalated["channel"]) == (None, "C1")
    assert escalated["blocks"][0]["type"] == "header"  # as the first of a thread


def test_a_bot_that_is_not_in_the_channel_is_a_problem_that_waits(server: SlackServer, tmp_path: Path) -> None:
    keys = {("slack", "bot_token"): "xoxb-secret", ("slack", "channel"): "C1", ("slack", "api_url"): server.api_url}
    settings, _ = config.load(overrides={("daemon", "state_directory"): str(tmp_path), **keys})
    notifier = slack(settings, SystemClock())
    assert notifier is not None
    server.refusals.put("not_in_channel")
    notifier.start()
    try:
        notifier.publish(node_report(incident()))
        settle(notifier, retried=1)
        assert notifier.problem() == "not delivered yet: 503 not_in_channel"
        settle(notifier, delivered=1)
    finally:
        notifier.close(5)


def test_a_bot_without_a_channel_and_two_ways_at_once_are_refused() -> None:
    bot = {("slack", "bot_token"): "xoxb-secret"}
    for keys in (bot, bot | {("slack", "webhook_url"): "https://hooks.slack.com/x", ("slack", "channel"): "C1"}):
        settings, _ = config.load(overrides=keys)
        with pytest.raises(UsageError) as refusal:
            slack(settings, SystemClock())
        assert "xoxb" not in f"{refusal.value}{refusal.value.help}"


def test_a_daemon_that_is_killed_amid_an_attempt_delivers_after_its_restart_and_says_it_may_be_a_repetition(
    server: SlackServer, tmp_path: Path
) -> None:
    secret = tmp_path / "url"
    secret.write_text(server.url)
    server.replies.put(Reply(hang=True))
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(secret)]) as daemon:
        server.got.get(timeout=WAIT)  # it is under way
        daemon.kill()
    settings, _ = config.load(
        overrides={("daemon", "state_directory"): str(tmp_path), ("slack", "webhook_url_file"): str(secret)}
    )
    notifier = slack(settings, SystemClock())
    assert notifier is not None
    notifier.start()
    try:
        notifier.publish(node_report(incident(), incident(incident_id="llama-7b-2")))
        settle(notifier, repeated=1, delivered=1)
    finally:
        notifier.close(5)
    assert server.got.qsize() == 2


KILLED = """
import sys, threading
from pathlib import Path
from stallwatch import config
from stallwatch.clock import SystemClock
from stallwatch.outputs.slack import slack
from tests.unit.outputs.reports import incident, node_report
keys = {("daemon", "state_directory"): sys.argv[1], ("slack", "webhook_url_file"): sys.argv[2]}
notifier = slack(config.load(overrides=keys)[0], SystemClock())
notifier.start()
notifier.publish(node_report(incident()))
threading.Event().wait(60)
"""


def test_a_revoked_webhook_is_named_without_its_address(server: SlackServer, start: Start) -> None:
    server.replies.put(Reply(404))
    notifier = start()
    notifier.publish(node_report(incident()))
    settle(notifier, refused=1)
    assert (notifier.problem() or "").startswith("refused: 404")
    assert "secret" not in (notifier.problem() or "")


def test_nobody_listening_is_a_reason_without_the_address(server: SlackServer, start: Start) -> None:
    server.url = "http://127.0.0.1:1/services/secret"
    notifier = start()
    notifier.publish(node_report(incident()))
    settle(notifier, retried=1)
    assert "Connection refused" in (notifier.problem() or "")
    assert "secret" not in (notifier.problem() or "")
    assert notifier.queued() == 1


def test_a_webhook_gets_the_incident_as_the_api_shows_it(server: SlackServer, tmp_path: Path) -> None:
    settings, _ = config.load(overrides={("daemon", "state_directory"): str(tmp_path), ("webhook", "url"): server.url})
    notifier = webhook(settings, SystemClock())
    assert notifier is not None
    notifier.start()
    notifier.publish(node_report(incident()))
    got = server.got.get(timeout=WAIT)
    notifier.close(5)
    assert got["data"]["step"] == "told"
    assert got["data"]["incident"]["verdicts"][0]["culprits"] == [2]


def test_notify_test_asks_every_output_that_can_tell(server: SlackServer, tmp_path: Path) -> None:
    keys = {("daemon", "state_directory"): str(tmp_path), ("daemon", "run_directory"): str(tmp_path)}
    nobody, _ = config.load(overrides=keys)
    assert "nothing is configured" in notify_test(build(nobody, FakeControl(), SystemClock()))[0]
    server.replies.put(Reply(200))
    server.replies.put(Reply(500))
    both, _ = config.load(overrides=keys | {("slack", "webhook_url"): server.url, ("webhook", "url"): server.url})
    outputs = build(both, FakeControl(), SystemClock())
    try:
        assert notify_test(outputs) == ("slack: delivered (200 ok)", "webhook: not delivered: 500 ok")
    finally:
        for output in outputs:
            output.close(1)


def test_a_reaction_to_the_bots_message_acknowledges_and_the_thread_says_by_whom(
    server: SlackServer, tmp_path: Path
) -> None:
    keys = {("slack", "bot_token"): "xoxb-secret", ("slack", "channel"): "C1", ("slack", "api_url"): server.api_url}
    state = {("daemon", "state_directory"): str(tmp_path), ("daemon", "run_directory"): str(tmp_path)}
    settings, _ = config.load(overrides=state | keys)
    control = FakeControl(incidents=(incident(),))
    notifier = slack(settings, SystemClock())
    assert notifier is not None
    reading = slack_reactions(settings, SystemClock(), control, notifier)
    assert reading is not None
    server.reactions = [{"name": "eyes", "users": ["U07ANNA"], "count": 1}]
    notifier.start()
    reading.start()
    try:
        notifier.publish(node_report(incident()))
        settle(notifier, delivered=1)
        assert "React with" in str(server.calls()[0]["blocks"])
        reading.publish(node_report(incident()))
        asked, bearer = server.reactions_asked.get(timeout=WAIT)
        assert "channel=C1" in asked
        assert f"timestamp={server.first_ts}" in asked
        assert bearer == "Bearer xoxb-secret"
        wait_until(lambda: ("acknowledge", "llama-7b-1", "slack:U07ANNA") in control.asked)
        notifier.publish(node_report(incident(acknowledged_by="slack:U07ANNA")))
        settle(notifier, delivered=2)
    finally:
        reading.close(5)
        notifier.close(5)
    (answer, root) = server.calls()[1:]
    assert (answer["thread_ts"], "<@U07ANNA> is on it" in answer["text"]) == (server.first_ts, True)
    assert "<@U07ANNA> is on it" in str(root["blocks"])
    assert "React with" not in str(root["blocks"])
    assert slack_reactions(config.load(overrides=state)[0], SystemClock(), control, notifier) is None
