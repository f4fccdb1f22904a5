"""Kinds of failures as ranks, schedulers and kernels print them, each once: made from the formats, with known truth."""

import pytest

from tests.builders.texts import PEER_LOST, RAISED, dump_signal, marked, ranked, timed_out, verdict

Accepted = tuple[tuple[str, tuple[int, ...]], ...]
UNDECIDED: Accepted = (("undecided", ()),)
STUCK: Accepted = (("comm_stuck", ()), ("undecided", ()))
OVER: Accepted = (("job_ended", ()),)
STEPS = "".join(f"step {i} | loss {3.1 - i / 100:.4f}\n" for i in range(20))


def raised(text: str, *ranks: int) -> str:
    return "".join(ranked(RAISED.replace("ValueError: shard 17 is empty", text), rank) for rank in ranks)


def waits(*ranks: int, seq: int = 71, **said: object) -> str:
    return "".join(timed_out("2.6", rank, seq, **said) for rank in ranks)  # type: ignore[arg-type]


def of(*ranks: int) -> Accepted:
    return ("rank_raised", ranks), ("rank_exited", ranks)


LOST = ranked(PEER_LOST, 0) + ranked(PEER_LOST, 3)
KINDS: dict[str, tuple[str, Accepted]] = {
    "cuBLAS": (raised("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x`", 1) + LOST,
               (*of(1), ("gpu_fault", (1,)))),
    "cuDNN": (raised("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", 1) + LOST, of(1)),
    "Triton": (raised("triton.runtime.errors.OutOfResources: out of resource: shared memory", 2), of(2)),
    "a compiler": (raised("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", 1), of(1)),
    "an ordinal": (raised("RuntimeError: CUDA error: invalid device ordinal", 7) + LOST, (*of(7), ("gpu_fault", (7,)))),
    "another maker's memory": (raised("RuntimeError: NPU out of memory. Tried to allocate 3.00 GiB (NPU 2;", 2), of(2)),
    "a quota on all": (raised("OSError: [Errno 122] Disk quota exceeded: '/home/u/x.pt'", 0, 1, 2, 3), of(0, 1, 2, 3)),
    "NFS": (raised("OSError: [Errno 116] Stale file handle: '/mnt/nfs/p.parquet'", 5) + waits(0, 1, 2, 3, 4), of(5)),
    "a permission": (raised("PermissionError: [Errno 13] Permission denied: '/ckpt'", 0) + ranked(PEER_LOST, 1), of(0)),
    "a checkpoint of another model": (raised("RuntimeError: Error(s) in loading state_dict for GPT:", *range(8)),
                                      of(*range(8))),
    "a service outside": (
        raised("google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses", 0)
        + waits(1, 2, 3), of(0)),
    "a loader's worker": (raised("RuntimeError: DataLoader worker (pid 88123) is killed by signal: Killed.", 2), of(2)),
    "a node without a file": (
        raised("FileNotFoundError: [Errno 2] No such file or directory: '/scratch/tok.model'", *range(8, 16)) + LOST,
        of(*range(8, 16))),
    "one expert's rank absent": (
        waits(0, 1, 2, seq=18, operation="ALLTOALL_BASE", size=100) + dump_signal("2.6", 3, 17, 0),
        (("not_entered", (3,)),)),
    "two of eight behind": (
        waits(*range(6), seq=900) + dump_signal("2.6", 6, 897, 0) + dump_signal("2.6", 7, 897, 0),
        (("not_entered", (6, 7)),)),
    "a broadcast's root behind": (
        waits(1, 2, 3, seq=18, operation="BROADCAST") + dump_signal("2.6", 0, 17, 1), (("not_entered", (0,)),)),
    "one that reduces another size": (
        waits(0, 1, 2, 3, 4, 5, 7, operation="_REDUCE_SCATTER_BASE", size=8192, out=1024)
        + waits(6, operation="_REDUCE_SCATTER_BASE", size=8208, out=1026),
        (("collective_mismatch", (6,)), ("collective_mismatch", ()))),
    "sizes that may differ": (
        "".join(waits(rank, operation="ALLTOALL_BASE", size=1000 + rank, out=900 + rank) for rank in range(8)), STUCK),
    "all alike": (waits(*range(8), operation="_REDUCE_SCATTER_BASE", size=8192, out=1024), STUCK),
    "a bad sample that was skipped": (
        raised("PIL.UnidentifiedImageError: cannot identify image file", 2) + STEPS + waits(0, 1, 2, 3), STUCK),
    "an error only long after time-outs": (
        marked(waits(0, 1, 2), "2026-11-20T08:15:31Z ")
        + marked(raised("torch.OutOfMemoryError: CUDA out of memory.", 0), "2026-11-20T08:25:31Z "),
        (*STUCK, ("not_entered", (3,)))),
    "an overwritten heap": (
        marked("malloc(): corrupted top size\nAborted (core dumped)\n", "5: ")
        + "srun: error: n2: task 5: Aborted (core dumped)\n", of(5)),
    "zsh about a crash": (
        STEPS + "[1]    22231 segmentation fault (core dumped)  python train.py\n", (("rank_exited", ()),)),
    "a port's event": (
        "n3:41:51 [2] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n" + waits(*range(4)),
        (("fabric_fault", ()),)),
    "a switch": (
        "[99211.1] nvidia-nvswitch2: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 32 LTSSM Fault Up\n",
        (("fabric_fault", ()), ("gpu_fault", ()))),
    "an adapter": (
        "[99211.1] mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count\n",
        (("fabric_fault", ()),)),
    "GSP": (
        "[99211.2] NVRM: Xid (PCI:0000:9d:00): 119, pid=55012, name=python3, Timeout after 6s of waiting for RPC\n",
        (("gpu_fault", ()),)),
    "a memory limit of LSF": (
        STEPS + "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n", (("rank_exited", ()),)),
    "a walltime of PBS": (STEPS + "=>> PBS: job killed: walltime 3620 exceeded limit 3600\n", OVER),
    "a requeued job": (
        STEPS + "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-11-20T12:00:10 DUE TO JOB REQUEUE ***\n", OVER),
    "a full bar of Lightning": (
        STEPS + "Epoch 4: 100%|##| 308/308 [02:00<00:00,  2.55it/s, v_num=3]`Trainer.fit` stopped: `max_epochs=5` "
        "reached.\n", OVER),
    "a loss scale": (
        STEPS + "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
        "step 21 | loss 1\nTraining completed.\n", OVER),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_failure_is_named_with_its_rank_and_nobody_else(kind: str) -> None:
    log, accepted = KINDS[kind]
    found = verdict(log)
    assert (found.cause, found.culprits) in accepted, found.summary


def test_a_loaders_crash_is_told_by_the_rank_that_raised_and_its_line() -> None:
    of_worker = "ERROR: Unexpected segmentation fault encountered in worker.\n\0"
    killed = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "
    found = verdict(of_worker + raised(killed, 3))
    assert (found.cause, found.culprits) == ("rank_raised", (3,))
    assert "/job/train.py:77" in verdict(of_worker + RAISED.replace("ValueError: shard 17 is empty", killed)).summary
    assert "segmentation fault" in verdict(of_worker).summary
