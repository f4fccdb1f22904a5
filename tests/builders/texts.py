"""Logs of many versions and launchers, made from the formats, and what is judged of them."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.formats.training_log import parse
from stallwatch.model.evidence import Evidence, NodeEvidence, RankEvidence
from stallwatch.model.log_event import LogEvent
from stallwatch.model.verdict import Verdict

VERSIONS = ("1.13", "2.0", "2.1", "2.3", "2.4", "2.5", "2.6", "2.8")


def of_logs(*texts: str, names: Sequence[str] = ()) -> Evidence:
    """What lies around after a run: logs whose names name no rank."""
    events: list[LogEvent] = []
    kernel = []
    for number, text in enumerate(texts):
        tail, source = parse(text.encode()), names[number] if names else f"log{number}.txt"
        events += [replace(event, source=source) for event in tail.events]
        kernel += [replace(event, source=source) for event in tail.kernel]
    ranks = sorted({event.rank for event in events if event.rank is not None})
    return Evidence(
        world_size=None,
        backend=None,
        ranks=tuple(
            RankEvidence(rank, None, None, log_events=tuple(e for e in events if e.rank == rank)) for rank in ranks
        ),
        nodes=(NodeEvidence("unknown", (), kernel_events=tuple(kernel)),) if kernel else (),
        caveats=(),
        log_events=tuple(event for event in events if event.rank is None),
    )


def verdict(*texts: str, names: Sequence[str] = ()) -> Verdict:
    first = judge(of_logs(*texts, names=names)).verdicts[0]
    backwards = judge(of_logs(*texts[::-1], names=names[::-1] or [f"log{n}.txt" for n in range(len(texts))][::-1]))
    assert (first.cause, first.culprits) == (backwards.verdicts[0].cause, backwards.verdicts[0].culprits)
    return first


def told(*texts: str) -> tuple[str, tuple[int, ...]]:
    found = verdict(*texts)
    return found.cause, found.culprits


def header(version: str, rank: int, file: str = "ProcessGroupNCCL.cpp", time: str = "1128 21:11:49.041194513") -> str:
    if version in ("1.13", "2.0", "2.1"):
        return f"[E {file}:828] "
    return f"[rank{rank}]:[E {file}:537] " if version == "2.3" else f"[rank{rank}]:[E{time} {file}:632] "


def group(version: str, place: int, name: str = "default_pg", number: int = 0) -> str:
    return {
        "2.3": f"[PG {number} Rank {place}] ",
        "2.4": f"[PG {number} ({name}) Rank {place}] ",
        "2.5": f"[PG ID {number} PG GUID {number}({name}) Rank {place}] ",
    }.get(version, f"[PG ID {number} PG GUID {number}({name}) Rank {place}] ")


def timed_out(
    version: str, rank: int, seq: int, operation: str = "ALLREDUCE", size: int = 1, enqueued: int | None = None,
    place: int | None = None, name: str = "default_pg", number: int = 0, out: int | None = None,
    time: str = "1128 21:11:49.041194513",
) -> str:  # fmt: skip
    """What a waiting rank's watchdog prints."""
    place = rank if place is None else place
    sizes = {"1.13": f", TensorShape=[{size}]", "2.0": ""}.get(version, f", NumelIn={size}, NumelOut={out or size}")
    head = header(version, rank, time=time)
    text = (
        f"{head}[Rank {place}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={operation}"
        f"{sizes}, Timeout(ms)=600000) ran for 600080 milliseconds before timing out.\n"
    )
    last = seq if enqueued is None else enqueued
    if version in ("1.13", "2.0", "2.1"):
        return text
    status = {
        "2.3": f"Timeout at NCCL work: {seq}, last enqueued NCCL work: {last}, last completed NCCL work: {seq - 1}.",
        "2.4": f"Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: "
        f"{last}, last completed NCCL work: {seq - 1}.",
    }
    newer = (
        f" failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {last}, last "
        f"completed work: {seq - 1}"
    )
    old = status.get("2.4" if version == "2.5" else version, newer)
    return text + f"{head}{group(version, place, name, number)}{old}\n"


def dump_signal(version: str, rank: int, enqueued: int, source: int = 1) -> str:
    by = (
        "Received a global dump signal from rank"
        if version == "2.4"
        else "Received a dump signal due to a collective timeout from  rank"
    )
    return (
        f"{header(version, rank)}{group(version, rank)}{by} {source} and we will try our best to dump the debug info. "
        f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.\n"
    )


ABORTED = (
    "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchronous nature "
    "of CUDA "
    "kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
    "[E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process down.\n"
    "terminate called after throwing an instance of 'std::runtime_error'\n"
    "  what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600042 milliseconds before timing out.\n"
)
AGENT = {
    "1.13": "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {code}) local_rank: {rank} (pid: "
    "{pid}) of binary: /env/bin/python\n",
    "2.1": "[2026-11-28 21:20:00,100] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: {code}) "
    "local_rank: {rank} (pid: {pid}) of binary: /env/bin/python\n",
    "2.4": "E1128 21:20:00.100000 4990 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) "
    "local_rank: {rank} (pid: {pid}) of binary: /env/bin/python\n",
}
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 77, in main\n'
    "    batch = next(it)\n"
    '  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 630, in __next__\n'
    "    data = self._next_data()\n"
    "ValueError: shard 17 is empty\n"
)
PEER_LOST = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 31, in main\n'
    "    dist.all_reduce(loss)\n"
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:18849.\n"
)
OUT_OF_MEMORY = RAISED.replace(
    "ValueError: shard 17 is empty", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
)


def marked(text: str, mark: str) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


def ranked(text: str, rank: int) -> str:
    return marked(text, f"[rank{rank}]: ")


LAUNCHERS: dict[str, Callable[[int], str]] = {
    "srun --label": lambda rank: f"{rank}: ",
    "mpirun --tag-output": lambda rank: f"[1,{rank}]<stderr>:",
    "Open MPI 5": lambda rank: f"[prterun-node0-4711@1,{rank}]<stderr>: ",
    "torchrun --tee": lambda rank: f"[default{rank}]:",
    "containerd": lambda rank: f"2026-11-28T10:00:0{rank}.123456789Z stderr F [rank{rank}]: ",
    "kubectl --prefix": lambda rank: f"[pod/train-{rank}/main] [rank{rank}]: ",
    "journald": lambda rank: f"Nov 28 10:00:0{rank} node0 python3[70{rank}]: [rank{rank}]: ",
    "indented": lambda rank: f"2026-11-28T10:00:0{rank}.1234567Z   [rank{rank}]: ",
    "Ray": lambda rank: f"(Worker pid=70{rank}, ip=10.0.0.1) [rank{rank}]: ",
    "pdsh": lambda rank: f"node{rank}: [rank{rank}]: ",
    "mpirun --timestamp-output": lambda rank: f"Fri Nov 20 08:15:3{rank} 2026[1,{rank}]<stderr>:",
    "SageMaker": lambda rank: f"[1,mpirank:{rank},algo-1]<stderr>:",
    "stern": lambda rank: f"train-worker-{rank} pytorch [rank{rank}]: ",
    "Determined": lambda rank: f"[2026-11-20T08:15:31.123Z] 8e2a1c4d [rank={rank}] || ",
    "SkyPilot": lambda rank: f"(worker{rank}, rank={rank}, pid=331{rank}, ip=172.31.4.{rank}) ",
    "torchx": lambda rank: f"trainer/{rank} [{rank}]:[rank{rank}]: ",
}  # fmt: skip


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_21:20:00
  host      : node0
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
KILL = (
    "W1128 21:20:00.1 4990 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 5000 closing signal "
    "SIGTERM\n"
    "W1128 21:20:30.1 4990 torch/distributed/elastic/multiprocessing/api.py:916] Unable to shutdown process 5000 via "
    "Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
)


DETAIL = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[{1}], TensorDtypes=Float), but Rank {2} is "
    "running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[{3}], "
    "TensorDtypes=Float).\n"
)
