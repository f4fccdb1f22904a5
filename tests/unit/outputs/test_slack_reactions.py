from collections.abc import Iterator

import pytest

from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.delivery import Delivered, DeliveryResult, Later
from stallwatch.outputs.slack_reactions import MUTE_SECONDS, SlackReactions
from tests.builders.clock import FakeClock
from tests.unit.outputs.notifier_bench import WAIT, FakePoster
from tests.unit.outputs.reports import FakeControl, incident, node_report


class Reader:
    def __init__(self) -> None:
        self.clock, self.poster, self.control = FakeClock(), FakePoster(), FakeControl(incidents=(incident(),))
        self.threads = {"llama-7b-1": "C1/1.2"}
        self.output = SlackReactions(self.poster, self.clock, lambda: self.threads, self.control)
        self.output.start()

    def look(self, outcome: DeliveryResult, **changes: object) -> None:
        """Ask once: what was answered before is obeyed by then."""
        self.poster.answers.put(outcome)
        self.clock.advance(11)
        self.output.publish(node_report(incident(**changes)))
        self.poster.attempts.get(timeout=WAIT)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.output.close(WAIT)


def after(reader: Reader) -> list[tuple[object, ...]]:
    reader.output.close(WAIT)
    return reader.control.asked


def test_eyes_acknowledge_for_who_gave_them_and_a_struck_bell_mutes_the_job_once(reader: Reader) -> None:
    for _ in range(2):
        reader.look(Delivered("200 eyes:U1 no_bell:U2 tada:U3 eyes:<!channel>"))
    asked = after(reader)
    assert set(asked) == {("acknowledge", "llama-7b-1", "slack:U1"), ("mute", "llama-7b", MUTE_SECONDS)}
    assert asked.count(("mute", "llama-7b", MUTE_SECONDS)) == 1


def test_who_is_on_it_already_is_not_replaced(reader: Reader) -> None:
    reader.look(Delivered("200 eyes:U1"), acknowledged_by="anna")
    assert after(reader) == []


def test_nothing_is_asked_for_what_has_no_message_or_is_over(reader: Reader) -> None:
    reader.output.publish(node_report(incident(state="resolved")))
    reader.threads = {}
    reader.output.publish(node_report(incident()))
    reader.output.close(WAIT)
    assert reader.poster.attempts.empty()


def test_without_the_scope_it_is_said_once_and_asked_again_minutes_later(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.look(Later("503 missing_scope"))
    after(reader)
    assert [record.message for record in caplog.records if "reactions:read" in record.message][1:] == []
    assert "xoxb" not in caplog.text
    assert reader.output.problem() is None


def test_one_users_many_incidents_keep_no_other_users_reactions_from_being_heard(reader: Reader) -> None:
    bens = [incident(incident_id=f"ben-{number}", job=JobKey(f"job-{number}", "e", "ben")) for number in range(20)]
    annas = incident(incident_id="anna-1", job=JobKey("annas", "e", "anna"))
    reader.threads = {one.incident_id: f"C1/{one.incident_id}" for one in (*bens, annas)}
    asked: set[str] = set()
    for _ in range(5):
        for _ in range(5):
            reader.poster.answers.put(Delivered("200 "))
        reader.clock.advance(11)
        reader.output.publish(node_report(*bens, annas))
        for _ in range(5):
            reader.poster.attempts.get(timeout=WAIT)
        look = reader.poster.threads[-5:]
        assert "C1/anna-1" in look
        asked |= set(look)
    assert asked == set(reader.threads.values()), "and each of his is asked about in its turn"
