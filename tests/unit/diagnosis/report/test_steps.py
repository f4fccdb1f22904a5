"""Next steps: specific, with real hosts and pids, and harmless."""

import re
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from stallwatch.diagnosis import claims
from stallwatch.diagnosis.activity.blocking_location import WAITS_FOR_WORKERS
from stallwatch.diagnosis.activity.flat import FlatActivity, unflatten
from stallwatch.diagnosis.activity.kernel_waits import WAITS_FOR_MEMORY
from stallwatch.diagnosis.frames.meaning import LOOKS_UP_A_NAME
from stallwatch.diagnosis.report.steps import deadline, next_steps, safety
from stallwatch.diagnosis.step import NextStep, text_of
from stallwatch.model.hook_report import Handled
from stallwatch.model.verdict import Cause, Confidence, CulpritProcess, Frame, Mismatch, Verdict, Where

LINE = Frame("/srv/job/train.py", 88, "load")
ENDS: tuple[dict[str, Any], ...] = (
    {}, {"exit_signal": 9}, {"exit_signal": 9, "out_of_memory": True}, {"exit_signal": 11}, {"exit_signal": 99},
    {"exit_code": 0}, {"exit_code": 1, "exception": "ValueError: x", "exception_frame": LINE},
)  # fmt: skip
# Causes of which a claim brings steps of its own, whatever its culprits stand in.
BROUGHT = {
    cause
    for text in (path.read_text(encoding="utf-8") for path in Path(claims.__path__[0]).glob("*.py"))
    for cause in get_args(Cause)
    if f'cause="{cause}"' in text and "steps=(\n" in text
}


def steps(cause: Cause, *culprits: int, **fields: Any) -> tuple[str, ...]:
    """The texts of `marked_steps`."""
    return tuple(map(text_of, marked_steps(cause, *culprits, **fields)))


def marked_steps(cause: Cause, *culprits: int, **fields: Any) -> tuple[NextStep, ...]:
    """Steps for culprits that all do the same, as they are told now and when the job is over; `fields` are of their
    activity."""
    values: dict[str, Any] = {"host": "node7", "pid": 4711, "where": "lock", "frame": LINE, "detail": "waits"} | fields
    mismatch = values.pop("mismatch", None)
    missing = values.pop("missing", ())
    activities = {rank: unflatten(FlatActivity(rank=rank, **values)) for rank in culprits}
    processes = tuple(
        CulpritProcess(rank, values["host"], values["pid"], None, values["where"], values["frame"]) for rank in culprits
    )
    confidence: Confidence = "certain"
    told = Verdict(
        cause, culprits, confidence, "", culprit_processes=processes, where=values["where"], mismatch=mismatch,
        missing=missing, waiting="0-1",
    )  # fmt: skip
    return next_steps(told, activities)


@pytest.mark.parametrize("where", get_args(Where))
def test_a_stuck_rank_gets_commands_for_its_host_and_pid(where: Where) -> None:
    told = steps("not_entered", 2, where=where)
    assert 2 <= len(told) <= 4
    assert "node7" in told[0]
    assert "4711" in told[0]
    assert any("/srv/job/train.py:88 in load" in step for step in told)


def test_every_place_has_steps_of_its_own() -> None:
    kinds = {steps("not_entered", 2, where=where)[1] for where in get_args(Where)}
    # checkpoint and filesystem share theirs, as do store and init, and user_code and unknown.
    assert len(kinds) == len(get_args(Where)) - 3


@pytest.mark.parametrize(
    ("fields", "told_first"),
    [
        ({"where": "user_code", "waits_for_children": True}, "ps -o pid,stat,wchan:32,etime,args --ppid 4711"),
        ({"where": "lock", "waits_for_children": True, "child_pid": 802, "child_frame": LINE}, "py-spy dump --pid 802"),
        ({"where": "filesystem", "detail": "waits for the other end of a pipe"}, "/proc/4711/fd | grep pipe"),
        (
            {"where": "filesystem", "detail": "waits for a terminal", "waits_on": "terminal /dev/pts/3 of node7"},
            "fuser -v /dev/pts/3",
        ),
        ({"where": "store", "detail": "waits for the store"}, "a key of the store that nobody has set"),
        ({"where": "socket", "awaited_frame": LINE}, "the thread of its executor at /srv/job/train.py:88"),
        ({"where": "lock", "detail": "waits for a database"}, "which database"),
        ({"where": "user_code", "detail": "waits for input from a person"}, "/proc/4711/fd/0"),
    ],
)
def test_a_wait_that_names_its_object_gets_steps_for_that(fields: dict[str, Any], told_first: str) -> None:
    told = steps("not_entered", 2, **fields)
    assert told_first in told[0]
    assert "/srv/job/train.py:88 in load" in told[0]
    assert not any("mount" in step for step in told)


def test_a_queue_of_threads_asks_for_the_thread_at_its_other_end() -> None:
    """A prefetcher that had died of an exception: people were told of locks and of forks."""
    told = steps("not_entered", 2, detail="waits for a queue")
    assert "the thread at the other end of the queue" in told[0]
    assert "Exception in thread" in told[1]
    assert not any("lock" in step for step in told)


def test_only_the_lock_of_a_build_is_looked_for_among_builds() -> None:
    build = steps("not_entered", 2, shared_lock="lock_file", detail="waits for a build lock file of another process")
    assert "ninja" in " ".join(build)
    other = steps("not_entered", 2, shared_lock="lock_file", detail="waits for a lock file of another process")
    assert "ninja" not in " ".join(other)
    assert "torch_extensions" not in " ".join(other)
    assert "lslocks" in other[0]


def test_who_has_no_child_is_sent_to_no_children() -> None:
    """A rank of mp.spawn whose parent feeds it: `ps --ppid` of the rank shows nothing."""
    waits = {"detail": "waits for another process", "waits_for_children": True}
    told = steps("not_entered", 2, **waits)
    assert "none of its children" in told[0]
    assert "ps -o ppid= -p 4711" in told[0]
    assert not any("that child" in step for step in told)
    assert "its children do" in steps("not_entered", 2, **waits, child_pids=(801,))[0]


def test_who_waits_for_memory_is_sent_to_its_limit() -> None:
    told = steps("not_entered", 2, detail=WAITS_FOR_MEMORY, uninterruptible=True, where="user_code")
    assert "memory.max" in told[0]
    assert not any("mount" in step for step in told)


def test_loader_workers_are_named_by_their_pids() -> None:
    told = steps("not_entered", 2, where="dataloader", waits_for_children=True, child_pids=(801, 802))
    assert "for p in 801 802; do py-spy dump --pid $p; done" in told[0]
    stuck = steps("not_entered", 2, where="dataloader", waits_for_children=True, child_pid=802, child_frame=LINE)
    assert "its worker 802 is at /srv/job/train.py:88 in load" in stuck[0]


def test_a_process_in_state_d_is_never_attached_to() -> None:
    for where in get_args(Where):
        told = steps("not_entered", 2, where=where, uninterruptible=True)
        assert not any("py-spy" in step or "gdb" in step for step in told)
        assert "/proc/4711/wchan" in told[0]


def test_a_stopped_process_is_continued_and_not_dumped() -> None:
    told = steps("process_stopped", 2, stopped=True)
    assert "`kill -CONT 4711`" in told[0]
    assert not any("py-spy" in step for step in told)
    assert not any("-CONT" in step for step in steps("process_stopped", 2, stopped=True, tracer_pid=41))


def test_a_frozen_process_is_thawed_with_its_control_group() -> None:
    told = steps("process_stopped", 2, stopped=True, frozen=True)
    assert "/proc/4711/cgroup" in told[0]
    assert not any("-CONT" in step for step in told), "a signal does not thaw"


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ({"exit_signal": 9}, "oom-kill"),
        ({"exit_signal": 9, "out_of_memory": True}, "killed process 4711"),
        ({"exit_signal": 11}, "coredumpctl info 4711"),
        ({"exit_signal": 7}, "`df -h /dev/shm`"),
        ({"exit_signal": 7}, "truncated"),
        ({"exit_code": 1}, "traceback of rank 2"),
        ({"exit_code": 0}, "ended without an error"),
    ],
)
def test_a_death_is_looked_into_by_how_it_came(ended: dict[str, Any], expected: str) -> None:
    assert any(expected in step for step in steps("rank_exited", 2, gone=True, **ended))


def test_a_mismatch_shows_both_sides_and_how_to_confirm() -> None:
    told = steps("collective_mismatch", 2, mismatch=Mismatch("size", "[4]", "[8]"))
    assert "rank 2 has [8], the others [4]" in told[0]
    assert any("TORCH_DISTRIBUTED_DEBUG=DETAIL" in step for step in told)


def test_a_rank_stuck_before_the_rendezvous_gets_the_steps_of_its_place() -> None:
    assert "py-spy dump" in steps("init_missing", 2, where="lock")[0]
    assert "started at all" in steps("init_missing", 2, where="unknown", frame=None)[0]


def test_undecided_names_what_is_missing() -> None:
    assert "Missing: the stacks of rank 3." in steps("undecided", missing=("the stacks of rank 3.",))


def test_further_culprits_are_counted_where_a_command_carries_one_pid() -> None:
    assert "the same holds for 2 more: ranks 2-4" in steps("not_entered", 2, 3, 4)[0]
    assert "the same holds" not in steps("collective_mismatch", 2, 3)[0]


# Advice that trades one fault for another.
_HARMFUL = re.compile(
    r"BLOCKING_WAIT|NCCL_(?:P2P|IB|SHM)_DISABLE|CUDA_LAUNCH_BLOCKING|setenforce|systemctl (?:stop|disable)"
    r"|iptables -F|ufw|pkill|killall|kill -9|tcp_fin_timeout|find_unused_parameters|ptrace_scope|rm -rf|chmod 777",
    re.IGNORECASE,
)


@pytest.mark.parametrize("cause", get_args(Cause))
@pytest.mark.parametrize("culprits", [(), (2,), (2, 5)])
def test_every_cause_has_two_to_four_harmless_steps(cause: Cause, culprits: tuple[int, ...]) -> None:
    for where in get_args(Where):
        for ended in ENDS:
            for known in ({}, {"host": None, "pid": None, "frame": None}):
                told = steps(cause, *culprits, **({"where": where} | ended | known))
                assert (2 <= len(told) <= 4) or (not told and cause in (*BROUGHT, "healthy", "job_ended")), (
                    f'no claim has both cause="{cause}" and steps=( with a new line, nor has report/steps.py any'
                )
                for step in told:
                    assert not _HARMFUL.search(step)
                    assert "None" not in step
                    assert "  " not in step
                    assert step[0].isupper()
                    assert step.endswith((".", ")")), step


@pytest.mark.parametrize(
    ("cause", "mismatch"),
    [("data_exhausted", None), ("collective_mismatch", Mismatch("op", expected="all_reduce", found="barrier"))],
)
def test_who_stands_in_a_barrier_may_have_left_its_loop_for_what_nothing_recorded(
    cause: Cause, mismatch: Mismatch | None
) -> None:
    """The end of data, a signal and a swallowed exception lead to the same call."""
    told = steps(cause, 2, mismatch=mismatch)
    assert any("swallowed" in step and "log" in step for step in told)


def test_another_operation_of_the_loop_is_no_end_of_it() -> None:
    told = steps("collective_mismatch", 2, mismatch=Mismatch("op", expected="all_reduce", found="all_gather"))
    assert not any("swallowed" in step for step in told)


class Told(NamedTuple):
    """A report, as far as it says whether the job may be ended."""

    verdicts: tuple[Verdict, ...]
    evidence_complete: bool = True
    deadline: str | None = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("cause", "complete", "says", "ends"),
    [
        ("not_entered", True, "safe to kill", True),
        ("not_entered", False, "loses some of it", True),
        ("waiting", True, "may end by itself", True),
        ("slow_rank", True, "nothing has to be ended", False),
        ("healthy", True, "nothing has to be ended", False),
        (None, True, "safe to kill", True),
    ],
)
def test_whether_the_job_may_be_ended_and_when_torch_ends_it(
    cause: Cause | None, complete: bool, says: str, ends: bool
) -> None:
    report = Told((Verdict(cause, (), "likely", ""),) if cause else (), complete)
    assert says in safety(report)
    assert (deadline(report) is not None) == ends


def test_a_rank_that_a_debugger_holds_is_continued_there() -> None:
    (step,) = steps("not_entered", 2, tracer_pid=99)
    assert "debugger (pid 99)" in step and "4711" in step


def test_of_a_name_that_is_looked_up_the_name_servers_are_asked() -> None:
    told = " ".join(steps("not_entered", 2, where="socket", detail=LOOKS_UP_A_NAME))
    assert "resolv.conf" in told and "getent hosts" in told
    assert "ss -" not in told, "it is connected to nobody yet"


def test_whom_a_rank_talks_to_may_be_by_any_kind_of_socket() -> None:
    """syslog's is one of the host's own, a metrics server's one of UDP: `ss -t` shows neither."""
    (command,) = re.findall(r"`ss (-\w+)", steps("not_entered", 2, where="socket")[0])
    assert set("tuxanp") <= set(command)


def test_what_is_done_on_account_of_an_exception_begins_with_that() -> None:
    """A retry's pause was told as a branch on the rank, or more data."""
    raised = {"exception": "OSError", "exception_frame": LINE, "handled": Handled("OSError", ())}
    for where in ("user_code", "socket", "filesystem"):
        first = steps("not_entered", 2, where=where, **raised)[0]
        assert "on account of OSError, raised at /srv/job/train.py:88 in load" in first
    for orderly in ({}, {"handled": Handled("StopIteration", ())}):
        assert not any("on account" in step for step in steps("not_entered", 2, where="user_code", **orderly))


def test_who_opens_a_store_is_told_whom_it_waits_for() -> None:
    told = " ".join(steps("not_entered", 2, where="store", detail=WAITS_FOR_WORKERS))
    assert "wait_for_workers=False" in told and "new_group" not in told
