"""The record survives what happens to its file and its directory."""

import itertools
import os
import random
import threading
import time
from pathlib import Path

import pytest

from stallwatch.hook import layout, publication
from stallwatch.hook.beat import OFF, Beat, Phases, step_counter
from stallwatch.hook.guard import Guard
from stallwatch.hook.identity import ProcessIdentity, World
from stallwatch.hook.publication import Publication
from stallwatch.hook.training_thread import TrainingThread
from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat
from stallwatch.node.heartbeat_file import prepare
from tests.builders.records import decoded

PROCESS = ProcessIdentity(pid=7, start_ticks=8, pid_namespace=9, node="n1")
WORLD = World(3, 1, 4, 0, "job", "epoch", is_ranked=True)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STALLWATCH_DIR", str(tmp_path / "ranks"))
    monkeypatch.setattr(publication, "RETRY_NS", 0)
    (tmp_path / "ranks").mkdir()
    return tmp_path / "ranks"


def published(guard: Guard | None = None) -> Publication:
    _, read_steps, stepper = step_counter()
    made = Publication(PROCESS, WORLD, False, read_steps, Phases(1), guard or Guard(), TrainingThread(stepper))
    made.publish()
    return made


def is_published(made: Publication) -> bool:
    return made.file is not None


def path_in(directory: Path) -> Path:
    (path,) = directory.glob("*.beat")
    return path


def record(directory: Path) -> Heartbeat:
    return decoded(path_in(directory).read_bytes())


def test_each_word_is_in_its_place(directory: Path) -> None:
    step, read_steps, stepper = step_counter()
    guard, training = Guard(), TrainingThread(stepper)
    made = Publication(PROCESS, WORLD, True, read_steps, Phases(11), guard, training)
    step()
    made.beat(12)
    guard.errors, training.frame_changes = 13, 14
    made.dump_started_ns, made.answered_request, made.refused_errno = 15, 16, 17
    made.groups = (("nccl", 0, 10, 9), ("gloo", 1, 4, 4))
    stepper()
    step()
    made.publish()
    found = record(directory)
    assert (found.is_child, found.step, found.phase_since_ns) == (True, 2, 11)
    assert (found.pulse_count, found.pulse_ns, found.errors, found.frame_changes) == (1, 12, 13, 14)
    assert (found.dump_started_ns, found.answered_request, found.refused_errno) == (15, 16, 17)
    assert (found.training_ident, found.training_tid) == (threading.get_ident(), threading.get_native_id())
    assert found.groups == (GroupCounter("nccl", 0, 10, 9), GroupCounter("gloo", 1, 4, 4))
    assert (found.groups_dropped, found.ended, found.exit_code, found.ended_ns) == (0, False, None, None)
    assert 0 < found.attached_ns <= time.monotonic_ns()


def test_what_is_filled_in_place_is_as_if_it_were_made_anew(directory: Path) -> None:
    """Steps, more of them than the ring holds, groups that come and go, texts that get shorter, looks, another rank."""
    step, read_steps, stepper = step_counter()
    phases, chance = Phases(1), random.Random(1)
    made = Publication(PROCESS, WORLD, False, read_steps, phases, Guard(), TrainingThread(stepper))
    beat = Beat(step, phases, lambda: True)
    looks: list[CounterLook] = []
    for number in range(1, 200):
        for _ in range(chance.choice((0, 1, 5, 70, 200))):
            step()
        count = chance.choice((0, 1, 3, layout.GROUP_CAPACITY + 2))
        made.groups = tuple(("gloo", group, number, group) for group in range(count))
        made.look(number, 10 * number, read_steps()[0], (("gloo", 0, number, number - 1),))
        looks.append(CounterLook(number, 10 * number, read_steps()[0] or -1, 0, 0, number, number - 1))
        if number == 100:
            made.move(WORLD._replace(rank=2, training_job="x"))
        phase = "p" * chance.randrange(5)
        with beat.phase(phase):
            made.publish()
        found = record(directory)
        steps, times = read_steps(after=0)
        assert found.step == (steps or None)
        assert found.last_step_ns == (times[-1] if times else None)
        assert found.step_durations_ns == tuple(later - earlier for earlier, later in itertools.pairwise(times))
        assert found.groups == tuple(GroupCounter(*group) for group in made.groups[: layout.GROUP_CAPACITY])
        assert found.groups_dropped == max(0, count - layout.GROUP_CAPACITY)
        assert (found.phase, found.looks) == (phase, tuple(looks[-layout.LOOK_SLOTS :]))
        assert (found.rank, found.training_job) == ((2, "x") if number >= 100 else (3, "job"))
        end = layout.GROUP_OFFSET + len(found.groups) * layout.ONE_GROUP.size
        assert not any(path_in(directory).read_bytes()[end : layout.STRING_OFFSET])


def test_the_record_names_the_process_and_its_world(directory: Path) -> None:
    published()
    found = record(directory)
    assert (found.pid, found.start_ticks, found.pid_namespace, found.node) == PROCESS
    assert (found.rank, found.local_rank, found.world_size, found.restart_count) == WORLD[:4]
    assert (found.training_job, found.epoch) == ("job", "epoch")


def test_it_says_where_its_record_is_and_whether_a_daemon_reads_it(directory: Path) -> None:
    made = published()
    assert made.describe() == (
        f"rank 3 of job, record {path_in(directory)}; no daemon reads {directory} now: `stallwatch daemon` does"
    )
    prepare(directory)  # as a daemon does, which this process is from now on
    assert made.describe().endswith("; a daemon reads it")


def test_without_a_directory_it_says_what_is_wrong(directory: Path) -> None:
    directory.rmdir()
    said = published().describe()
    assert said.startswith("no record of this rank: ")
    assert str(directory) in said


def test_a_description_that_fails_harms_nobody() -> None:
    def broken() -> str:
        raise OSError("gone")

    assert repr(Beat(lambda: None, None, lambda: True, broken)) == "<stallwatch: OSError: gone>"
    assert repr(Beat(lambda: None, None, lambda: True, lambda: "fine")) == "<stallwatch: fine>"


@pytest.mark.parametrize(("value", "words"), [("1", "off: STALLWATCH_DISABLE=1"), ("", "off in this process")])
def test_one_that_is_off_says_why(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLWATCH_DISABLE", value)
    assert words in repr(OFF)


def test_nobody_counts_steps_until_the_job_says_so(directory: Path) -> None:
    made = published()
    assert record(directory).step is None
    made.counts_steps = True
    made.publish()
    assert record(directory).step == 0


def test_alerts_can_be_kept_quiet(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published()
    assert record(directory).notify
    path_in(directory).unlink()
    monkeypatch.setenv("STALLWATCH_NOTIFY", "off")
    published()
    assert not record(directory).notify


def test_an_unlinked_record_is_made_again(directory: Path) -> None:
    made = published()
    os.unlink(path_in(directory))
    made.beat(1)
    made.publish()
    assert record(directory).pulse_count == 1


def test_a_truncated_record_is_whole_again(directory: Path) -> None:
    made = published()
    os.truncate(path_in(directory), 0)
    made.publish()
    assert record(directory).rank == 3


def test_a_directory_that_comes_late_gets_its_record(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory.rmdir()
    made = published()
    assert not is_published(made)
    said = capsys.readouterr().err
    assert "no record of this rank" in said
    assert "tried again every" in said
    made.publish()
    assert capsys.readouterr().err == ""  # said once
    directory.mkdir()
    made.publish()
    assert is_published(made)
    assert record(directory).errors == 2


def test_a_directory_that_vanishes_and_returns_gets_its_record(directory: Path) -> None:
    made = published()
    path_in(directory).unlink()
    directory.rmdir()
    made.publish()
    assert not is_published(made)
    directory.mkdir()
    made.publish()
    assert record(directory).rank == 3


def test_a_process_that_turns_out_to_be_another_rank_moves(directory: Path) -> None:
    made = published()
    made.move(WORLD._replace(rank=1, world_size=2))
    assert made.file is not None
    assert [layout.parse_record_name(path.name) for path in directory.iterdir()] == [(1, made.file.key)]
    assert record(directory).world_size == 2


def test_the_end_is_the_last_word(directory: Path) -> None:
    made = published()
    made.close(3)
    found = record(directory)
    assert (found.ended, found.exit_code) == (True, 3)
    assert found.ended_ns is not None


def test_an_end_without_a_known_code_says_so(directory: Path) -> None:
    made = published()
    made.close(None)
    found = record(directory)
    assert (found.ended, found.exit_code) == (True, None)


def test_a_forked_child_writes_nothing(directory: Path) -> None:
    made = published()
    os.unlink(path_in(directory))
    made.abandon()
    made.publish()
    assert list(directory.iterdir()) == []


def test_looks_add_up_the_groups_of_each_recorder_and_pause_in_a_phase(directory: Path) -> None:
    _, read_steps, stepper = step_counter()
    phases = Phases(1)
    made = Publication(PROCESS, WORLD, False, read_steps, phases, Guard(), TrainingThread(stepper))
    groups = (("nccl", 0, 10, 9), ("nccl", 1, 4, -1), ("gloo", 0, 2, 2))
    made.look(70, 1_000, 0, ())
    made.look(71, 2_000, 0, groups)
    with Beat(lambda: None, phases, lambda: True).phase("checkpoint"):
        made.look(72, 3_000, 0, groups)
    made.dump_started_ns = 5
    made.look(73, 4_000, 0, groups)
    made.publish()
    assert record(directory).looks == (CounterLook(71, 2_000, -1, 14, 9, 2, 2),)
