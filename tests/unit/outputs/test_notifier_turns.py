"""Whose message goes when: budgets of users, and deliveries that take their time."""

import queue
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.delivery import Delivered, Later
from stallwatch.outputs.rate_cap import RateCap
from tests.unit.outputs.notifier_bench import WAIT, Bench
from tests.unit.outputs.reports import finding, incident


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.notifier.close(WAIT)


@pytest.fixture
def capped(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, RateCap(3, 3600))
    yield made
    made.notifier.close(WAIT)


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
    assert capped.attempt() == "digest"  # under way when another's job is told, and nobody answers
    capped.publish(*[of_user("ben", number) for number in range(400)], of_user("anna"))
    attempts = [msgspec.json.decode(capped.poster.attempts.get(timeout=WAIT)) for _ in range(2)]
    assert {"id": "anna-1", "step": "told"} in attempts
    assert {str(one["id"]).split("-")[0] for one in attempts} == {"anna", "ben"}  # one more of his, and then no more
    for _ in range(3):
        capped.answer(Delivered("ok"))


def test_beside_a_delivery_that_takes_its_time_goes_what_must_not_wait_and_nothing_else(bench: Bench) -> None:
    bench.publish(of_user("ben"))
    assert bench.incident() == "ben-1"  # under way for the whole test
    warning = of_user("carl", severity="warning")
    same_job = of_user("ben", 2, name="ben-1")
    bench.publish(of_user("ben"), warning, same_job, of_user("ben", 1, state="resolved"), of_user("anna"))
    assert bench.incident() == "anna-1"
    with pytest.raises(queue.Empty):
        bench.poster.attempts.get(timeout=0.05)
    for _ in range(5):
        bench.answer(Delivered("ok"))
    bench.settled(delivered=5)


def test_while_one_message_is_not_taken_a_critical_one_of_another_job_is_tried_at_once(bench: Bench) -> None:
    for attempt in range(1, 6):
        bench.answer(Later("500"))
        bench.publish(of_user("ben"))
        assert bench.attempt() == "told"
        bench.settled(retried=attempt)
        bench.clock.now_ns = bench.next_attempt_ns - (attempt == 5)
    bench.publish(of_user("ben"), of_user("carl", severity="warning"), of_user("anna"))
    assert bench.incident() == "anna-1"
    with pytest.raises(queue.Empty):
        bench.poster.attempts.get(timeout=0.05)
    for _ in range(3):
        bench.answer(Delivered("ok"))
    bench.settled(delivered=3)  # it answers: no reason to wait is left


def test_what_the_server_asks_holds_critical_ones_too(bench: Bench) -> None:
    bench.answer(Later("429", 30.0))
    bench.publish(of_user("ben"))
    bench.settled(retried=1)
    assert bench.attempt() == "told"
    bench.publish(of_user("ben"), of_user("anna"))
    with pytest.raises(queue.Empty):
        bench.poster.attempts.get(timeout=0.05)


def test_a_critical_message_that_is_never_taken_keeps_no_warning_of_another_from_going(bench: Bench) -> None:
    bench.answer(Later("500"))
    bench.publish(of_user("ben"))
    bench.settled(retried=1)
    assert bench.incident() == "ben-1"
    bench.publish(of_user("ben"), of_user("carl", severity="warning"))
    bench.clock.now_ns = bench.next_attempt_ns
    bench.publish(of_user("ben"), of_user("carl", severity="warning"))
    assert bench.incident() == "carl-1"
    bench.answer(Delivered("ok"))
    assert bench.incident() == "ben-1"
    bench.answer(Delivered("ok"))


def test_while_a_death_is_looked_at_what_tells_of_it_is_started_once(bench: Bench) -> None:
    looked_at = incident(severity="none", findings=(finding(resolvable=False),))
    bench.publish(looked_at)
    bench.poster.prepared.get(timeout=WAIT)
    bench.publish(looked_at)
    bench.publish(incident(severity="none", findings=(finding(resolvable=True),)))
    bench.publish(looked_at, msgspec.structs.replace(looked_at, incident_id="other", muted=True))
    bench.poster.prepared.get(timeout=WAIT)  # it was gone meanwhile
    with pytest.raises(queue.Empty):
        bench.poster.prepared.get(timeout=0.05)


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
    assert [one.incident_id for one in bench.notifier._spool.queue if one.owner == "anna"] == ["anna-1"]
    assert "anna-1" in bench.notifier._spool.told
    bench.answer(Delivered("ok"))


def test_that_incidents_are_over_costs_no_news(capped: Bench) -> None:
    for number in range(3):
        mine = of_user("anna", number, severity="warning")
        for step in (mine, msgspec.structs.replace(mine, state="resolved")):
            capped.answer(Delivered("ok"))
            capped.publish(step)
            assert capped.attempt() == ("told" if step is mine else "resolved")
            capped.settled(delivered=2 * number + (1 if step is mine else 2))
    assert capped.notifier.held() == ()


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
    (held,) = capped.notifier.held()
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
    assert [(one.owner, one.messages) for one in capped.notifier.held()] == [("ben", 2)]
