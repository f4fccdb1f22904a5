"""More public reports, rebuilt from the formats with other numbers: where they are from, and what they allow to say."""

import pytest

from tests.builders.texts import RAISED, marked, ranked, timed_out, verdict
from tests.unit.diagnosis.logs import test_reports_of_more_launchers, test_reports_of_other_libraries

Accepted = tuple[tuple[str, tuple[int, ...]], ...]
UNDECIDED: tuple[str, tuple[int, ...]] = ("undecided", ())
STUCK: tuple[str, tuple[int, ...]] = ("comm_stuck", ())
MISMATCH: tuple[str, tuple[int, ...]] = ("collective_mismatch", ())


def _raised(text: str) -> str:
    return RAISED.replace("ValueError: shard 17 is empty", text)


def _waits(version: str, *ranks: int, seq: int, operation: str = "ALLREDUCE", size: int = 1) -> str:
    return "".join(timed_out(version, rank, seq, operation, size) for rank in ranks)


def _stack(call: str, place: str) -> str:
    return f"#0 {call} from /env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2968\n#1 {place}\n"


def _with_stack(rank: int, operation: str, size: int, stack: str, mark: str = "") -> str:
    mark = mark or f"[rank{rank}]:"
    head = f"{mark}[E1120 08:15:31.2 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: \n"
    return timed_out("2.8", rank, 9001, operation, size) + head + stack


_PIPELINE = _stack("broadcast", "_pp_receive from /app/runner.py:4484")
_GATHER = _stack("all_gather_into_tensor", "sample from /app/runner.py:4215")
_NOT_ALL = (
    "INFO:root:Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 "
    "(world_size=8, worker_count=7, timeout=0:30:00)\n"
)
_ABORTED = (
    "RuntimeError: NCCL communicator was aborted on rank 2.  Original reason for failure was: [Rank 2] Watchdog caught "
    "collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1809150 milliseconds before "
    "timing out."
)
_ACTOR = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 23186\n"
    "\tname: PImCvwWorkerDict_0:2\nThe actor is dead because its worker process has died. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
)
_SPAWN = RAISED[: RAISED.index("ValueError")] + "Exception: process {} terminated with signal {}\n"
_KERNEL = (
    "[Wed Jan 27 23:04:35 2021] NVRM: Xid (PCI:0000:3d:00): 43, pid=35521, Ch 00000008\n[Fri Jan 29 23:42:34 2021] "
    "NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted\n"
)
_DUMP_SIGNAL = (
    "[rank0]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a "
    "dump signal due to a collective timeout from  rank 13 and we will try our best to dump it. Last enqueued "
    "NCCL work: 1261, last completed NCCL work: 1259.\n"
)
_UNWRITTEN = (
    "SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=0"
    "OpType=BARRIER).Collectives differ in the following aspects: \t Sequence number: 1vs 0"
)

REPORTS: dict[str, tuple[str, Accepted]] = {
    "modelscope/ms-swift 10183": (
        _waits("2.8", 3, seq=7219, operation="BROADCAST", size=64)
        + _waits("2.8", 2, seq=7219, operation="BROADCAST", size=24084544) + _waits("2.8", 0, 1, seq=7221),
        (MISMATCH, ("collective_mismatch", (2, 3)))),
    "vllm-project/vllm 41160": (
        "".join(_with_stack(rank, "BROADCAST", 64, _PIPELINE) for rank in (0, 1))
        + _with_stack(2, "_ALLGATHER_BASE", 512, _GATHER) + _with_stack(3, "BROADCAST", 64, _PIPELINE, "[rank3[]:"),
        (MISMATCH, ("collective_mismatch", (2,)))),
    "wenet-e2e/wenet 2552": (
        marked(_raised("RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms"), "2024/06/05 12:08:29 "),
        (("not_entered", (1,)),)),
    "NVIDIA/nccl 849": (
        _raised("RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms"),
        (("not_entered", (4, 5, 6, 7)),)),
    "Lightning-AI/pytorch-lightning 4420": (
        "".join(_NOT_ALL.format(rank) for rank in (5, 6, 2, 1, 7, 3, 0)) * 2, (("init_missing", (4,)),)),
    "mlcommons/training 546": (_raised(_ABORTED), (UNDECIDED, STUCK)),
    "verl-project/verl 5659": (
        RAISED[: RAISED.index("ValueError")] + _ACTOR, (UNDECIDED, ("rank_exited", ()), ("rank_exited", (2,)))),
    "facebookresearch/fairseq 1608": (marked(_SPAWN.format(0, "SIGSEGV"), "> "), (("rank_exited", (0,)),)),
    "facebookresearch/fairseq 3215": (_SPAWN.format(1, "SIGKILL"), (("rank_exited", (1,)),)),
    "pytorch/pytorch 51382": (_KERNEL, (("gpu_fault", ()),)),
    "pytorch/pytorch 148976": (
        ranked(_raised("RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
                       f"CollectiveFingerPrint({_UNWRITTEN}"), 1), (MISMATCH, UNDECIDED)),
    "PrimeIntellect-ai/prime-rl 3186": (
        _DUMP_SIGNAL + timed_out("2.8", 13, 204, "ALLTOALL_BASE", 4096, place=5, name="mesh_ep", number=9),
        (UNDECIDED, STUCK)),
    "desihub/desispec 2744": (
        "[2026-04-29T23:36:37.809] error: *** STEP 52222788.0 ON nid002888 CANCELLED AT 2026-04-29T23:36:37 DUE TO "
        "TASK FAILURE ***\nsrun: error: nid002888: tasks 0-57,59-63: Terminated\n", (("rank_exited", ()), UNDECIDED)),
    "ai4d-iasc/trixie 58": (
        "srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\n", (("rank_raised", ()),)),
}  # fmt: skip

ALL = {**REPORTS, **test_reports_of_more_launchers.REPORTS, **test_reports_of_other_libraries.REPORTS}


@pytest.mark.parametrize("source", ALL)
def test_what_a_report_allows_to_say_and_no_more(source: str) -> None:
    log, accepted = ALL[source]
    found = verdict(log)
    assert (found.cause, found.culprits) in accepted, found.summary
