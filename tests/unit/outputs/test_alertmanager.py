import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from stallwatch.clock import iso
from stallwatch.model.incident import Incident, Together
from stallwatch.model.verdict import CulpritProcess, Frame
from stallwatch.outputs.alertmanager import AlertmanagerOutput
from stallwatch.outputs.delivery import Delivered, DeliveryResult, Later
from tests.builders.clock import FakeClock
from tests.unit.outputs.notifier_bench import WAIT, FakePoster
from tests.unit.outputs.reports import JOB, diagnosis, incident, node_report, verdict

ARRIVED = Delivered("200")


class Voice:
    def __init__(self) -> None:
        self.clock, self.poster = FakeClock(), FakePoster()
        self.output = AlertmanagerOutput([self.poster], self.clock, "warning", "west", "https://watch.example/")
        self.output.start()

    def said(self, *incidents: Incident, outcome: DeliveryResult = ARRIVED) -> list[dict[str, Any]]:
        """What is posted when these are published."""
        self.output.publish(node_report(*incidents))
        alerts = msgspec.json.decode(self.poster.attempts.get(timeout=WAIT), type=list[dict[str, Any]])
        self.poster.answers.put(outcome)
        return alerts

    def says_nothing(self, *incidents: Incident) -> bool:
        self.output.publish(node_report(*incidents))
        try:
            self.poster.attempts.get(timeout=0.05)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def voice() -> Iterator[Voice]:
    made = Voice()
    yield made
    made.output.close(WAIT)


def test_it_carries_sentence_line_steps_and_deadline_under_labels_that_stay(voice: Voice) -> None:
    (alert,) = voice.said(incident(severity="warning"))
    assert alert["labels"] == {
        "alertname": "StallwatchIncident",
        "cluster": "west",
        "training_job": "llama-7b",
        "incident_id": "llama-7b-1",
        **({"owner": JOB.owner} if JOB.owner else {}),
    }
    said = alert["annotations"]
    assert said["summary"] == "llama-7b: rank 2: not_entered, lock at locks.py:41"
    assert said["description"].startswith("Rank 2 never entered all_reduce #412")
    assert said["source"] == "/home/anna/locks.py:41 in take_lock: with self._lock:"
    assert said["steps"] == "1. Look at who holds the lock."
    assert said["deadline"].endswith("safe to kill; torch's own timeout ends the job at 00:10:00 UTC")
    assert said["runbook_url"] == alert["generatorURL"] == "https://watch.example/?incident=llama-7b-1"
    (worse,) = voice.said(incident(report=diagnosis(verdict(culprits=(0,)))))
    assert worse["labels"] == alert["labels"]
    assert worse["annotations"]["severity"] == "critical"
    assert (alert["annotations"]["since"], worse["annotations"]["since"]) == ("00:00 UTC", "00:00 UTC")


def test_what_jobs_wait_for_together_is_a_label_as_it_was_when_people_were_told(voice: Voice) -> None:
    (alert,) = voice.said(incident(waits_on="nfs4 filer:/vol"))
    assert alert["labels"]["waits_on"] == "nfs4 filer:/vol"


def test_it_is_renewed_while_it_stands_and_ends_once_when_it_ends(voice: Voice) -> None:
    (first,) = voice.said(incident())
    assert voice.says_nothing(incident())
    voice.clock.advance(60)
    (again,) = voice.said(incident())
    assert again == first
    assert not {"startsAt", "endsAt"} & set(first), "by Alertmanager's own clock"
    over = incident(state="resolved", resolution="it moves again", resolved_wall_ns=voice.clock.wall_ns())
    (last,) = voice.said(over)
    assert last["labels"] == first["labels"]
    assert last["annotations"]["description"] == "it moves again (found 00:00 UTC, well again 00:01:00 UTC)"
    assert (last["annotations"]["state"], last["endsAt"]) == ("resolved", iso(voice.clock.wall_ns()))
    assert voice.says_nothing()


def test_what_died_with_its_job_a_moment_after_it_was_told_stands_until_people_have_heard_of_it(voice: Voice) -> None:
    (first,) = voice.said(incident())
    voice.clock.advance(1)
    over_ns = voice.clock.wall_ns()
    over = incident(state="ended", resolution="the job ended", resolved_wall_ns=over_ns)
    (stands,) = voice.said(over)
    deadline = "The job is over: nothing of it is left to be ended"
    assert stands["annotations"] == {**first["annotations"], "state": "ended", "deadline": deadline}
    assert "endsAt" not in stands
    voice.clock.advance(300)
    (last,) = voice.said(over)
    assert last["annotations"]["description"] == "the job ended (found 00:00 UTC, over 00:00:01 UTC)"
    assert (last["annotations"]["state"], last["endsAt"]) == ("ended", iso(over_ns + 300 * 10**9))


def test_a_node_that_has_handed_over_who_tells_ends_nothing_that_another_renews(voice: Voice) -> None:
    voice.said(incident(together=Together(speaks=True)))
    other = Together(why="node2 tells")
    voice.clock.advance(60)
    assert voice.says_nothing(incident(together=other))
    voice.said(incident(together=Together(speaks=True)))
    gone = {"state": "ended", "resolved_wall_ns": voice.clock.wall_ns(), "together": other}
    (stands,) = voice.said(incident(**gone))
    assert "endsAt" not in stands
    voice.clock.advance(300)
    assert voice.says_nothing(incident(**gone))


@pytest.mark.parametrize(
    "quiet",
    [
        incident(severity="none"),
        incident(muted=True),
        incident(together=Together(why="node2 tells")),
        incident(state="resolved"),
    ],
)
def test_what_nobody_is_to_hear_of_here_is_not_posted(voice: Voice, quiet: Incident) -> None:
    assert voice.says_nothing(quiet)


def test_what_did_not_arrive_is_posted_again_and_is_a_problem_until_then(voice: Voice) -> None:
    voice.said(incident(), outcome=Later("connection refused"))
    until(lambda: voice.output.problem() == "not delivered: connection refused")
    voice.clock.advance(5)
    voice.said(incident())
    until(lambda: voice.output.problem() is None)
    assert voice.output.deliveries() == {"delivered": 1, "retried": 1}


def test_culprits_at_several_lines_have_each_its_own(voice: Voice) -> None:
    at = [Frame("/a.py", line, "f", None) for line in (1, 1, 2)]
    culprits = tuple(CulpritProcess(rank, frame=frame) for rank, frame in enumerate(at))
    (alert,) = voice.said(incident(report=diagnosis(verdict(culprit_processes=culprits))))
    assert alert["annotations"]["source"] == "rank 0, 1: /a.py:1 in f\nrank 2: /a.py:2 in f"


def until(holds: Callable[[], bool]) -> None:
    """The worker notes what came of an attempt in a thread of its own."""
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
