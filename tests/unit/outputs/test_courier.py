import queue
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from stallwatch.errors import UsageError
from stallwatch.model.incident import Incident
from stallwatch.outputs import spool as spools
from stallwatch.outputs.courier import Courier
from stallwatch.outputs.delivery import Delivered, Later, Outcome, Refused
from stallwatch.outputs.telling import Step
from tests.unit.outputs.reports import FakeClock, incident, node_report

WAIT = 10.0  # a test that needs this long has failed


class FakePoster:
    """Answers what the test hands it; an attempt without an answer stays under way, as with a server that hangs."""

    def __init__(self) -> None:
        self.attempts: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[Outcome] = queue.Queue()
        self.cancelled = 0

    def post(self, body: bytes, seconds: float) -> Outcome:
        self.attempts.put(body.decode())
        return self.answers.get(timeout=WAIT)

    def cancel(self) -> None:
        self.cancelled += 1
        self.answers.put(Later("cancelled"))


def compose(told: Incident, step: Step) -> Mapping[str, object]:
    return {"id": told.incident_id, "step": step}


class Bench:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.clock = FakeClock(monotonic_ns=1_000_000_000)
        self.poster = FakePoster()
        self.courier = self.start()

    def start(self) -> Courier:
        courier = Courier("slack", compose, self.poster, self.clock, self.state, "warning", {"test": True})
        courier.start()
        return courier

    def restart(self) -> None:
        self.courier.close(WAIT)
        self.poster = FakePoster()
        self.courier = self.start()

    def publish(self, *incidents: Incident) -> None:
        self.courier.publish(node_report(*incidents))

    def attempt(self) -> str:
        """The step of the next attempt."""
        return str(msgspec.json.decode(self.poster.attempts.get(timeout=WAIT))["step"])

    def answer(self, outcome: Outcome) -> None:
        self.poster.answers.put(outcome)

    def settled(self, **counts: int) -> None:
        """Wait until the worker has counted so many."""
        with self.courier._changed:
            pass
        for _ in range(1000):
            if counts.items() <= self.courier.deliveries().items():
                return
            with self.courier._changed:
                self.courier._changed.wait(0.01)
        raise AssertionError(self.courier.deliveries())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.courier.close(WAIT)


def test_it_tells_an_incident_once_however_often_it_is_published(bench: Bench) -> None:
    bench.answer(Delivered("ok"))
    for _ in range(5):
        bench.publish(incident())
    assert bench.attempt() == "told"
    bench.settled(delivered=1)
    assert bench.courier.queued() == 0
    assert bench.courier.problem() is None
    assert bench.poster.attempts.empty()


def test_publishing_does_not_wait_for_a_server_that_hangs(bench: Bench) -> None:
    bench.publish(incident())
    assert bench.attempt() == "told"  # under way, and nobody answers
    assert [one.step for one in spools.load(bench.state / "slack.json").queue] == ["told"]  # a crash now loses nothing
    bench.publish(incident(state="resolved"))
    assert bench.courier.queued() == 2
    bench.answer(Delivered("ok"))
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "resolved"


def test_a_restart_does_not_speak_twice(bench: Bench) -> None:
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    bench.restart()
    bench.publish(incident())
    bench.answer(Delivered("ok"))
    bench.publish(incident(state="resolved"))
    assert bench.attempt() == "resolved"


def test_what_was_not_delivered_goes_out_after_a_restart(bench: Bench) -> None:
    bench.answer(Later("500"))
    bench.publish(incident())
    bench.settled(retried=1)
    assert bench.courier.problem() == "not delivered yet: 500"
    bench.restart()
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "told"
    bench.settled(delivered=1)


def test_it_waits_as_long_as_the_server_asks(bench: Bench) -> None:
    bench.answer(Later("429", 30.0))
    bench.publish(incident())
    assert bench.attempt() == "told"
    bench.settled(retried=1)
    bench.clock.advance(29)
    bench.publish(incident())
    with pytest.raises(queue.Empty):
        bench.poster.attempts.get(timeout=0.05)
    bench.clock.advance(2)
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    assert bench.attempt() == "told"
    bench.settled(delivered=1)
    assert bench.courier.problem() is None


def test_without_such_a_wish_it_waits_longer_each_time(bench: Bench) -> None:
    waits = []
    for attempt in range(1, 5):
        bench.answer(Later("502"))
        bench.publish(incident())
        assert bench.attempt() == "told"
        bench.settled(retried=attempt)
        waits.append((bench.courier._not_before_ns - bench.clock.monotonic_ns()) / 1e9)
        bench.clock.advance(waits[-1])
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    assert waits == [1, 2, 4, 8]


def test_a_refused_message_makes_room_for_the_next(bench: Bench) -> None:
    bench.answer(Refused("404 no_service"))
    bench.publish(incident())
    bench.settled(refused=1)
    assert bench.courier.problem() == "refused: 404 no_service"
    bench.answer(Delivered("ok"))
    bench.publish(incident(), incident(incident_id="llama-7b-2"))
    bench.settled(delivered=1)
    assert bench.courier.problem() is None


def test_yesterdays_alert_is_not_sent(bench: Bench) -> None:
    bench.answer(Later("500"))
    bench.publish(incident())
    bench.settled(retried=1)
    bench.clock.advance(25 * 3600)
    bench.publish(incident())
    bench.settled(dropped=1)
    assert bench.courier.queued() == 0


def test_closing_ends_an_attempt_that_hangs_and_keeps_the_message(bench: Bench) -> None:
    bench.publish(incident())
    assert bench.attempt() == "told"
    bench.courier.close(1.0)
    assert bench.poster.cancelled
    bench.poster = FakePoster()
    bench.courier = bench.start()
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "told"


def test_a_full_disk_is_a_problem_that_is_told_while_it_goes_on_delivering(bench: Bench) -> None:
    bench.courier._path = Path("/proc/nowhere/slack.json")
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    assert "after a restart messages may be repeated" in (bench.courier.problem() or "")


def test_a_state_directory_that_cannot_be_is_refused_with_the_key_to_change() -> None:
    courier = Courier("slack", compose, FakePoster(), FakeClock(), Path("/proc/nowhere"), "warning", {})
    with pytest.raises(UsageError) as refusal:
        courier.start()
    assert "daemon.state_directory" in refusal.value.help


def test_a_test_message_says_what_happened(bench: Bench) -> None:
    bench.answer(Delivered("200 ok"))
    assert bench.courier.notify_test(5) == "delivered (200 ok)"
    bench.answer(Refused("404 no_service"))
    assert bench.courier.notify_test(5) == "not delivered: 404 no_service"
