"""Which children a rank waits for: what others of them do is their own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from stallwatch.diagnosis.activity import RankActivity, read_activity
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
