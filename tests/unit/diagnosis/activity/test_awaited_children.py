"""Which children a rank waits for: what others of them do is their own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.diagnosis.frames.meaning import NO_RESULT
from stallwatch.model.evidence import ChildProcess, ThreadState
from tests.builders.rank_evidence import JOB, LOADER, PID, STEP, process, rank, stack, stacks, thread

RUNS = ("Popen._wait@PY/subprocess.py:1959", "convert@JOB:7", *STEP)
LOADS = (
    "select@PY/selectors.py:415",
    "Queue.get@PY/multiprocessing/queues.py:113",
    f"_try_get_data@{LOADER}:1275",
    "load@JOB:7",
    *STEP,
)
WORKER = ("_worker_loop@TORCH/utils/data/_utils/worker.py:309", *LOADS[2:])
HELPER, AWAITED, BELOW, DARK = 801, 802, 803, 804


def reading(
    waits: tuple[str, ...],
    works: int,
    *,
    wchan: str = "do_wait",
    stacks_of: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    **thread_fields: Any,
) -> RankActivity:
    """Two looks, five seconds apart; `works` is the child that uses the CPU between them. 802 has started 803."""
    parents = {HELPER: PID, AWAITED: PID, BELOW: AWAITED, DARK: PID}
    at = {1: 10, 2: 11}  # what works goes from line to line

    def children(look: int) -> tuple[ChildProcess, ...]:
        return tuple(
            ChildProcess(pid, "S", "python", 400 * look * (pid == works), parent_pid=parent)
            for pid, parent in parents.items()
        )

    def of_children(look: int) -> Any:
        for pid, lines in stacks_of.items():
            frames = stack(f"work@JOB:{at[look] if pid == works else 10}", *lines)
            yield stacks(
                replace(thread(frames, tid=pid), pid=pid), source=f"stacks.child-{pid}-{look}.json", pid=pid, look=look
            )

    looks = (1, 2)
    main = ThreadState(PID, "python", "S", wchan=wchan, **thread_fields)
    return read_activity(
        rank(
            stacks=(
                *(stacks(thread(stack(*waits)), source=f"stacks-{look}.json", look=look) for look in looks),
                *(one for look in looks for one in of_children(look)),
            ),
            processes=tuple(
                process("S", wchan, look=look, threads=(main,), at_seconds=5 * look, children=children(look))
                for look in looks
            ),
        )
    )


def test_the_child_of_the_system_call_is_waited_for_and_what_that_one_started() -> None:
    for works, moves in ((HELPER, False), (AWAITED, True), (BELOW, True)):
        assert reading(RUNS, works, awaited_child=AWAITED).progress.moving is moves
    assert reading(RUNS, HELPER).progress.moving is True, "any of them, or nothing tells"
    assert reading(RUNS, HELPER, awaited_child=999).progress.moving is True, "it was not seen"


def test_a_loader_waits_for_its_workers() -> None:
    seen = {HELPER: (f"<module>@{JOB}:99",), AWAITED: WORKER}
    polls: dict[str, Any] = {"wchan": "do_poll", "stacks_of": seen}
    for works, moves in ((HELPER, False), (AWAITED, True), (BELOW, True), (DARK, True)):
        assert reading(LOADS, works, **polls).progress.moving is moves, works
    child = reading(LOADS, HELPER, **polls).helpers.child
    assert child is not None
    assert child.pid == AWAITED, "the helper, too, is at a line of the job's own"
    nobody = {HELPER: (f"<module>@{JOB}:99",)}
    assert reading(LOADS, HELPER, wchan="do_poll", stacks_of=nobody).progress.moving is True, "no worker was seen"


FORKED_BY = ("Popen.__init__@PY/subprocess.py:1026", "convert@JOB:7", *STEP)


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ((), "waits for a lock or a result before its program, in `preexec_fn`,"),
        (
            ("Event.wait@PY/threading.py:629", "prepare@JOB:3"),
            "waits for an event that another thread must set before its program, in `preexec_fn`,",
        ),
    ],
)
def test_a_child_that_has_not_come_to_its_program_says_what_it_does(above: tuple[str, ...], said: str) -> None:
    """It was forked by `subprocess` and has its parent's stack: "waits for a child process" was said of it."""
    mine = stack("Popen._execute_child@PY/subprocess.py:1950", *FORKED_BY)
    its = stack(*above, "Popen._execute_child@PY/subprocess.py:1885", *FORKED_BY)
    child = ChildProcess(AWAITED, "S", "python", 64, wchan="futex_do_wait", parent_pid=PID)

    def child_of(frames: Any, its: Any) -> Any:
        return read_activity(
            rank(
                stacks=(
                    stacks(thread(frames)),
                    stacks(replace(thread(its, tid=AWAITED), pid=AWAITED), source="stacks.child-802.json", pid=AWAITED),
                ),
                processes=(process("S", "anon_pipe_read", children=(child,)),),
            )
        ).helpers.child

    assert child_of(mine, its).detail == said
    assert child_of(mine, its).where == "lock"
    assert "preexec_fn" not in child_of(stack("Popen._wait@PY/subprocess.py:1959", "wait@JOB:9"), its).detail, "its own"


def test_a_pool_whose_thread_of_results_has_ended_gives_none() -> None:
    """A worker's exception could not be unpickled there; no other thread waits for it, and nobody was told that."""
    started = ("Thread.run@PY/threading.py:982", "Thread._bootstrap@PY/threading.py:1002")
    keeps = stack("wait@PY/multiprocessing/connection.py:930",
                  "Pool._handle_workers@PY/multiprocessing/pool.py:522", *started)  # fmt: skip
    reads = stack("Connection._recv@PY/multiprocessing/connection.py:395",
                  "Pool._handle_results@PY/multiprocessing/pool.py:579", *started)  # fmt: skip
    frames = stack("Condition.wait@PY/threading.py:327", "ApplyResult.wait@PY/multiprocessing/pool.py:768",
                   "Pool.map@PY/multiprocessing/pool.py:367", "tokenise@JOB:4", *STEP)  # fmt: skip

    def of(*beside: Any) -> RankActivity:
        others = [thread(its, name=f"Thread-{tid}", tid=tid) for tid, its in enumerate(beside, 701)]
        return read_activity(
            rank(
                frames,
                stacks=(stacks(thread(frames), *others),),
                processes=(process("S", "futex_wait_queue", children=(ChildProcess(801, "R", "python", 64),)),),
            )
        )

    assert of(keeps, reads).progress.ends_by_itself == of().progress.ends_by_itself == "child"
    assert of(keeps).progress.ends_by_itself is None
    assert of(keeps).place.detail == NO_RESULT


def test_of_a_program_s_own_ranks_the_one_that_the_others_wait_for_is_told() -> None:
    """A rank runs an evaluation by torchrun, whose first process is in a barrier to which its second does not come."""
    c10d = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    met = stack(f"barrier@{c10d}:5356", "evaluate@JOB:30", *STEP)
    reads = stack("load@JOB:25", "evaluate@JOB:29", *STEP)

    def told(**stacks_of: Any) -> int | None:
        pids = {"first": AWAITED, "second": BELOW}
        beneath = [
            (pids[name], replace(thread(its, tid=pids[name]), pid=pids[name])) for name, its in stacks_of.items()
        ]
        seen = rank(
            stacks=(
                stacks(thread(stack(*RUNS))),
                *(stacks(its, source=f"stacks.child-{pid}.json", pid=pid) for pid, its in beneath),
            ),
            processes=(
                process("S", "do_wait", children=tuple(ChildProcess(pid, "S", "python") for pid, _ in beneath)),
            ),
        )
        child = read_activity(seen).helpers.child
        return child.pid if child else None

    assert told(first=met, second=reads) == BELOW
    assert told(first=reads, second=met) == AWAITED
    assert told(first=met) == AWAITED
