import itertools
import pickle
from pathlib import Path

import pytest

from stallwatch.hook import native, recorder
from stallwatch.hook.beat import Phases, step_counter
from stallwatch.hook.guard import Guard
from stallwatch.hook.identity import ProcessIdentity, World
from stallwatch.hook.layout import PUBLISH_NS
from stallwatch.hook.publication import Publication
from stallwatch.hook.pulse import ASKED_AGAIN_NS, SPREAD_NS, Pulse, next_instant, number_of
from stallwatch.hook.training_thread import TrainingThread

SECOND = 1_000_000_000


def instants(count: int, from_ns: int = 5 * SECOND) -> list[int]:
    moments = [next_instant(from_ns)]
    while len(moments) < count:
        moments.append(next_instant(moments[-1]))
    return moments


def test_all_processes_of_a_node_look_at_the_same_moments() -> None:
    first = instants(50)
    assert instants(40, from_ns=first[9]) == first[10:]
    assert all(next_instant(moment - 1) == moment for moment in first)
    numbers = [number_of(moment) for moment in first]
    assert numbers == list(range(numbers[0], numbers[0] + 50))


def test_moments_are_about_a_quarter_of_a_second_apart() -> None:
    moments = instants(500)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(gaps) < PUBLISH_NS + SPREAD_NS
    assert min(gaps) > PUBLISH_NS - SPREAD_NS
    assert abs(sum(gaps) / len(gaps) - PUBLISH_NS) < 0.01 * PUBLISH_NS


def test_every_part_of_a_step_is_seen_whatever_its_length() -> None:
    moments = instants(400)
    for step_ns in (SECOND // 20, SECOND // 4, SECOND // 2, SECOND, 2 * SECOND):
        parts = [0] * 4
        for moment in moments:
            parts[moment % step_ns * 4 // step_ns] += 1
        assert min(parts) > 60, step_ns


def test_which_recorders_there_are_is_asked_with_each_pulse_and_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch's answer is Python that nobody else runs; a group that is gone is seen at the next pulse."""
    monkeypatch.setenv("STALLWATCH_DIR", str(tmp_path))
    found: list[tuple[str, recorder.Dump]] = []
    asked: list[int] = []

    def distributed() -> object:
        asked.append(number)
        return found or None

    monkeypatch.setattr(recorder, "distributed", distributed)
    monkeypatch.setattr(recorder, "recorders", lambda: tuple(found))
    _, read_steps, stepper = step_counter()
    world = World(3, 1, 4, 0, "job", "epoch", is_ranked=True)
    process = ProcessIdentity(7, 8, 9, "n1")
    publication = Publication(process, world, False, read_steps, Phases(1), Guard(), TrainingThread(stepper))
    pulse, groups = Pulse(publication, Guard()), []
    status = pickle.dumps({"pg_status": {"0": {"last_enqueued_collective": 5, "last_completed_collective": 4}}})
    for number in range(40, 60):
        if number == 46:
            found.append(("gloo", lambda *_: status))
        if number == 54:
            found.clear()
        pulse._tick(number)
        groups.append(len(publication.groups))
    # Numbers that four divides are pulses.
    assert sorted(set(asked)) == [*range(40, 47), 48, 52, *range(56, 60)]
    assert groups == [0] * 8 + [1] * 8 + [0] * 4


@pytest.fixture
def pulse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pulse:
    """Of a process whose steps the test counts, with a record."""
    monkeypatch.setenv("STALLWATCH_DIR", str(tmp_path))
    _, read_steps, stepper = step_counter()
    world = World(3, 1, 4, 0, "job", "epoch", is_ranked=True)
    publication = Publication(
        ProcessIdentity(7, 8, 9, "n1"), world, False, read_steps, Phases(1), Guard(), TrainingThread(stepper)
    )
    publication.publish()
    return Pulse(publication, Guard())


def test_who_steps_is_asked_for_a_request_with_each_pulse_and_who_stands_at_each_look(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, number = [0], 0
    monkeypatch.setattr(pulse.publication, "_read_steps", lambda since=0: (steps[0], ()))
    asked: list[int] = []
    monkeypatch.setattr(pulse._requests, "poll", lambda file: asked.append(number))
    for number in range(40, 52):
        steps[0] += number < 46
        pulse._tick(number)
    assert asked == [40, 44, *range(46, 52)]


@pytest.mark.parametrize(("answered_before_ns", "stands", "waits"), [
    (SECOND, True, 9), (SECOND, False, 1), (10 * SECOND, True, 1),
])  # fmt: skip
def test_who_has_answered_and_stands_looks_for_requests_between_the_moments(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch, answered_before_ns: int, stands: bool, waits: int
) -> None:
    now_ns, waited, asked = 100 * SECOND, list[float](), list[int]()

    def wait(seconds: float) -> bool:
        nonlocal now_ns
        waited.append(seconds)
        now_ns += round(seconds * SECOND)
        return False

    monkeypatch.setattr("stallwatch.hook.pulse.monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(pulse._stopping, "wait", wait)
    monkeypatch.setattr(pulse._requests, "poll", lambda file: asked.append(now_ns))
    pulse._asked_until_ns = now_ns - answered_before_ns + ASKED_AGAIN_NS
    pulse._steps_before = 0 if stands else 5
    pulse._instant_ns = now_ns + 9 * SECOND // 40
    pulse._rest()
    assert now_ns == pulse._instant_ns
    assert len(waited) == waits
    assert len(asked) == waits - 1


def test_a_recorder_without_groups_is_asked_with_each_pulse_alone(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo's of a job that has NCCL's groups alone; once it has one it is asked at each look."""
    status: dict[str, dict[str, object]] = {}
    asked: list[int] = []

    def dump(*_: bool) -> bytes:
        asked.append(number)
        return pickle.dumps({"pg_status": status})

    monkeypatch.setattr(recorder, "distributed", object)
    monkeypatch.setattr(recorder, "recorders", lambda: (("gloo", dump),))
    for number in range(41, 56):
        if number == 50:
            status["0"] = {"last_enqueued_collective": 5, "last_completed_collective": 4}
        pulse._tick(number)
    assert asked == [41, 44, 48, *range(52, 56)]  # found at 41; what four divides are pulses
    assert pulse.publication.groups == (("gloo", 0, 5, 4),)


def test_a_thread_that_is_asked_to_end_and_then_to_go_on_goes_on(pulse: Pulse) -> None:
    """A fork waits for its end, a while."""
    pulse._thread = thread = native.Thread(lambda: None)
    pulse._stopping.set()
    assert pulse._rest()
    pulse.resume()
    assert not pulse._is_told()
    assert pulse._thread is thread
    pulse._stopping.set()
    assert pulse._rest()
    assert pulse._is_told()
    assert pulse._thread is None
