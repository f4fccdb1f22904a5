import queue
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from stallwatch.errors import UsageError
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs import spool as spools
from stallwatch.outputs.courier import Courier
from stallwatch.outputs.delivery import Delivered, Later, Outcome, Refused
from stallwatch.outputs.rate_cap import RateCap
from stallwatch.outputs.spool import SpoolFile
from tests.unit.outputs.reports import FakeClock, diagnosis, incident, node_report, verdict

WAIT = 10.0  # a test that needs this long has failed


class FakePoster:
    """Answers what the test hands it; an attempt without an answer stays under way, as with a server that hangs."""

    def __init__(self) -> None:
        self.attempts: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[Outcome] = queue.Queue()
        self.cancelled = 0
        self.threads: list[str] = []

    def post(self, body: bytes, seconds: float, thread: str = "") -> Outcome:
        self.threads.append(thread)
        self.attempts.put(body.decode())
        return self.answers.get(timeout=WAIT)

    def cancel(self) -> None:
        self.cancelled += 1
        self.answers.put(Later("cancelled"))


class PlainWords:
    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        return {"id": incident.incident_id, "step": step}

    def line(self, incident: Incident, step: Step) -> str:
        return f"{incident.incident_id} {step}"

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        return {"step": "digest", "lines": list(lines)}

    def test(self) -> Mapping[str, object]:
        return {"test": True}


class Bench:
    def __init__(self, state: Path, cap: RateCap | None = None) -> None:
        self.state = state
        self.cap = cap
        self.clock = FakeClock(monotonic_ns=1_000_000_000)
        self.poster = FakePoster()
        self.courier = self.start()

    def start(self) -> Courier:
        courier = Courier(
            "slack",
            PlainWords(),
            self.poster,
            self.clock,
            SpoolFile(self.state / "slack.json"),
            "warning",
            cap=self.cap,
        )
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
    bench.courier._file = SpoolFile(Path("/proc/nowhere/slack.json"))
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    assert "after a restart messages may be repeated" in (bench.courier.problem() or "")


def test_a_state_directory_that_cannot_be_is_refused_with_the_key_to_change() -> None:
    courier = Courier(
        "slack", PlainWords(), FakePoster(), FakeClock(), SpoolFile(Path("/proc/nowhere/slack.json")), "warning"
    )
    with pytest.raises(UsageError) as refusal:
        courier.start()
    assert "daemon.state_directory" in refusal.value.help


def test_a_test_message_says_what_happened(bench: Bench) -> None:
    bench.answer(Delivered("200 ok"))
    assert bench.courier.notify_test(5) == "delivered (200 ok)"
    bench.answer(Refused("404 no_service"))
    assert bench.courier.notify_test(5) == "not delivered: 404 no_service"


def test_ten_minutes_without_slack_lose_nothing_and_repeat_nothing(bench: Bench) -> None:
    told = [incident(incident_id=f"llama-7b-{number}") for number in range(5)]
    bench.publish(*told)
    attempts = 0
    while bench.clock.monotonic < 601_000_000_000:
        bench.answer(Later("connection refused"))
        bench.attempt()
        attempts += 1
        bench.settled(retried=attempts)
        bench.clock.monotonic = bench.courier._not_before_ns
        bench.publish(*told)
    for number in range(5):
        bench.answer(Delivered("ok"))
        bench.settled(delivered=number + 1)
    assert attempts < 12  # patient, not a flood
    assert bench.courier.deliveries() == {
        "delivered": 5,
        "repeated": 0,
        "retried": attempts,
        "refused": 0,
        "dropped": 0,
    }


def test_a_silent_server_may_have_got_it_and_the_next_delivery_counts_as_a_repetition(bench: Bench) -> None:
    bench.answer(Later("no answer within 15 s", perhaps_delivered=True))
    bench.publish(incident())
    bench.settled(retried=1)
    bench.clock.advance(2)
    bench.answer(Later("500"))
    bench.publish(incident())
    bench.settled(retried=2)
    bench.restart()  # the doubt outlives the daemon
    bench.answer(Delivered("ok"))
    bench.settled(repeated=1)
    assert bench.courier.deliveries()["delivered"] == 0


def test_what_a_server_refused_clearly_is_no_repetition_after_a_restart(bench: Bench) -> None:
    bench.answer(Later("429", 1.0))
    bench.publish(incident())
    bench.settled(retried=1)
    bench.restart()
    bench.answer(Delivered("ok"))
    bench.settled(delivered=1)


def test_another_culprit_is_told_a_few_times_and_another_wording_never(bench: Bench) -> None:
    for delivered, rank in enumerate([2, 2, 3, 4, 5, 6, 7]):
        bench.answer(Delivered("ok"))
        bench.publish(incident(report=diagnosis(verdict(culprits=(rank,), summary=f"words {delivered}"))))
        bench.settled(delivered=[1, 1, 2, 3, 4, 4, 4][delivered])
    assert [bench.attempt() for _ in range(4)] == ["told", "updated", "updated", "updated"]


def test_the_thread_of_the_first_message_is_kept_over_a_restart(bench: Bench) -> None:
    bench.answer(Delivered("ok", thread="C1/17.1"))
    bench.publish(incident(severity="warning"))
    bench.settled(delivered=1)
    bench.restart()
    bench.answer(Delivered("ok", thread="C1/17.2"))
    bench.publish(incident())
    bench.settled(delivered=1)
    bench.answer(Delivered("ok", thread="C1/17.3"))
    bench.publish(incident(state="resolved"))
    bench.settled(delivered=2)
    assert bench.poster.threads == ["C1/17.1", "C1/17.1"]


@pytest.fixture
def capped(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, RateCap(3, 3600))
    yield made
    made.courier.close(WAIT)


def test_more_than_the_cap_arrive_as_one_digest_and_the_rest_of_the_hour_has_room_for_two(capped: Bench) -> None:
    capped.answer(Delivered("ok"))
    capped.publish(*[incident(incident_id=f"job-{number}") for number in range(60)])
    capped.settled(delivered=60)
    digest = msgspec.json.decode(capped.poster.attempts.get(timeout=WAIT))
    assert digest["step"] == "digest"
    assert [line.split()[0] for line in digest["lines"]] == [f"job-{number}" for number in range(60)]
    for number in (60, 61):
        capped.answer(Delivered("ok"))
        capped.publish(incident(incident_id=f"job-{number}"))
        capped.settled(delivered=number + 1)
    capped.publish(*[incident(incident_id=f"job-{number}") for number in (62, 63)])
    assert [capped.attempt(), capped.attempt()] == ["told", "told"]
    with pytest.raises(queue.Empty):
        capped.poster.attempts.get(timeout=0.05)  # the hour is full
    capped.clock.advance(3601)
    capped.answer(Delivered("ok"))
    capped.answer(Delivered("ok"))
    capped.publish()
    capped.settled(delivered=64)


def of_user(owner: str, number: int = 1, **changes: object) -> Incident:
    name = f"{owner}-{number}"
    job = JobKey(changes.pop("name", name), "epoch", owner)  # type: ignore[arg-type]
    return incident(incident_id=name, job=job, **changes)


def test_what_one_user_causes_in_any_number_delays_no_critical_message_of_another(capped: Bench) -> None:
    capped.publish(*[of_user("ben", number) for number in range(300)])
    assert capped.attempt() == "digest"  # under way when another's job is told
    capped.publish(*[of_user("ben", number) for number in range(400)], of_user("anna"))
    capped.answer(Delivered("ok"))
    assert msgspec.json.decode(capped.poster.attempts.get(timeout=WAIT)) == {"id": "anna-1", "step": "told"}
    capped.answer(Delivered("ok"))


def test_a_message_that_a_server_never_takes_does_not_stand_before_another_users(bench: Bench) -> None:
    bench.publish(of_user("ben"))
    assert bench.attempt() == "told"
    bench.publish(of_user("ben"), of_user("anna"))
    bench.answer(Later("500"))
    bench.settled(retried=1)
    bench.clock.advance(2)
    bench.publish(of_user("ben"), of_user("anna"))
    assert msgspec.json.decode(bench.poster.attempts.get(timeout=WAIT))["id"] == "anna-1"
    bench.answer(Delivered("ok"))


def test_rubbish_of_one_user_pushes_no_message_and_no_memory_of_anothers_out(bench: Bench) -> None:
    bench.publish(of_user("ben", 0))
    assert bench.attempt() == "told"  # and nobody answers
    bench.publish(of_user("anna"), *[of_user("ben", number) for number in range(2100)])
    assert [one.incident_id for one in bench.courier._spool.queue if one.owner == "anna"] == ["anna-1"]
    assert "anna-1" in bench.courier._spool.told
    bench.answer(Delivered("ok"))


def test_that_incidents_are_over_costs_no_news(capped: Bench) -> None:
    for number in range(3):
        mine = of_user("anna", number, severity="warning")
        for step in (mine, msgspec.structs.replace(mine, state="resolved")):
            capped.answer(Delivered("ok"))
            capped.publish(step)
            assert capped.attempt() == ("told" if step is mine else "resolved")
            capped.settled(delivered=2 * number + (1 if step is mine else 2))
    assert capped.courier.held() == ()


def test_a_noisy_job_does_not_silence_a_critical_one_of_the_same_user_and_what_waits_is_said(capped: Bench) -> None:
    for number in range(3):
        capped.answer(Delivered("ok"))
        capped.publish(of_user("ben", number, name="noisy"))
        assert capped.attempt() == "told"
        capped.settled(delivered=number + 1)
    capped.publish(of_user("ben", 3, name="noisy"))
    capped.publish(of_user("ben", 3, name="noisy"), of_user("ben", 4, name="important"))
    assert msgspec.json.decode(capped.poster.attempts.get(timeout=WAIT))["id"] == "ben-4"
    capped.answer(Delivered("ok"))
    capped.settled(delivered=4)
    (held,) = capped.courier.held()
    assert (held.output, held.owner, held.messages) == ("slack", "ben", 1)
    assert "3 messages that a user has in 3600 s are used up" in held.reason


def test_what_became_of_an_incident_is_not_told_before_it(capped: Bench) -> None:
    for number in range(3):
        capped.answer(Delivered("ok"))
        capped.publish(of_user("ben", number, severity="warning"))
        capped.settled(delivered=number + 1)
        capped.attempt()
    late = of_user("ben", 3, severity="warning")
    capped.publish(late)
    capped.publish(msgspec.structs.replace(late, state="resolved"))
    with pytest.raises(queue.Empty):
        capped.poster.attempts.get(timeout=0.05)
    assert [(one.owner, one.messages) for one in capped.courier.held()] == [("ben", 2)]
