"""Public reports of Ascend's HCCL, of heartbeats and of first uses, rebuilt with other numbers; and two of which the
recorders are rebuilt. What each allows to say was written down before it was judged."""

import pytest

from stallwatch.diagnosis import judge
from tests.builders.job import SLEEPS, Call, Rank, evidence, world
from tests.builders.texts import RAISED, marked, ranked, timed_out, told

Accepted = tuple[tuple[str, tuple[int, ...]], ...]
UNDECIDED: tuple[str, tuple[int, ...]] = ("undecided", ())
STUCK: tuple[str, tuple[int, ...]] = ("comm_stuck", ())
MISMATCH: tuple[str, tuple[int, ...]] = ("collective_mismatch", ())

_HCCL_TIMEOUT = (
    "[rank{0}]:[E311 09:00:25.4 compiler_depend.ts:574] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkHCCL(SeqNum=77, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before timing out.\n"
)
_EI0002 = (
    "[ERROR] 2025-03-11-09:09:34 (PID:69, Device:0, RankID:{0}) ERR00100 PTA call acl api failed.\nEI0002: [PID: 69] "
    "2025-03-11-09:09:34.713.335 The wait execution of the Notify register times out. Reason: The Notify register has "
    "not received the Notify record from remote rank: [{1}]. base information: [tag[AllReduce]]\n"
)
_EI0006 = (
    "\n[ERROR] 2025-03-08-18:07:20 (PID:1292, Device:1, RankID:1) ERR01100 OPS call acl api failed.\nEI0006: "
    "Getting socket times out. Reason: Remote Rank did not send the data in time."
)


def _raised(text: str) -> str:
    return RAISED.replace("ValueError: shard 17 is empty", text)


def _hccl(call: str, code: int) -> str:
    place = (
        "torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS" if "All" in call else "build/compiler_depend.ts:312 HCCL"
    )
    return f"RuntimeError: InnerRunOpApi:{place} function error: {call}, error code is {code}"


def _stuck(rank: int, group: str, at: str) -> str:
    return (
        f"[rank{rank}]:[E205 {at} ProcessGroupNCCL.cpp:1870] [PG ID 1 PG GUID 9({group}) Rank {rank}] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring collectives.\n"
    )


def _table(*ends: tuple[int, int, str]) -> str:
    """The first is what torchrun saw first."""
    blocks = [
        f"[{place}]:\n  time      : 2026-03-07_13:{at}\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {7000 + rank})\n  error_file: <N/A>\n  traceback : see the manual\n"
        for place, (rank, code, at) in enumerate(ends)
    ]
    return "Failures:\n" + "".join(blocks[1:]) + "Root Cause (first observed failure):\n" + blocks[0] + "=" * 60 + "\n"


_REDUCES = ranked(_raised(_hccl("HcclReduce(data, op, root)", 5)), 1)
_ENDS = _table((1, 1, "02:58"), (3, 1, "02:58"), (0, -9, "03:29"), (2, -15, "03:29"))
_ABORT = "n0:51:95 [{0}] NCCL INFO comm 0x9bc5a80 rank {1} nranks 16 cudaDev {0} busId 4e000 - Abort COMPLETE\n"
_CLOSED = "n0:51:95 [{}] NCCL INFO [Service thread] Connection closed by localRank 3\n"

REPORTS: dict[str, tuple[str, Accepted]] = {
    "vllm-project/vllm-ascend 382": (_HCCL_TIMEOUT.format(1) + _HCCL_TIMEOUT.format(0), (UNDECIDED, STUCK)),
    "vllm-project/vllm-ascend 3413": (marked(_EI0002.format(101, 24), "(WorkerDict pid=69) "), (UNDECIDED,)),
    "vllm-project/vllm-ascend 486": (ranked(_raised(_hccl("HcclAllreduce", 6) + _EI0006), 1), (UNDECIDED,)),
    "vllm-project/vllm-ascend 1443": (
        marked(_raised("RuntimeError: npuSynchronizeDevice:build/compiler_depend.ts:479 NPU function error: "
                       "AclrtSynchronizeDeviceWithTimeout, error code is 507048\n" + _EI0002.format(8, "unknown")),
               "(train pid=84) "), (UNDECIDED,)),
    "vllm-project/speculators 1115": (
        _REDUCES + _ENDS, (("rank_raised", (1,)), ("rank_exited", (1,)), ("rank_exited", (1, 3)))),
    "modelscope/ms-swift 7992": (
        "Train: 100%|##########| 1200/1200 [3:20:00<00:00, 10.0s/it]\n{'train_runtime': 12000.1, 'epoch': 1.0}\n"
        + "".join(_stuck(rank, "EXPERT_MODEL_PARALLEL_GROUP", "18:11:06.3") for rank in (4, 0, 2, 6)),
        (UNDECIDED, ("job_ended", ()))),
    "hiyouga/LlamaFactory 8549": (
        "".join(_stuck(rank, "default_pg", "13:48:58.2") for rank in (2, 1, 0, 3)), (UNDECIDED, STUCK)),
    "snowflakedb/ArcticTraining 219": (
        _stuck(7, "default_pg", "05:14:36.3") + timed_out("2.6", 2, 12004, "_ALLGATHER_BASE", 1600)
        + _stuck(5, "default_pg", "05:14:36.4"), (UNDECIDED, STUCK)),
    "NVIDIA-NeMo/Megatron-Bridge 943": (
        timed_out("2.8", 10, 1, "COALESCED", 2**64 - 1, place=1, name="PIPELINE_MODEL_PARALLEL_GROUP", number=6),
        (UNDECIDED, STUCK)),
    "modelscope/FunASR 2006": (
        _CLOSED.format(0) + _CLOSED.format(2) + _ABORT.format(3, 11)
        + "".join(timed_out("2.3", rank, 15734) for rank in (11, 12)), (UNDECIDED, STUCK)),
}  # fmt: skip


def test_buffers_that_each_rank_broadcasts_in_an_order_of_its_own_blame_nobody() -> None:
    """verl 6365: named_buffers() of a wrapped model; two of four ranks begin with the larger one."""
    group = world(4)
    start = tuple(Call(group, "all_gather", 512, line=40) for _ in range(3))
    buffers = tuple(Call(group, "broadcast", size, line=71) for size in (256, 128))
    ranks = [Rank(r, (*start, *buffers[:: -1 if r % 2 else 1]), len(start)) for r in range(4)]
    found = judge(evidence(*ranks)).verdicts[0]
    assert (found.cause, found.culprits) == MISMATCH
    assert "ranks 0,2" in found.summary and "ranks 1,3" in found.summary


def test_who_has_fewer_micro_batches_meets_the_others_in_another_call() -> None:
    """verl 6176: without the group's maximum each rank has as many as its tokens fill; rank 2 has one less."""
    group = world(4)

    def step(micro: int) -> tuple[Call, ...]:
        forward = tuple(Call(group, "_all_gather_base", 4096, line=60) for _ in range(micro))
        return *forward, Call(group, "all_reduce", 1, line=99)

    past = step(3) * 4
    others = [Rank(r, (*past, *step(3)), len(past) + 2) for r in (0, 1, 3)]
    found = judge(evidence(*others, Rank(2, (*past, *step(2)), len(past) + 2, frames=SLEEPS))).verdicts[0]
    assert found.culprits == (2,), found.summary
    assert found.cause in ("collective_mismatch", "data_exhausted", "not_entered")


_EI0015 = (
    "\n[ERROR] 2026-11-29-20:01:03 (PID:500, Device:0, RankID:0) ERR02200 DIST call hccl api failed.\n"
    "Communication_Error_Ranktable_Detect(EI0015): Failed to collect cluster information. Reason: No rank in the "
    'communicator can connect to the root node within the timeout period. List of unconnected ranks: "[3,]".'
)
_EI0013 = (
    "\n[ERROR] 2026-11-29-20:01:03 (PID:500, Device:0, RankID:0) ERR02200 DIST call hccl api failed.\n"
    "Execution_Error_ROCE_CQE(EI0013): An error CQE occurred during operator execution."
)


def _no_root(*ranks: int) -> str:
    return "".join(ranked(_raised(_hccl("hcclCommInitRootInfoConfig(size)", 1) + _EI0015), rank) for rank in ranks)


def test_hccl_names_who_has_not_come_to_a_communicator() -> None:
    """hiascend.com, HCCL user guide: EI0015. The call of those that came fails with code 1, which elsewhere is a wrong
    argument of their own."""
    assert told(_no_root(0, 1, 2, 4, 5)) == ("init_missing", (3,))
    assert told(_no_root(0)) == UNDECIDED, "it counts within the communicator, which may be of a few ranks"
    assert told(_no_root(4, 5, 6)) == UNDECIDED


def test_a_link_that_hccl_lost_is_not_the_fault_of_who_says_so() -> None:
    assert told(ranked(_raised(_hccl("HcclAllReduce(x)", 21) + _EI0013), 0)) == UNDECIDED


@pytest.mark.parametrize(("ranks", "said"), [((1, 2, 3), UNDECIDED), ((1,), UNDECIDED), ((3,), ("rank_raised", (3,)))])
def test_who_differs_from_rank_0_is_named_where_few_do(
    ranks: tuple[int, ...], said: tuple[str, tuple[int, ...]]
) -> None:
    """torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes: rank 0's sizes are the measure."""
    text = (
        "RuntimeError: [{0}]: params[12] in this process with sizes [512, 768] appears not to match sizes of the same "
        "param in process 0."
    )
    assert told("".join(ranked(_raised(text.format(rank)), rank) for rank in ranks)) == said
