"""A whole look by the real child and the real py-spy at processes in a known state."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.captures.run import CaptureRun, CaptureState
from stallwatch.config import CaptureSection, Config
from stallwatch.hook import layout
from stallwatch.model.evidence import Attempt, ProcessLook
from stallwatch.model.reading import Unavailable
from stallwatch.model.snapshot import Outputs, ProcessEnd, RankSample
from stallwatch.node.launched import Launcher
from tests.integration.captures.subjects import (
    HOLDS_GIL,
    SLEEPS,
    UNINTERRUPTIBLE,
    WAITS_FOR_LOCK,
    WITH_WORKER,
    Subject,
    running,
)

CONFIG = Config(capture=CaptureSection(dump_seconds=2.0, stack_seconds=10.0, seconds=60.0))


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    started = Launcher()
    yield started
    started.close()


def take(bundle: Path, *samples: RankSample, look: int = 1, config: Config = CONFIG) -> CaptureState:
    run = CaptureRun(bundle, samples, look, config, node="node0")
    return wait(run, lambda: None)


def wait(run: CaptureRun, meanwhile: Callable[[], None]) -> CaptureState:
    deadline = time.monotonic() + 90
    while not (state := run.poll()).done:
        assert time.monotonic() < deadline
        meanwhile()
        time.sleep(0.02)
    assert state.problem == ""
    return state


def functions(path: Path) -> list[str]:
    threads: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())
    return [frame["name"] for thread in threads for frame in thread["frames"]]


def attempts(bundle: Path, what: str) -> list[Attempt]:
    known = msgspec.json.decode((bundle / "ranks/0/attempts.json").read_bytes(), type=list[Attempt])
    return [attempt for attempt in known if attempt.what == what]


def process_of(bundle: Path) -> ProcessLook:
    return msgspec.json.decode((bundle / "ranks/0/process.json").read_bytes(), type=ProcessLook)


def test_rank_that_waits_for_a_lock_shows_its_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(WAITS_FOR_LOCK)
    with running(f"exec(compile(open({str(program)!r}).read(), {str(program)!r}, 'exec'))", tmp_path / "d") as subject:
        subject.wait_for_state("S")
        state = take(tmp_path / "b", subject.sample())
    assert state.evidence_complete
    assert "take_lock" in functions(tmp_path / "b/ranks/0/stacks.json")
    sources = msgspec.json.decode((tmp_path / "b/ranks/0/sources.json").read_bytes())
    assert "lock.acquire()" in [line["text"] for line in sources]
    assert process_of(tmp_path / "b").state == "S"
    assert [attempt.answered for attempt in attempts(tmp_path / "b", "stacks")] == [True, True]


def test_rank_that_holds_the_gil_shows_its_line(tmp_path: Path) -> None:
    with running(HOLDS_GIL, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        take(tmp_path / "b", subject.sample())
        assert subject.state() == "S"
    assert "native_work" in functions(tmp_path / "b/ranks/0/stacks.json")


def test_stopped_rank_is_read_without_a_pause_and_stays_stopped(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        os.kill(subject.pid, signal.SIGSTOP)
        subject.wait_for_state("T")
        state = take(tmp_path / "b", subject.sample())
        assert subject.state() == "T"
    assert state.evidence_complete
    assert "<module>" in functions(tmp_path / "b/ranks/0/stacks.json")
    refused = attempts(tmp_path / "b", "stacks")[1]
    assert "somebody has stopped it" in refused.detail
    assert process_of(tmp_path / "b").state == "T"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make a process uninterruptible with")
def test_uninterruptible_rank_is_read_without_a_pause(tmp_path: Path) -> None:
    with running(UNINTERRUPTIBLE, tmp_path / "d") as subject:
        subject.wait_for_state("D")
        state = take(tmp_path / "b", subject.sample())
        assert subject.state() == "D"
    assert state.evidence_complete
    assert "read_shard" in functions(tmp_path / "b/ranks/0/stacks.json")
    assert "uninterruptible" in attempts(tmp_path / "b", "stacks")[1].detail
    assert process_of(tmp_path / "b").state == "D"


def test_worker_that_the_rank_waits_for_has_its_stack_too(tmp_path: Path) -> None:
    with running(WITH_WORKER, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        take(tmp_path / "b", subject.sample())
        (child,) = process_of(tmp_path / "b").children
    assert "fetch_sample" in functions(tmp_path / f"b/ranks/0/stacks.child-{child.pid}.json")
    assert "next_batch" in functions(tmp_path / "b/ranks/0/stacks.json")


def test_rank_that_is_gone_has_its_end(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        sample = subject.sample()
    end = ProcessEnd(at_ns=123, exit_code=None, exit_signal=9, source="zombie", out_of_memory=False)
    state = take(tmp_path / "b", msgspec.structs.replace(sample, end=end))
    assert state.evidence_complete
    assert state.missing == ()
    look = process_of(tmp_path / "b")
    assert (look.state, look.exit_signal, look.exit_source, look.ended_ns) == ("X", 9, "zombie", 123)


def test_the_log_of_a_rank_that_is_gone_is_read_where_it_was(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        sample = subject.sample()
    log = tmp_path / "job.log"
    log.write_text("MemoryError: 96 GiB\n")
    outputs = Outputs((str(log),), os.getuid(), os.getgid(), tuple(os.getgroups()))
    # It ended after the sample was taken: nobody has seen how, and its log tells.
    take(tmp_path / "b", msgspec.structs.replace(sample, outputs=outputs))
    assert (tmp_path / "b/ranks/0/log.txt").read_text() == "MemoryError: 96 GiB\n"
    assert [attempt.answered for attempt in attempts(tmp_path / "b", "log")] == [True]


def test_rank_that_vanishes_before_the_look_says_so(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        sample = subject.sample()
    take(tmp_path / "b", sample)
    assert process_of(tmp_path / "b").exit_source == "unknown"


def test_second_look_has_its_own_files(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        for look in (1, 2):
            take(tmp_path / "b", subject.sample(), look=look)
    names = {path.name for path in (tmp_path / "b/ranks/0").iterdir()}
    assert {"process.json", "process-2.json", "stacks.json", "stacks-2.json"} <= names
    assert {attempt.look for attempt in attempts(tmp_path / "b", "process")} == {1, 2}


class AnsweringHook:
    """Plays the hook's part: sees a request, writes what torch would, then says so in the record."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.answered = 0
        self.rungs: list[str] = []

    def __call__(self) -> None:
        path = Path(layout.request_path(str(self.subject.directory), self.subject.rank, self.subject.pid))
        if not path.exists():
            return
        request = msgspec.json.decode(path.read_bytes())
        if request["id"] > self.answered:
            self.answered = request["id"]
            self.rungs.append(request["rung"])
            name = layout.answer_name(self.subject.rank, self.subject.pid, self.answered, "gloo")
            (self.subject.directory / name).write_bytes(request["rung"].encode())
            self.subject.write_record(answered=self.answered)


def test_recorder_is_asked_up_the_ladder_and_the_fullest_dump_is_kept(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        hook = AnsweringHook(subject)
        sample = subject.sample(with_hook=True)
        wait(CaptureRun(tmp_path / "b", [sample], 1, CONFIG, node="node0"), hook)
        wait(CaptureRun(tmp_path / "b", [sample], 2, CONFIG, node="node0"), hook)
        wait(CaptureRun(tmp_path / "b", [sample], 3, CONFIG, node="node0"), hook)
        left = [path.name for path in subject.directory.iterdir() if path.name.endswith(".dump")]
    assert hook.rungs == ["active", "entries", "entries", "entries", "stacks"]
    assert (tmp_path / "b/ranks/0/flight_recorder.gloo.pickle").read_bytes() == b"entries"
    assert (tmp_path / "b/ranks/0/flight_recorder.gloo-2.pickle").read_bytes() == b"entries"
    assert (tmp_path / "b/ranks/0/flight_recorder.gloo-3.pickle").read_bytes() == b"stacks"
    assert left == []


def test_recorder_that_does_not_answer_is_asked_and_said(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        state = take(tmp_path / "b", subject.sample(with_hook=True))
    asked, own_file = attempts(tmp_path / "b", "flight_recorder")
    assert not asked.answered and not own_file.answered
    assert "asked, not answered" in asked.detail
    assert "no dump pipe is set up" in own_file.detail
    assert state.evidence_complete
    assert any("flight recorder asked, not answered" in sentence for sentence in state.missing)


def test_a_hook_that_could_not_create_its_answer_says_so_and_its_torch_is_not_blamed(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        request = Path(layout.request_path(str(subject.directory), subject.rank, subject.pid))

        def refused() -> None:
            if request.exists():
                number = msgspec.json.decode(request.read_bytes())["id"]
                subject.write_record(number, refused_errno=errno.ENOSPC)

        sample = subject.sample(with_hook=True)
        wait(CaptureRun(tmp_path / "b", [sample], 1, CONFIG, node="node0"), refused)
    asked = attempts(tmp_path / "b", "flight_recorder")[0]
    assert not asked.answered
    assert "could not create the file of its answer: No space left on device" in asked.detail
    assert "torch" not in asked.detail


def test_py_spy_that_hangs_is_given_up_and_the_rank_runs_on(tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text('#!/bin/sh\ncase "$*" in *nonblocking*) exit 1;; esac\nkill -STOP $4\nexec sleep 600\n')
    slow.chmod(0o755)
    section = CaptureSection(py_spy=str(slow), stack_seconds=0.5, dump_seconds=1.0, seconds=60.0)
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        state = take(tmp_path / "b", subject.sample(), config=Config(capture=section))
        subject.wait_for_state("SR")
    assert not state.evidence_complete
    assert state.missing[0] == "rank 0: no stack"
    assert attempts(tmp_path / "b", "release")
    assert (tmp_path / "b/ranks/0/stacks.error.json").exists()


def test_capture_that_is_killed_leaves_no_rank_stopped(tmp_path: Path) -> None:
    command = ["sh", "-c", "exec sleep 600"]
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        sample = subject.sample()
        run = CaptureRun(tmp_path / "b", [sample], 1, CONFIG, node="node0", command=command)
        os.kill(subject.pid, signal.SIGSTOP)  # what a py-spy that was killed leaves behind
        run.cancel()
        assert subject.state() in "SR"
    assert run.poll().done
    assert run.poll().problem == "cancelled"


def test_capture_by_the_launcher_is_whole_and_its_line_to_ras_arrives(tmp_path: Path, launcher: Launcher) -> None:
    with running(WAITS_FOR_LOCK, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        sample = replace(subject.sample(), heartbeat=Unavailable("no hook", 0))  # it may use NCCL, for all we know
        run = CaptureRun(tmp_path / "b", [sample], 1, CONFIG, node="node0", start=launcher)
        assert wait(run, lambda: None).evidence_complete
    assert "take_lock" in functions(tmp_path / "b/ranks/0/stacks.json")
    said = (tmp_path / "b/nodes/node0/attempts.json").read_bytes()
    assert "nccl_ras" in {attempt.what for attempt in msgspec.json.decode(said, type=list[Attempt])}


def test_capture_by_the_launcher_that_is_cancelled_leaves_no_rank_stopped(tmp_path: Path, launcher: Launcher) -> None:
    stops = tmp_path / "py-spy"
    stops.write_text('#!/bin/sh\ncase "$*" in *nonblocking*) exit 1;; esac\nkill -STOP $4\nexec sleep 600\n')
    stops.chmod(0o755)
    config = Config(capture=CaptureSection(py_spy=str(stops), seconds=60.0))
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        run = CaptureRun(tmp_path / "b", [subject.sample()], 1, config, node="node0", start=launcher)
        subject.wait_for_state("T")
        run.cancel()
        assert subject.state() in "SR"
    assert run.poll().done


def test_capture_past_its_deadline_is_ended(tmp_path: Path) -> None:
    config = Config(capture=CaptureSection(seconds=0.2))
    with running(SLEEPS, tmp_path / "d") as subject:
        run = CaptureRun(tmp_path / "b", [subject.sample()], 1, config, node="node0", command=["sleep", "600"])
        while not (state := run.poll()).done:
            time.sleep(0.02)
    assert "did not end within" in state.problem
    assert not state.evidence_complete
