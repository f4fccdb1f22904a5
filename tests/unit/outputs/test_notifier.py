import errno
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.errors import EXIT_USAGE, StallwatchError, UsageError
from stallwatch.model.incident import OutputTold, Together, Told
from stallwatch.node.disk import DiskChildEnded
from stallwatch.outputs import notifier as module
from stallwatch.outputs.delivery import Delivered, Later, Refused
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.spool import Spool
from tests.builders.clock import FakeClock
from tests.unit.outputs.notifier_bench import WAIT, Bench, FakePoster, PlainSpoolFile, PlainWords
from tests.unit.outputs.reports import diagnosis, incident, verdict


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.notifier.close(WAIT)


def test_it_tells_an_incident_once_however_often_it_is_published(bench: Bench) -> None:
    bench.answer(Delivered("ok"))
    for _ in range(5):
        bench.publish(incident())
    assert bench.attempt() == "told"
    bench.settled(delivered=1)
    assert bench.notifier.queued() == 0
    assert bench.notifier.problem() is None
    assert bench.poster.attempts.empty()


def test_publishing_does_not_wait_for_a_server_that_hangs(bench: Bench) -> None:
    bench.publish(incident())
    assert bench.attempt() == "told"  # under way, and nobody answers
    assert [one.step for one in PlainSpoolFile(bench.state / "slack.json").load().queue] == [
        "told"
    ]  # a crash now loses nothing
    bench.publish(incident(state="resolved"))
    assert bench.notifier.queued() == 2
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
    assert bench.notifier.problem() == "not delivered yet: 500"
    bench.restart()
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "told"
    bench.settled(delivered=1)


SHARED = Together(speaks=True)
NOT_YET = Together(why="the job's nodes have not agreed yet which of them tells")


def left(bench: Bench) -> None:
    """A daemon ends with a message unsent that tells of an incident of several nodes; the next one hears first of
    another."""
    bench.answer(Later("500"))
    bench.publish(incident(together=SHARED))
    bench.settled(retried=1)
    bench.restart()
    bench.answer(Delivered("ok"))
    bench.publish(incident(together=NOT_YET), incident(incident_id="llama-7b-2"))
    assert bench.incident() == "llama-7b-2"
    bench.settled(delivered=1)


def test_what_a_daemon_left_unsent_is_not_sent_where_another_node_has_told_it(bench: Bench) -> None:
    left(bench)
    told = Told({"slack": OutputTold(("told", "escalated"), "not_entered 2")})
    bench.publish(incident(together=Together(why="node2 tells of it", told=told)))
    assert bench.notifier.queued() == 0


def test_what_a_daemon_left_unsent_goes_once_it_is_this_nodes_to_tell(bench: Bench) -> None:
    left(bench)
    bench.answer(Delivered("ok"))
    bench.publish(incident(together=SHARED))
    assert bench.incident() == "llama-7b-1"


def test_what_a_daemon_left_unsent_goes_after_a_while_whoever_is_to_tell(bench: Bench) -> None:
    left(bench)
    bench.answer(Delivered("ok"))
    bench.clock.advance(45)
    bench.publish(incident(together=NOT_YET))
    assert bench.incident() == "llama-7b-1"


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
    assert bench.notifier.problem() is None


def test_without_such_a_wish_it_waits_longer_each_time(bench: Bench) -> None:
    waits = []
    for attempt in range(1, 5):
        bench.answer(Later("502"))
        bench.publish(incident())
        assert bench.attempt() == "told"
        bench.settled(retried=attempt)
        waits.append((bench.next_attempt_ns - bench.clock.monotonic_ns()) / 1e9)
        bench.clock.advance(waits[-1])
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    assert waits == [1, 2, 4, 8]


def test_a_refused_message_makes_room_for_the_next(bench: Bench) -> None:
    bench.answer(Refused("404 no_service"))
    bench.publish(incident())
    bench.settled(refused=1)
    assert bench.notifier.problem() == "refused: 404 no_service"
    bench.answer(Delivered("ok"))
    bench.publish(incident(), incident(incident_id="llama-7b-2"))
    bench.settled(delivered=1)
    assert bench.notifier.problem() is None


def test_yesterdays_alert_is_not_sent(bench: Bench) -> None:
    bench.answer(Later("500"))
    bench.publish(incident())
    bench.settled(retried=1)
    bench.clock.advance(25 * 3600)
    bench.publish(incident())
    bench.settled(dropped=1)
    assert bench.notifier.queued() == 0


def test_closing_ends_an_attempt_that_hangs_and_keeps_the_message(bench: Bench) -> None:
    bench.publish(incident())
    assert bench.attempt() == "told"
    bench.notifier.close(1.0)
    assert bench.poster.cancelled
    bench.poster = FakePoster()
    bench.notifier = bench.start()
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "told"


def test_a_full_disk_is_a_problem_that_is_told_while_it_goes_on_delivering(bench: Bench) -> None:
    bench.notifier._file = PlainSpoolFile(Path("/proc/nowhere/slack.json"))
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    assert "after a restart messages may be repeated" in (bench.notifier.problem() or "")


def test_what_a_disk_did_not_take_is_written_once_it_does_though_nothing_new_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that is killed then would tell all of it again."""
    takes, save = [False], PlainSpoolFile.save
    written, refused = queue.Queue[Spool](), queue.Queue[Spool]()

    def save_if_it_takes(self: PlainSpoolFile, spool: Spool) -> None:
        if not takes[0]:
            refused.put(spool)
            raise OSError(errno.ETIMEDOUT, "does not answer")
        save(self, spool)
        written.put(spool)

    monkeypatch.setattr(PlainSpoolFile, "save", save_if_it_takes)
    bench.answer(Delivered("ok"))
    bench.publish(incident())
    bench.settled(delivered=1)
    while refused.get(timeout=WAIT).queue:
        pass
    with bench.notifier._changed:  # the worker waits: it has done with what was refused
        takes[0] = True
    bench.clock.advance(10)
    bench.publish(incident())
    assert written.get(timeout=5.0).told["llama-7b-1"]
    assert PlainSpoolFile(bench.state / "slack.json").load().queue == ()


def test_a_state_directory_that_cannot_be_is_refused_with_the_key_to_change() -> None:
    notifier = Notifier(
        "slack", PlainWords(), FakePoster(), FakeClock(), PlainSpoolFile(Path("/proc/nowhere/slack.json")), "warning"
    )
    with pytest.raises(UsageError) as refusal:
        notifier.start()
    assert "daemon.state_directory" in refusal.value.help


def test_a_test_message_says_what_happened(bench: Bench) -> None:
    bench.answer(Delivered("200 ok"))
    assert bench.notifier.notify_test(5) == "delivered (200 ok)"
    bench.answer(Refused("404 no_service"))
    assert bench.notifier.notify_test(5) == "not delivered: 404 no_service"


def test_ten_minutes_without_slack_lose_nothing_and_repeat_nothing(bench: Bench) -> None:
    told = [incident(incident_id=f"llama-7b-{number}") for number in range(5)]
    bench.publish(*told)
    attempts = 0
    while bench.clock.now_ns < 601_000_000_000:
        bench.answer(Later("connection refused"))
        bench.attempt()
        attempts += 1
        bench.settled(retried=attempts)
        bench.clock.now_ns = bench.next_attempt_ns
        bench.publish(*told)
    for number in range(5):
        bench.answer(Delivered("ok"))
        bench.settled(delivered=number + 1)
    assert attempts < 12  # patient, not a flood
    assert bench.notifier.deliveries() == {
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
    assert bench.notifier.deliveries()["delivered"] == 0


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


def test_a_child_of_the_disk_that_was_killed_is_no_fault_of_the_configuration(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 64 is the end of a unit: nobody starts it again."""

    def ended(_: object) -> Spool:
        raise DiskChildEnded(errno.EIO, "the process that reads and writes there has ended", "/state")

    monkeypatch.setattr(PlainSpoolFile, "load", ended)
    with pytest.raises(StallwatchError, match="has ended") as raised:
        bench.start()
    assert raised.value.exit_code != EXIT_USAGE


class FailingSpoolFile(PlainSpoolFile):
    """The next save fails, and not as a disk does."""

    fails = False

    def save(self, spool: Spool) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError
        super().save(spool)


def again_after(bench: Bench, seconds: float) -> None:
    bench.clock.advance(seconds)
    bench.publish()


def test_a_worker_without_memory_tells_when_there_is_some_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AFTER_ERROR_SECONDS", 0.0)
    file = FailingSpoolFile(tmp_path / "slack.json")
    file.fails = True
    bench = Bench(tmp_path, file=file)
    try:
        bench.publish(incident())
        bench.settled(retried=1)
        again_after(bench, 10)
        bench.answer(Delivered("ok"))
        assert bench.attempt() == "told"
        bench.settled(delivered=1)
        assert bench.notifier.problem() is None
    finally:
        bench.notifier.close(WAIT)
    assert not file.load().queue  # written down, though the first time failed


def test_a_delivery_that_gets_no_thread_is_made_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_ERROR_SECONDS", 0.0)
    start, refused = threading.Thread.start, list[str]()

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    bench.publish(incident())
    bench.settled(retried=1)
    assert refused == ["slack delivery"]
    assert bench.notifier.problem() == "not delivered yet: RuntimeError: can't start new thread"
    again_after(bench, 10)
    bench.answer(Delivered("ok"))
    assert bench.attempt() == "told"
    bench.settled(delivered=1)
