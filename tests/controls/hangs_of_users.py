"""Real hangs as users of DDP, loaders, RPC and compilers have them: beside threads that work, in downloads that break
off, at names that are never resolved, in jobs of two ranks. Started as `hangs_of_users.py NAME`. What must be said is
in the decorator; see common.py. Rank 1 is the culprit where one is, so that CONTROL_RANKS=2 runs most of them, too."""

import contextlib
import ctypes
import fcntl
import hashlib
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

# Before the hook: it reads these, and one of these hangs begins before it.
_NAME = sys.argv[1] if len(sys.argv) > 1 else ""
if _NAME == "one_was_never_started":
    os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) + 1)
if _NAME == "one_stands_before_its_hook" and os.environ.get("RANK") == "1":
    threading.Event().wait()

import torch  # noqa: E402, TID251
import torch.distributed as dist  # noqa: E402, TID251

from tests.controls.common import (  # noqa: E402
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    beat,
    before_rendezvous,
    hang,
    main,
    synchronize,
    train,
)

_KEPT: list[object] = []
_BLOCK = bytes(1 << 20)


def _writes_for_ever() -> None:
    """A profiler, a recorder of episodes: megabytes a second, whatever training does."""
    with tempfile.TemporaryFile() as trace:
        while True:
            trace.seek(0)
            trace.write(_BLOCK)
            trace.flush()
            time.sleep(0.2)


def _hashes_for_ever() -> None:
    digest = b""
    while True:
        digest = hashlib.sha256(digest * 64).digest()


def _helper() -> None:
    """A collector of metrics: it computes for a tenth of the time."""
    if os.fork() == 0:
        while os.getppid() != 1:
            until = time.process_time() + 0.02
            while time.process_time() < until:
                pass
            time.sleep(0.18)
        os._exit(0)


@hang(culprits=(1,), where=("lock",))
def lock_beside_a_thread_that_writes() -> None:
    """Rank 1 waits for a lock that nobody will give back; a thread of every rank writes megabytes a second."""
    threading.Thread(target=_writes_for_ever, name="recorder", daemon=True).start()
    train(WARM_UP)
    if RANK == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # here
    train(60)


@hang(culprits=(1,), where=("socket",))
def socket_beside_a_thread_that_writes() -> None:
    """Rank 1 waits for an answer that never comes, with that thread beside it."""
    threading.Thread(target=_writes_for_ever, name="recorder", daemon=True).start()
    train(WARM_UP)
    if RANK == 1:
        near, far = socket.socketpair()
        _KEPT.append(far)
        near.recv(1)  # here
    train(60)


@hang(culprits=(1,), where=("lock",))
def queue_beside_a_thread_that_computes() -> None:
    """Rank 1 waits for a batch of a dead producer; a thread computes statistics for ever, in Python."""
    train(WARM_UP)
    if RANK == 1:
        threading.Thread(target=_hashes_for_ever, name="statistics", daemon=True).start()
        queue.Queue[int]().get()  # here
    train(60)


@hang(culprits=(1,), where=("lock",))
def lock_beside_a_child_that_works() -> None:
    """Each rank has a helper (a collector of metrics) that computes for a tenth of the time, whatever training does."""
    _helper()
    train(WARM_UP)
    if RANK == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # here
    train(60)


@hang(culprits=(1,), where=("user_code",))
def child_never_ends_beside_a_helper() -> None:
    """Rank 1 waits for a program that never ends, and has a helper that works."""
    _helper()
    train(WARM_UP)
    if RANK == 1:
        subprocess.run(["sleep", "1000000"], check=True)  # here
    train(60)


@hang(culprits=(1,), where=("dataloader",))
def worker_stands_beside_a_helper() -> None:
    """Rank 1's loader has a worker that gets stuck; its helper works."""
    _helper()
    train(WARM_UP)
    if RANK == 1:
        for _ in torch.utils.data.DataLoader(_Stuck(), num_workers=1, multiprocessing_context="fork"):  # here
            pass
    train(60)


@hang(culprits=(1,), where=("socket",))
def download_stops_in_its_middle() -> None:
    """A download flows for some seconds, and then nothing comes any more; the connection stays."""
    train(WARM_UP)
    if RANK == 1:
        server = socket.create_server(("127.0.0.1", 0))
        if os.fork() == 0:
            client, _ = server.accept()
            client.recv(4096)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            for _ in range(40):
                client.sendall(_BLOCK)
                time.sleep(0.2)
            time.sleep(FOR_EVER)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights") as answer:
            while answer.read(1 << 16):  # here
                pass
    train(60)


def resolver_of_its_own() -> None:
    """From here on this process asks a server for names that says nothing."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.53", 53))
    _KEPT.append(server)
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private_and_all, bind = 0x00020000, 0x44000, 0x1000
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("nameserver 127.0.0.53\noptions timeout:3 attempts:2\n")
    Path(file.name).chmod(0o644)
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private_and_all, None):
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(file.name.encode(), b"/etc/resolv.conf", None, bind, None):
        raise OSError(ctypes.get_errno(), "mount")


@hang(culprits=(1,), where=("socket", "user_code"))
def resolver_never_answers() -> None:
    """The resolver answers nobody; the client asks again and again."""
    train(WARM_UP)
    if RANK == 1:
        resolver_of_its_own()
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("tracker.example.org", 443), timeout=10)  # here
            time.sleep(1)  # here
    train(60)


@hang(culprits=(1,), where=("compile", "user_code"), causes=("not_entered", "waiting"))
def compiler_never_ends() -> None:
    """torch.compile meets a new shape, and the C++ compiler that inductor starts never ends (a license server). With
    `--short` it still imports inductor when people are told."""
    train(WARM_UP)
    if RANK == 1:
        folder = Path(tempfile.mkdtemp())
        compiler = folder / "g++"
        compiler.write_text('#!/bin/sh\ncase "$*" in *--version*) exec /usr/bin/g++ "$@";; esac\nsleep 1000000\n')
        compiler.chmod(0o755)
        os.environ |= {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(folder)}
        torch.compile(lambda x: (x.sin() + 1) * 2)(torch.randn(65))  # here
    train(60)


@hang(culprits=(1,), where=("user_code", "lock"))
def job_within_the_job_hangs() -> None:
    """Rank 1 tunes a reward model in a job of its own, of two processes, whose rank 1 gets stuck: that is told first,
    under the name that both have."""
    train(WARM_UP)
    if RANK == 1:
        inner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, "small"]
        os.environ["ENDS_WITH"] = str(os.getpid())  # torchrun gives its ranks sessions of their own
        subprocess.run(inner, check=True)
    train(60)


def _end_with(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        time.sleep(1)
    os._exit(1)


@hang(culprits=(1,))
def small() -> None:
    """The job within the other; by itself a job of two or more ranks that hangs."""
    if "ENDS_WITH" in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ["ENDS_WITH"]),), daemon=True).start()
    train(WARM_UP)
    if RANK == 1:
        threading.Event().wait()  # here
    train(60)


class _Numbers(torch.utils.data.Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


class _Stuck(_Numbers):
    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index


def _takes_its_license(path: str) -> None:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@hang(culprits=(1,), where=("dataloader", "lock", "filesystem"))
def worker_s_initialiser_stands() -> None:
    """`worker_init_fn` waits for a lock that a program of an earlier job holds."""
    train(WARM_UP)
    if RANK == 1:
        path = str(JOB_FOLDER.with_suffix(".license"))
        held = multiprocessing.get_context("fork").Event()
        if os.fork() == 0:
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                held.set()
                time.sleep(FOR_EVER)
        held.wait()
        loader = torch.utils.data.DataLoader(
            _Numbers(), num_workers=2, worker_init_fn=lambda _: _takes_its_license(path), multiprocessing_context="fork"
        )
        next(iter(loader))
    train(60)


@hang(culprits=(1,), causes=("collective_mismatch", "data_exhausted"))
def nan_skips_a_batch() -> None:
    """DDP: rank 1's loss is no number, and it skips this batch alone; at the end it has a reduction less."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for number in range(WARM_UP + 40):
        time.sleep(STEP_SECONDS)
        loss = model(torch.randn(4, 32, device=DEVICE)).sum()
        if RANK == 1 and number == WARM_UP:
            continue
        loss.backward()
        synchronize()
        beat.step()
    dist.barrier()


@hang(culprits=(), causes=("collective_mismatch",), by_nccl={"culprits": (1,)})
def metric_is_not_shadowed() -> None:
    """torch's Join shadows DDP's collectives, not the loop's own: rank 1 has fewer batches, and the loss of the others
    is averaged with nobody. gloo aborts whoever receives what it does not expect: no recorder is left to ask."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    with model.join():
        for _ in range(WARM_UP + (0 if RANK == 1 else 40)):
            time.sleep(STEP_SECONDS)
            loss = model(torch.randn(4, 32, device=DEVICE)).sum()
            loss.backward()
            dist.all_reduce(loss.detach())
            synchronize()
            beat.step()
    dist.barrier()


@hang(culprits=(), causes=("collective_mismatch",), by_nccl={"culprits": (1,)})
def lists_of_objects_differ() -> None:
    """`broadcast_object_list`: rank 1 expects another number of objects than rank 0 has. gloo aborts one that may be
    innocent."""
    train(WARM_UP)
    dist.broadcast_object_list([{"lr": 1e-4}] * (2 if RANK == 1 else 1), src=0)
    train(60)


@hang(culprits=(1,), where=("lock", "filesystem"))
def helper_keeps_the_lock_of_another_rank() -> None:
    """Rank 0 has closed the file of its node's lock; a helper that it had forked holds the lock with it, unknowing.
    By the kernel's list it is rank 0's."""
    train(WARM_UP)
    JOB_FOLDER.mkdir(exist_ok=True)
    with (JOB_FOLDER / "cache.lock").open("w") as file:
        if RANK == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fork() == 0:
                time.sleep(FOR_EVER)
        dist.barrier()
    if RANK == 1:
        with (JOB_FOLDER / "cache.lock").open("w") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)  # here
    train(60)


@hang(culprits=(1,), causes=("init_missing", "not_entered"))
def one_stands_before_its_hook() -> None:
    """Rank 1 gets stuck while it imports, before it has a hook; the others wait in `init_process_group`."""
    train(60)


@hang(culprits=(4,), causes=("init_missing",))
def one_was_never_started() -> None:
    """The world has one rank more than was started; all of these wait for it."""
    train(60)


@before_rendezvous("one_was_never_started")
def _waits_for_another() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=80))


@hang(culprits=(1,), where=("busy_loop", "user_code"), causes=("waiting", "not_entered"))
def generates_without_an_end() -> None:
    """Rank 1's sampler never draws the end: it computes in torch's own code for ever, and is told near the job's own
    time-out (`--short`)."""
    train(WARM_UP)
    if RANK == 1:
        weights, token = torch.randn(512, 512), torch.randn(512)
        while True:
            token = torch.nn.functional.normalize(weights @ token, dim=0)
            if token.max() > 2:
                break
    train(60)


@hang(culprits=(1,), causes=("not_entered", "data_exhausted", "collective_mismatch"))
def thread_that_averages_has_died() -> None:
    """Local SGD: a thread averages while training goes on. Rank 1's died of an exception that nobody read; its loop
    does not look, and the others wait for its average."""
    averages: queue.Queue[int] = queue.Queue(1)
    group = dist.new_group()

    def average() -> None:
        while True:
            number = averages.get()
            if RANK == 1 and number == WARM_UP + 20:
                return
            dist.all_reduce(torch.ones(1024, device=DEVICE), group=group)
            synchronize()

    threading.Thread(target=average, name="averages", daemon=True).start()
    for number in range(WARM_UP + 200):
        time.sleep(STEP_SECONDS)
        if number % 20 == 0:
            averages.put(number)  # here
        beat.step()


if __name__ == "__main__":
    main()
