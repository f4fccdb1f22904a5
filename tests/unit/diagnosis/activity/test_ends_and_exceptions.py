"""How a rank ended and what it raised; and that no evidence, however odd, makes its reading fail."""

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.activity.kernel_waits import kernel_wait
from stallwatch.diagnosis.activity.rank_activity import RaisedException, last_exception
from stallwatch.diagnosis.frames.code_origin import hint
from stallwatch.model.evidence import (
    SHARED_LOG,
    Attempt,
    ChildProcess,
    CodeFrame,
    ProcessLook,
    RankEvidence,
    SourceLine,
    Stacks,
    ThreadStack,
    ThreadState,
)
from tests.builders.rank_evidence import (
    C10D,
    JOB,
    MODULE,
    PID,
    WAITS,
    logged,
    own_record,
    process,
    rank,
    stack,
)


def test_a_zombie_is_gone_with_its_signal() -> None:
    activity = read_activity(rank(processes=(process("Z", exit_signal=9, out_of_memory=True),)))
    assert (activity.end.gone, activity.end.exit_signal, activity.end.out_of_memory) == (True, 9, True)
    assert activity.call.in_collective is False


def test_a_hook_that_said_its_last_word_does_not_bury_a_live_process() -> None:
    assert not read_activity(rank(heartbeat=(own_record(ended=True),))).end.gone
    assert read_activity(RankEvidence(2, None, PID, heartbeat=(own_record(ended=True),))).end.gone


LOG = (
    "[rank2]: Traceback (most recent call last):",
    f'[rank2]:   File "{JOB}", line 88, in load',
    "[rank2]:     raise ValueError('bad shard')",
    '[rank2]:   File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 9, in check',
    "[rank2]: ValueError: bad shard",
)


def test_an_exception_is_read_from_the_log_with_the_jobs_line() -> None:
    raised = last_exception(logged(*LOG), 2)
    assert raised is not None
    assert (raised.text, raised.is_consequence) == ("ValueError: bad shard", False)
    assert raised.frame is not None
    assert (raised.frame.line, raised.frame.function) == (88, "load")
    assert last_exception(logged(*LOG), 1) is None


def test_a_traceback_that_names_nobody_in_a_file_of_several_ranks_is_nobodys() -> None:
    anybody = tuple(line.removeprefix("[rank2]: ") for line in LOG)
    assert last_exception(logged(*anybody), 2) is not None
    assert last_exception(logged(*anybody), 2, shared=True) is None
    assert last_exception(logged(*LOG), 2, shared=True) is not None
    attempts = (Attempt("log", 1, 0, True, SHARED_LOG),)
    assert read_activity(rank(log=anybody, attempts=attempts)).exceptions.text is None
    assert read_activity(rank(log=LOG, attempts=attempts)).exceptions.text == "ValueError: bad shard"


REFUSED = (
    "Traceback (most recent call last):",
    f'  File "{JOB}", line 6, in <module>',
    "RuntimeError: Gloo connectFullMesh failed with [/x/pair.cc:152] timed out connecting: Connection refused",
)


def test_what_a_hook_knows_by_its_type_is_told_by_the_one_such_exception_that_names_nobody() -> None:
    """Before a rank has its group torch puts no rank before its traceback: "after RuntimeError" was said, and who had
    only not reached its peer was the cause."""
    attempts, beat = (Attempt("log", 1, 0, True, SHARED_LOG),), (own_record(ended=True, exception="RuntimeError"),)

    def raised(*lines: str) -> RaisedException | None:
        return read_activity(rank(log=lines, attempts=attempts, heartbeat=beat)).exceptions.raised

    told = raised(*LOG, *REFUSED)
    assert told is not None
    assert told.text.startswith("RuntimeError: Gloo connectFullMesh failed")
    assert (told.is_consequence, told.frame is not None) == (True, True)
    own = REFUSED[:2]
    for lines in (
        (*own, "RuntimeError: bad batch", *REFUSED),
        (*REFUSED, *REFUSED),
        (*own, "ValueError: bad batch"),
        LOG,
    ):
        of_nobody = raised(*lines)
        assert of_nobody is not None
        assert (of_nobody.text, of_nobody.is_consequence) == ("RuntimeError", False), lines
    assert (alike := raised(*own, "RuntimeError: no such file", *own, "RuntimeError: no such file")) is not None
    assert alike.text == "RuntimeError: no such file"


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: [/x/pair.cc:553] Connection closed by peer [127.0.0.1]:18849.",
        "RuntimeError: [/x/unbound_buffer.cc:129] Timed out waiting 10000ms for recv operation to complete",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
    ],
)
def test_an_exception_about_a_lost_peer_is_a_consequence(last: str) -> None:
    raised = last_exception(logged("Traceback (most recent call last):", last), 2)
    assert raised is not None
    assert raised.is_consequence


def test_an_exception_of_a_live_rank_is_swallowed_unless_it_is_ending() -> None:
    waits = read_activity(rank(stack(*WAITS), "S", "futex_do_wait", log=LOG)).exceptions.raised
    assert waits is not None
    assert waits.swallowed
    ending = stack(f"destroy_process_group@{C10D}:1", "main@JOB:3", MODULE)
    activity = read_activity(rank(ending, "S", "futex_do_wait", log=LOG))
    assert activity.place.in_teardown
    assert activity.exceptions.raised is not None
    assert not activity.exceptions.raised.swallowed


def test_the_hooks_word_on_an_exception_comes_before_the_log() -> None:
    activity = read_activity(rank(stack(*WAITS), heartbeat=(own_record(exception="KeyError"),)))
    assert activity.exceptions.text == "KeyError"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("libc.usleep(5000)", "sleep"), ("nanosleep(pause, None)", "sleep"),
        ("signal.pause()", "signal"), ("got = signal.sigwait({signal.SIGUSR2})", "signal"),
    ],
)  # fmt: skip
def test_the_line_names_a_sleep_in_native_code_and_a_signal(line: str, kind: str) -> None:
    assert hint(line) == kind


@pytest.mark.parametrize(("wchan", "does"), [("__do_sys_pause", "waits for a signal"), ("do_syscall_64", "sleeps")])
def test_the_kernel_says_what_a_wait_in_native_code_is(wchan: str, does: str) -> None:
    place = read_activity(rank(stack("reset_card@JOB:4", MODULE), "S", wchan)).place
    assert (place.where, place.detail) == ("user_code", does)


@pytest.mark.parametrize(
    ("wchan", "state", "kind"),
    [
        ("mem_cgroup_oom_synchronize", "D", "memory"),
        ("futex_wait_queue_me", "S", "futex"), ("poll_schedule_timeout.constprop.0", "S", "poll"),
        ("unix_stream_read_generic", "S", "socket"), ("kernel_clone", "D", "vfork"), ("do_wait", "S", "child"),
        ("anon_pipe_read", "S", "pipe"), ("rpc_wait_bit_killable", "D", "file"), ("some_new_driver", "D", "file"),
        ("read_events", "S", "file"), ("io_cqring_wait", "S", "file"), ("__do_semtimedop", "S", "semaphore"),
        ("do_wait_intr_irq", "S", "futex"), ("__do_sys_pause", "S", "signal"), ("do_sigtimedwait", "S", "signal"),
        ("do_syscall_64", "S", "sleep"), ("do_syscall_64", "D", "file"),
        ("some_new_driver", "S", None), ("0", "R", None), (None, None, None), ("futex_do_wait", "T", "stopped"),
    ],
)  # fmt: skip
def test_the_kernels_symbol_names_the_kind_of_wait(wchan: str | None, state: str | None, kind: str | None) -> None:
    assert kernel_wait(wchan, state) == kind


# Properties

words = st.sampled_from(["", "wait", "Condition.wait", "all_reduce", "<module>", "main.<locals>.step", "\x00", "…"])
paths = st.sampled_from(["", "<string>", JOB, "/usr/lib/python3.11/threading.py", f"/v/site-packages/torch/{C10D[6:]}"])
frame_lists = st.lists(st.builds(CodeFrame, words, paths, st.integers(-1, 9)), max_size=5).map(tuple)
letters = st.sampled_from([None, "R", "S", "D", "T", "Z", "?"])
symbols = st.sampled_from([None, "", "0", "futex_do_wait", "do_poll", "nfs_x", "\n"])
ids = st.sampled_from([None, 0, PID, 801])
thread_stacks = st.builds(ThreadStack, words, ids, st.booleans(), st.booleans(), frame_lists, ids, ids)
stack_looks = st.builds(
    Stacks, st.sampled_from(["stacks.json", "stacks.child-801.json"]), st.integers(0, 3), ids,
    st.lists(thread_stacks, max_size=4).map(tuple), st.sampled_from([None, "denied"]),
)  # fmt: skip
process_looks = st.builds(
    ProcessLook, source=st.just("process.json"), look=st.integers(0, 3), pid=ids, state=letters,
    exit_code=st.sampled_from([None, 0, 1]), exit_signal=st.sampled_from([None, 9]), wchan=symbols,
    cpu_ticks=st.integers(0, 9) | st.none(),
    threads=st.lists(
        st.builds(ThreadState, st.integers(0, 801), words, letters, st.none() | st.integers(0, 9)), max_size=2
    ).map(tuple),
    children=st.lists(st.builds(ChildProcess, st.integers(0, 801), words), max_size=2).map(tuple),
)  # fmt: skip
evidence_of_a_rank = st.builds(
    RankEvidence, st.just(2), st.none(), ids, st.just(()), st.lists(stack_looks, max_size=4).map(tuple),
    st.lists(process_looks, max_size=3, unique_by=lambda look: look.look).map(tuple),
    st.lists(st.just(own_record()), max_size=3).map(tuple), st.just(()),
    st.lists(st.sampled_from([*LOG, "", "\x1b[31m", "Error: x"]), max_size=6).map(tuple),
    sources=st.lists(st.builds(SourceLine, paths, st.integers(-1, 9), words), max_size=2).map(tuple),
)  # fmt: skip


# Without hypothesis' explanations, which take minutes on values of this size.
@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(evidence_of_a_rank)
def test_odd_evidence_never_raises_and_order_is_irrelevant(evidence: RankEvidence) -> None:
    backwards = msgspec.structs.replace(
        evidence,
        stacks=tuple(msgspec.structs.replace(s, threads=s.threads[::-1]) for s in reversed(evidence.stacks)),
        processes=evidence.processes[::-1],
        sources=evidence.sources[::-1],
    )
    assert read_activity(evidence) == read_activity(backwards)
