"""A whole look by the real child and the real py-spy at processes in a known state."""

import errno
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.captures.capture_run import CaptureRun, CaptureState
from stallwatch.captures.spec import Compared, Sampling
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection
from stallwatch.formats import py_spy_profile
from stallwatch.hook import layout
from stallwatch.model.evidence import Attempt, ProcessLook, Usage
from stallwatch.model.reading import Unavailable
from stallwatch.model.snapshot import Outputs, ProcessEnd, RankSample
from stallwatch.model.summary import SampleMemory
from tests.integration.captures.subjects import (
    HOLDS_GIL,
    SLEEPS,
    UNINTERRUPTIBLE,
    WAITS_FOR_AIO,
    WAITS_FOR_LOCK,
    WITH_WORKER,
    Subject,
    running,
)
from tests.programs.privileged import side_that_knows

TRACER = Path(__file__).parents[2] / "programs" / "tracer.py"
ENTRY = {"collective_seq_id": 1, "op_id": 1, "profiling_name": "gloo:all_reduce", "state": "completed"}
CONFIG = Config(capture=CaptureSection(dump_seconds=2.0, stack_seconds=10.0, seconds=60.0))
# Of ranks that are asked for no dump, it is what their source lines have, whose reader is a Python that must start.
PATIENT = Config(capture=CaptureSection(dump_seconds=30.0, stack_seconds=30.0, seconds=80.0))


def take(bundle: Path, *samples: RankSample, look: int = 1, config: Config = CONFIG) -> CaptureState:
    with side_that_knows(*samples, config=config) as side:
        run = CaptureRun(bundle, samples, look, config, node="node0", side=side)
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


def test_a_look_over_some_seconds_sees_what_a_rank_and_its_worker_do(tmp_path: Path) -> None:
    with running(WITH_WORKER, tmp_path / "d") as subject:
        sample = subject.sample()
        with side_that_knows(sample, config=CONFIG) as side:
            run = CaptureRun(tmp_path / "b", [sample], 2, CONFIG, node="node0", side=side, profile_seconds=1)
            assert wait(run, lambda: None).evidence_complete
    folder = tmp_path / "b/ranks/0"
    usage = msgspec.json.decode((folder / "usage-2.json").read_bytes(), type=Usage)
    assert usage.look == 2
    assert usage.seconds >= 1
    assert usage.cpus == tuple(sorted(os.sched_getaffinity(0)))
    own, *workers = sorted(folder.glob("profile*"), key=lambda path: len(path.name))
    assert own.name == "profile-2.txt"
    assert workers
    for path in (own, *workers):
        assert sum(stack.count for stack in py_spy_profile.parse(path.read_bytes(), path.name).stacks) > 0


def test_rank_that_waits_for_a_lock_shows_its_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(WAITS_FOR_LOCK)
    with running(f"exec(compile(open({str(program)!r}).read(), {str(program)!r}, 'exec'))", tmp_path / "d") as subject:
        subject.wait_for_state("S")
        state = take(tmp_path / "b", subject.sample(), config=PATIENT)
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


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_rank_whose_system_call_a_pause_would_end_is_not_paused(tmp_path: Path) -> None:
    with running(WAITS_FOR_AIO, tmp_path / "d") as subject:
        subject.wait_for_wchan("read_events")
        take(tmp_path / "b", subject.sample())
        assert subject.process.poll() is None
    assert "wait_for_events" in functions(tmp_path / "b/ranks/0/stacks.json")
    assert "EINTR" in attempts(tmp_path / "b", "stacks")[1].detail


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

    def __init__(self, subject: Subject, dump: bytes = b"") -> None:
        """`dump`: what it answers; none: the rung that it is asked for, in JSON, which has no stacks."""
        self.subject = subject
        self.dump = dump
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
            said = f'{{"rung": "{request["rung"]}"}}' if request["json"] and request["rung"] != "stacks" else "stacks"
            (self.subject.directory / name).write_bytes(self.dump or said.encode())
            self.subject.write_record(answered=self.answered)


def test_recorder_is_asked_up_the_ladder_and_the_fullest_dump_is_kept(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        hook = AnsweringHook(subject)
        sample = subject.sample(with_hook=True)
        with side_that_knows(sample, config=CONFIG) as side:
            for look in (1, 2, 3):
                run = CaptureRun(tmp_path / "b", [sample], look, CONFIG, node="node0", side=side, call_sites=True)
                wait(run, hook)
        left = [path.name for path in subject.directory.iterdir() if path.name.endswith(".dump")]
    # All that is in gloo's recorder is active: what is active is not asked for by itself.
    assert hook.rungs == ["entries", "entries", "entries", "stacks"]
    dumps = {path.name: path.read_bytes() for path in (tmp_path / "b/ranks/0").glob("flight_recorder.*")}
    entries = b'{"rung": "entries"}'
    assert dumps == {
        "flight_recorder.gloo.json": entries,
        "flight_recorder.gloo-2.json": entries,
        "flight_recorder.gloo-3.pickle": b"stacks",
    }
    assert left == []


def test_a_sample_of_a_job_that_moves_asks_for_entries_alone_and_keeps_nothing(tmp_path: Path) -> None:
    sampling = Sampling(time.monotonic_ns(), 4, SampleMemory())
    with running(SLEEPS, tmp_path / "d") as subject:
        hook = AnsweringHook(subject, pickle.dumps({"version": "2.10", "entries": [ENTRY], "pg_status": {}}, 2))
        sample = subject.sample(with_hook=True)
        with side_that_knows(sample, config=CONFIG) as side:
            run = CaptureRun(None, [sample], 1, CONFIG, node="", side=side, sampling=sampling)
            state = wait(run, hook)
    assert hook.rungs == ["entries"]
    assert state.missing == ()
    assert state.compared == Compared(1, (), SampleMemory())


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
        with side_that_knows(sample, config=CONFIG) as side:
            wait(CaptureRun(tmp_path / "b", [sample], 1, CONFIG, node="node0", side=side), refused)
    asked = attempts(tmp_path / "b", "flight_recorder")[0]
    assert not asked.answered
    assert "could not create the file of its answer: No space left on device" in asked.detail
    assert "torch" not in asked.detail


def hanging_py_spy(folder: Path, tracer: str = "attaches", **section: Any) -> Config:
    """One that hangs in the middle of its pause."""
    program = folder / "py-spy"
    program.write_text(f'#!/bin/sh\nTRACER={tracer} exec {sys.executable} {TRACER} "$@"\n')
    program.chmod(0o755)
    return Config(capture=CaptureSection(py_spy=str(program), dump_seconds=1.0, **{"seconds": 60.0, **section}))


def test_py_spy_that_hangs_is_given_up_and_the_rank_runs_on(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        state = take(tmp_path / "b", subject.sample(), config=hanging_py_spy(tmp_path, stack_seconds=2.0))
        subject.wait_for_state("SR")
    assert not state.evidence_complete
    assert state.missing[0] == "rank 0: no stack"
    assert attempts(tmp_path / "b", "release")
    assert (tmp_path / "b/ranks/0/stacks.error.json").exists()


@pytest.mark.parametrize("tracer", ["attaches", "waited"])
def test_who_was_stopped_by_somebody_else_in_our_pause_stays_stopped(tmp_path: Path, tracer: str) -> None:
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        config, sample = hanging_py_spy(tmp_path, tracer, stack_seconds=3.0), subject.sample()
        with side_that_knows(sample, config=config) as side:
            run = CaptureRun(tmp_path / "b", [sample], 1, config, node="node0", side=side)
            subject.wait_for_state("t")
            os.kill(subject.pid, signal.SIGSTOP)
            wait(run, lambda: None)
        subject.wait_for_state("T")
    assert not attempts(tmp_path / "b", "release")


@pytest.mark.parametrize("ends", ["cancel", "SIGKILL"])
def test_capture_that_ends_in_its_pause_leaves_no_rank_stopped(tmp_path: Path, ends: str) -> None:
    config = hanging_py_spy(tmp_path, stack_seconds=60.0)
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        sample = subject.sample()
        with side_that_knows(sample, config=config) as side:
            run = CaptureRun(tmp_path / "b", [sample], 1, config, node="node0", side=side)
            subject.wait_for_state("t")
            if ends == "cancel":
                run.cancel()
            else:
                os.kill(run._looking.pid, signal.SIGKILL)  # as the kernel would for memory: no handler runs
                while not run.poll().done:
                    time.sleep(0.02)
            assert subject.state() in "SR"
    assert run.poll().done
    assert run.poll().problem in ("cancelled", "the capture ended early (exit code -9)")


def test_what_a_capture_had_paused_goes_on_when_its_side_ends(tmp_path: Path) -> None:
    config = hanging_py_spy(tmp_path, stack_seconds=60.0)
    with running(SLEEPS, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        sample = subject.sample()
        with side_that_knows(sample, config=config) as side:
            run = CaptureRun(tmp_path / "b", [sample], 1, config, node="node0", side=side)
            subject.wait_for_state("t")
        assert subject.state() in "SR"
    run.cancel()


def test_capture_past_its_deadline_is_ended(tmp_path: Path) -> None:
    config = hanging_py_spy(tmp_path, stack_seconds=60.0, seconds=3.0)
    with running(SLEEPS, tmp_path / "d") as subject:
        state = take_with_problem(tmp_path / "b", subject.sample(), config)
        assert subject.state() in "SR"
    assert "did not end within" in state.problem
    assert not state.evidence_complete


def take_with_problem(bundle: Path, sample: RankSample, config: Config) -> CaptureState:
    with side_that_knows(sample, config=config) as side:
        run = CaptureRun(bundle, [sample], 1, config, node="node0", side=side)
        while not (state := run.poll()).done:
            time.sleep(0.02)
        return state


def test_a_capture_has_its_line_to_ras(tmp_path: Path) -> None:
    with running(WAITS_FOR_LOCK, tmp_path / "d") as subject:
        subject.wait_for_state("S")
        sample = replace(subject.sample(), heartbeat=Unavailable("no hook", 0))  # it may use NCCL, for all we know
        assert take(tmp_path / "b", sample).evidence_complete
    assert "take_lock" in functions(tmp_path / "b/ranks/0/stacks.json")
    said = (tmp_path / "b/nodes/node0/attempts.json").read_bytes()
    assert "nccl_ras" in {attempt.what for attempt in msgspec.json.decode(said, type=list[Attempt])}


def test_a_process_that_is_no_rank_is_not_looked_at(tmp_path: Path) -> None:
    with running(SLEEPS, tmp_path / "d") as subject, running(SLEEPS, tmp_path / "d") as other:
        rank, sample = subject.sample(), other.sample()
        with side_that_knows(rank, config=CONFIG) as side:
            run = CaptureRun(tmp_path / "b", [replace(sample, rank=1), rank], 1, CONFIG, node="node0", side=side)
            while not (state := run.poll()).done:
                time.sleep(0.02)
    assert f"process {sample.pid} is no rank" in state.problem
    assert not (tmp_path / "b/ranks/1").exists()
    assert (tmp_path / "b/ranks/0/stacks.json").exists()
