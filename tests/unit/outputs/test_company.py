"""Jobs that stand together at one file system are one message."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stallwatch.model.incident import Incident, Together
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.delivery import Delivered
from stallwatch.outputs.slack_message import slack_message
from tests.unit.outputs.notifier_bench import WAIT, Bench
from tests.unit.outputs.reports import diagnosis, incident, node_report, verdict

MOUNT = "nfs4 filer:/vol"
ARRIVED = Delivered("200 ok")


def at(name: str, on: str = MOUNT, **changes: object) -> Incident:
    report = diagnosis(verdict(waits_on=on, where="checkpoint"))
    one = incident(incident_id=f"{name}-1", job=JobKey(name, "e"), report=report, waits_on=on, severity="warning")
    return replace(one, **changes)


def untold(name: str) -> Incident:
    """It stands there, and the patience with it has not ended."""
    return at(name, waits_on="", report=diagnosis(verdict(waits_on=MOUNT)), severity="none", state="suspect")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.answer(ARRIVED)
    made.notifier.close(WAIT)


def told(bench: Bench, *incidents: Incident) -> str:
    bench.publish(*incidents)
    bench.answer(ARRIVED)
    return bench.incident()


def silent(bench: Bench, *incidents: Incident) -> None:
    bench.publish(*incidents)
    assert bench.notifier.queued() == 0


def test_who_is_named_in_a_message_needs_none_of_his_own(bench: Bench) -> None:
    assert told(bench, at("a"), at("b"), untold("c")) == "a-1"
    silent(bench, at("a"), at("b"), at("c"))
    silent(bench, at("a"), at("b"), at("c", acknowledged_by="anna"))


def test_who_is_critical_where_the_message_is_not_is_told_of(bench: Bench) -> None:
    told(bench, at("a"), at("b"), at("c"))
    critical = at("b", severity="critical")
    silent(bench, at("a"), critical, at("c"))
    bench.clock.advance(11.0)
    assert told(bench, at("a"), critical, at("c")) == "b-1"
    silent(bench, at("a"), critical, at("c"))
    assert told(bench, at("a"), replace(critical, state="resolved"), at("c")) == "b-1"  # it has a message of its own


def test_who_becomes_critical_with_the_message_needs_none_of_his_own(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    critical = at("a", severity="critical"), at("b", severity="critical")
    assert told(bench, *reversed(critical)) == "a-1"
    silent(bench, *critical)


def test_the_message_that_becomes_critical_a_moment_later_is_the_only_one(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    silent(bench, at("a"), at("b", severity="critical"))
    bench.clock.advance(5.0)
    assert told(bench, at("a", severity="critical"), at("b", severity="critical")) == "a-1"
    bench.clock.advance(60.0)
    silent(bench, at("a", severity="critical"), at("b", severity="critical"))


def test_who_becomes_critical_after_another_who_was_named_is_in_his_message(bench: Bench) -> None:
    told(bench, at("a"), at("b"), at("c"))
    bench.publish(at("a"), at("b", severity="critical"), at("c"))
    bench.clock.advance(11.0)
    told(bench, at("a"), at("b", severity="critical"), at("c"))
    silent(bench, at("a"), at("b", severity="critical"), at("c", severity="critical"))


def test_nobody_is_paged_again_where_somebody_is_on_the_message(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    on_it = at("a", acknowledged_by="anna")
    assert told(bench, on_it, at("b")) == "a-1"
    silent(bench, on_it, at("b", severity="critical"))


def test_who_reads_another_channel_is_told_there(bench: Bench) -> None:
    other = at("b", job=JobKey("b", "e", owner="other"))
    bench.publish(at("a"), other, at("c"))
    for _ in range(2):
        bench.answer(ARRIVED)
    assert {bench.incident(), bench.incident()} == {"a-1", "b-1"}
    silent(bench, at("a"), other, at("c"))


def test_who_comes_there_later_is_told_of_once(bench: Bench) -> None:
    told(bench, at("a"))
    assert told(bench, at("a"), at("b"), at("c")) == "b-1"
    silent(bench, at("a"), at("b"), at("c"))


def test_another_place_is_another_message(bench: Bench) -> None:
    told(bench, at("a"))
    assert told(bench, at("a"), at("b", on="nfs4 filer:/other")) == "b-1"


def test_who_still_waits_when_the_message_is_over_is_told_of(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    over = at("a", state="resolved")
    bench.publish(over, at("b"))
    for _ in range(2):
        bench.answer(ARRIVED)
    assert {bench.incident(), bench.incident()} == {"a-1", "b-1"}


def test_when_all_is_well_again_one_message_says_so(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    assert told(bench, at("a", state="resolved"), at("b", state="resolved")) == "a-1"
    silent(bench, at("a", state="resolved"), at("b", state="resolved"))


def test_the_death_of_who_was_named_is_told(bench: Bench) -> None:
    told(bench, at("a"), at("b"))
    silent(bench, at("a"), at("b"))
    assert told(bench, at("a"), at("b", state="ended")) == "b-1"


def test_who_is_muted_or_anothers_to_tell_is_not_spared(bench: Bench) -> None:
    elsewhere = Together(speaks=False, why="node-2 tells of it")
    told(bench, at("a"), at("b", muted=True), at("c", together=elsewhere))
    assert told(bench, at("a"), at("b")) == "b-1"
    assert told(bench, at("a"), at("b"), at("c", together=replace(elsewhere, speaks=True))) == "c-1"


def test_the_message_names_the_place_and_all_jobs() -> None:
    first, others = at("a"), (at("b"), untold("c"), at("d", state="resolved"))
    said = slack_message(first, "told", "", node_report(first, *others))
    assert said["text"].startswith(f"🟠 3 jobs wait for {MOUNT} (a, b, c): a: rank 2: not_entered")
    assert "b: rank 2" in str(said["blocks"])
    assert "jobs wait" not in str(slack_message(first, "told", "", node_report(first)))
