"""All ranks wait for a process of their own each, and most of these are in a collective of theirs."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import ChildProcess, Evidence, RankEvidence
from stallwatch.model.verdict import Verdict
from tests.builders.rank_evidence import C10D, MODULE, Frames, process, rank, stack, stacks, thread

_EXECUTOR = "TORCH/distributed/checkpoint/_async_process_executor.py"
_RESULT = stack(
    "Condition.wait@PY/threading.py:327", "Future.result@PY/concurrent/futures/_base.py:451", "save@JOB:30", MODULE
)
_THREAD = stack(
    "select@PY/selectors.py:415", "_wait_for_response@" + _EXECUTOR + ":160",
    "_execute_save_impl@" + _EXECUTOR + ":388",
    "_WorkItem.run@PY/concurrent/futures/thread.py:58", "_bootstrap@PY/threading.py:1002",
)  # fmt: skip
_SAVE = (
    "save@TORCH/distributed/checkpoint/state_dict_saver.py:196", "_execute_save@" + _EXECUTOR + ":216",
    "_checkpointing_subprocess@" + _EXECUTOR + ":306", "BaseProcess.run@PY/multiprocessing/process.py:108",
)  # fmt: skip
GATHERS = stack("all_gather@" + C10D + ":4287", "gather_object@" + C10D + ":3631", *_SAVE)
WRITES = stack("write_data@TORCH/distributed/checkpoint/filesystem.py:700", *_SAVE)
WRITES_BY_THE_JOB = stack("Path.read_bytes@PY/pathlib.py:1051", "write_data@JOB:24", *_SAVE)
IDLE = stack("Connection.recv@PY/multiprocessing/connection.py:250", *_SAVE[2:])


def _rank(number: int, child: Frames, *, ticks: int = 0, main: Frames = _RESULT) -> RankEvidence:
    looks = (1, 2)
    worker = stack("main@PY/multiprocessing/resource_tracker.py:239")
    return rank(
        rank=number,
        stacks=tuple(
            one
            for look in looks
            for one in (
                stacks(thread(main), thread(_THREAD, name="ThreadPoolExecutor-0_0", tid=701), look=look),
                stacks(replace(thread(worker, tid=801), pid=801), look=look, source="stacks.child-801.json", pid=801),
                stacks(replace(thread(child, tid=802), pid=802), look=look, source="stacks.child-802.json", pid=802),
            )
        ),
        processes=tuple(
            process(
                "S",
                "futex_do_wait",
                look=look,
                at_seconds=10 * look,
                children=(ChildProcess(801, "S", "python", 2), ChildProcess(802, "S", "python", 100 + ticks * look)),
            )
            for look in looks
        ),
    )


def _judged(*ranks: RankEvidence, world_size: int = 4) -> Verdict:
    return judge(Evidence(world_size, "gloo", ranks, (), (), looks=2)).verdicts[0]


@pytest.mark.parametrize("stands", [WRITES, WRITES_BY_THE_JOB])
def test_whose_process_has_not_come_to_the_collective_of_the_others_holds_all_up(stands: Frames) -> None:
    verdict = _judged(_rank(0, GATHERS), _rank(1, GATHERS), _rank(2, stands), _rank(3, GATHERS))
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (2,), "checkpoint"), verdict.summary
    assert (verdict.confidence, verdict.waiting, verdict.ends_by_itself) == ("likely", "0-1,3", "child")
    assert "its child process 802" in verdict.summary


@pytest.mark.parametrize(
    "ranks",
    [
        [_rank(number, GATHERS) for number in range(4)],  # all are there
        [_rank(0, GATHERS), _rank(1, GATHERS), _rank(2, WRITES, ticks=200), _rank(3, GATHERS)],  # it works
        [_rank(0, GATHERS), _rank(1, GATHERS), _rank(2, IDLE), _rank(3, GATHERS)],  # it waits to be told
        [_rank(0, GATHERS), _rank(1, WRITES), _rank(2, WRITES), _rank(3, GATHERS)],
        [_rank(0, GATHERS), _rank(1, GATHERS), _rank(2, WRITES)],  # of one rank nothing is known
        [_rank(0, GATHERS), _rank(1, GATHERS), _rank(2, WRITES), _rank(3, GATHERS, main=_RESULT[2:])],  # it trains
    ],
)
def test_nobody_is_named_where_that_is_not_so(ranks: list[RankEvidence]) -> None:
    assert _judged(*ranks).culprits == ()
