"""Situations of users of DDP, loaders, RPC and compilers that are no hang: names that are resolved late, downloads that
pause, workers that begin and end slowly, batches that all skip together. Started as `training_of_users.py NAME`. See
common.py."""

import contextlib
import cProfile
import fcntl
import json
import multiprocessing
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

# Before the hook: one of these begins before it.
if sys.argv[1:] == ["one_imports_late"] and os.environ.get("RANK") == "1":
    time.sleep(min(float(os.environ.get("CONTROL_SECONDS", "18")), 1e6))

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    beat,
    busy,
    every_rank_waits,
    main,
    one_rank_waits,
    situation,
    step,
    synchronize,
    train,
)

_BLOCK = bytes(1 << 20)
_KEPT: list[object] = []


def _sleep(seconds: float) -> None:
    time.sleep(min(seconds, 1e6))


@one_rank_waits
def writes_in_a_thread_and_waits(seconds: float) -> None:
    """A saver's thread writes a checkpoint at some megabytes a second; the training thread waits for its event."""
    saved = threading.Event()

    def save() -> None:
        until = time.monotonic() + seconds
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < until:
                file.seek(0)
                file.write(_BLOCK)
                file.flush()
                time.sleep(0.2)
        saved.set()

    threading.Thread(target=save, name="saver", daemon=True).start()
    saved.wait()


@one_rank_waits
def download_pauses(seconds: float) -> None:
    """A download flows, stops for long in its middle, and goes on."""
    server = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        client, _ = server.accept()
        client.recv(4096)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (40 * len(_BLOCK)))
        for number in range(40):
            client.sendall(_BLOCK)
            _sleep(seconds if number == 20 else 0.1)
        os._exit(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights") as answer:
        while answer.read(1 << 16):
            pass


@one_rank_waits
def resolver_answers_late(seconds: float) -> None:
    """The resolver does not answer for a while, and the client asks again and again."""
    from tests.controls.hangs_of_users import resolver_of_its_own

    resolver_of_its_own()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("tracker.example.org", 443), timeout=10)
        time.sleep(1)


class _Numbers(torch.utils.data.Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


@one_rank_waits
def workers_begin_slowly(seconds: float) -> None:
    """`worker_init_fn` opens an index on storage that answers late."""
    loader = torch.utils.data.DataLoader(
        _Numbers(), num_workers=2, worker_init_fn=lambda _: _sleep(seconds), multiprocessing_context="fork"
    )
    for _ in loader:
        continue


class _EndsSlowly(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __iter__(self):  # type: ignore[no-untyped-def]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        multiprocessing.util.Finalize(None, time.sleep, args=(8,), exitpriority=0)
        yield 1
        yield 2


@one_rank_waits
def workers_end_slowly(seconds: float) -> None:
    """Each loader's end waits five seconds for workers that close their files slowly; there are several of them."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in torch.utils.data.DataLoader(_EndsSlowly(), batch_size=None, num_workers=1):
            continue


@situation
def skips_a_batch_together() -> None:
    """Every rank tells whether its loss is a number, and all skip the batch if one's is not; rank 1 then looks at its
    sample for long."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        loss = model(torch.randn(4, 32, device=DEVICE)).sum()
        fine = torch.tensor(float(not (RANK == 1 and number == WARM_UP)), device=DEVICE)
        dist.all_reduce(fine, op=dist.ReduceOp.MIN)
        if fine.item():
            loss.backward()
            beat.step()
        elif RANK == 1:
            busy(QUIET_SECONDS)


@one_rank_waits
def compiles_with_a_slow_compiler(seconds: float) -> None:
    """torch.compile meets a new shape; the C++ compiler of inductor waits for its license first."""
    folder = Path(tempfile.mkdtemp())
    compiler = folder / "g++"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) sleep {min(seconds, 1e6):.0f};; esac\nexec /usr/bin/g++ "$@"\n'
    )
    compiler.chmod(0o755)
    os.environ |= {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    torch.compile(lambda x: (x.sin() + 1) * 2)(torch.randn(65))


@one_rank_waits
def lock_is_kept_by_a_helper(seconds: float) -> None:
    """A helper of rank 1 has its node's lock for a while, by a file that it got from its parent."""
    JOB_FOLDER.mkdir(exist_ok=True)
    path = JOB_FOLDER / f"cache-{RANK}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fork() == 0:
            _sleep(seconds)
            os._exit(0)
    with path.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)


@one_rank_waits
def goes_on_without_its_lock(seconds: float) -> None:
    """It tries for a lock of the cache, a tenth of a second at a time, and does without it in the end."""
    path = JOB_FOLDER.with_suffix(".cache-lock")
    path.touch()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            time.sleep(0.1)


@situation
def one_imports_late() -> None:
    """Rank 1 imports its libraries from storage that answers late, before it has a hook."""
    train(60)


@situation
def rpc_ends_after_a_long_call() -> None:
    """RPC: all are in `shutdown` but rank 0, for which rank 1's process still computes."""
    from torch.distributed import rpc  # noqa: TID251

    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}", rpc_timeout=3600
    )
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=dist.get_world_size(), rpc_backend_options=options)
    train(WARM_UP)
    if RANK == 0:
        rpc.rpc_sync("worker1", busy, args=(QUIET_SECONDS,))
    rpc.shutdown(timeout=3600)
    train(20)


@every_rank_waits
def exports_its_profile(seconds: float) -> None:
    """torch's profiler on all ranks: thousands of operations, and traces that are sorted and written as JSON."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with torch.profiler.profile(record_shapes=True, with_stack=True) as profile:
            for _ in range(3000):
                torch.ones(8).add_(1)
        profile.key_averages().table()
        profile.export_chrome_trace(os.devnull)


@one_rank_waits
def runs_under_a_profiler(seconds: float) -> None:
    """cProfile over its data code on one rank: everything there takes ten times as long."""
    with cProfile.Profile():
        until, words = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            words += len(json.loads(json.dumps({str(n): [n] * 8 for n in range(2000)})))


@situation
def pairs_of_different_pace() -> None:
    """Two replicas, each a pair that shares its tensors, average every forty steps; rank 1 decodes long samples now
    and then, and its pair waits, then all."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    for number in range(WARM_UP * 2):
        time.sleep(STEP_SECONDS)
        if RANK == 1 and number == WARM_UP + 5:
            busy(QUIET_SECONDS)
        dist.all_reduce(torch.ones(64, device=DEVICE), group=pairs[RANK // 2])
        if number % 40 == 39:
            dist.all_reduce(torch.ones(1024, device=DEVICE))
        synchronize()
        beat.step()


@situation
def averages_late_in_a_thread() -> None:
    """Local SGD: a thread averages while training goes on; rank 1's waits for its storage first, once."""
    averages: queue.Queue[int] = queue.Queue(1)
    group = dist.new_group()
    done = threading.Event()

    def average() -> None:
        for number in iter(averages.get, -1):
            if RANK == 1 and number == WARM_UP:
                _sleep(QUIET_SECONDS)
            dist.all_reduce(torch.ones(1024, device=DEVICE), group=group)
            synchronize()
        done.set()

    threading.Thread(target=average, name="averages", daemon=True).start()
    for number in range(WARM_UP * 3):
        time.sleep(STEP_SECONDS)
        if number % 20 == 0:
            averages.put(number)
        beat.step()
    averages.put(-1)
    done.wait()
    step()


if __name__ == "__main__":
    main()
