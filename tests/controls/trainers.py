"""What trainers and their surroundings do for a while: pools, pipes, handlers, servers, storage. Started as
`trainers.py NAME`. See common.py."""

import atexit
import ctypes
import fcntl
import gzip
import importlib
import logging
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    busy,
    compute,
    every_rank_waits,
    main,
    one_rank_waits,
    situation,
    train,
)

_CLONE_VFORK = 0x4000
_STACK_BYTES = 1 << 16


@situation
def evaluates_like_a_trainer() -> None:
    """Every rank predicts and gathers its batches in a loop that counts no steps; rank 0 computes a slow metric in
    Python and tells it as an object."""
    train(WARM_UP)
    for _ in range(60):
        compute(STEP_SECONDS)
        mine = torch.ones(64, device=DEVICE)
        dist.all_gather([torch.empty_like(mine) for _ in range(WORLD)], mine)
    metrics = [None]
    if RANK == 0:
        busy(QUIET_SECONDS)
        metrics = [{"bleu": 0.3, "samples": ["a sentence " * 20] * 2000}]  # type: ignore[list-item]
    dist.broadcast_object_list(metrics, src=0)
    train(60)


@situation
def gathers_large_objects() -> None:
    """Predictions are gathered as pickled objects of many megabytes, again and again; nothing is counted."""
    train(WARM_UP)
    group = dist.new_group(backend="gloo")
    until = time.monotonic() + QUIET_SECONDS
    mine = [{"id": number, "text": "word " * 8} for number in range(60_000)]
    go_on = [True]
    while go_on[0]:
        dist.all_gather_object([None] * WORLD, mine, group=group)
        go_on = [time.monotonic() < until]
        dist.broadcast_object_list(go_on, src=0, group=group)
    train(60)


@one_rank_waits
def forks_a_pool(seconds: float) -> None:
    """datasets.map(num_proc=2): a pool of forked workers maps a part of the data in mid-training."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(busy, [seconds / 4] * 8, chunksize=1)


@one_rank_waits
def saves_shards_in_threads(seconds: float) -> None:
    """A sharded save: threads write to a slow disk, the training thread takes their results as they come."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        shards = [pool.submit(_write_shard, Path(folder) / f"shard-{n}", seconds / 2) for n in range(4)]
        for shard in as_completed(shards):
            shard.result()


def _write_shard(path: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    with path.open("wb") as file:
        while time.monotonic() < until:
            file.write(bytes(256 << 10))
            file.flush()
            time.sleep(0.05)
            if file.tell() > 32 << 20:
                file.seek(0)


@situation
def every_rank_saves_its_shard() -> None:
    """The same on all ranks, each as fast as its disk, and a barrier."""
    train(WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        _write_shard(Path(folder) / "shard", QUIET_SECONDS * (1 + RANK) / WORLD)
    dist.barrier()
    train(60)


@situation
def waits_in_a_monitored_barrier() -> None:
    """Rank 0 prepares in torch's own code, the others stand in gloo's monitored barrier."""
    group = dist.new_group(backend="gloo")
    train(WARM_UP)
    if RANK == 0:
        compute(QUIET_SECONDS)
    dist.monitored_barrier(group, timeout=timedelta(minutes=20))
    train(60)


@situation
def exchanges_tokens_of_experts() -> None:
    """A mixture of experts: tokens go to their experts and back by all-to-all; one expert has far more, once."""
    tokens = torch.ones(WORLD * 64, device=DEVICE)
    for number in range(WARM_UP + 60):
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens)
        if number == WARM_UP and RANK == 2:
            compute(QUIET_SECONDS)
        time.sleep(STEP_SECONDS)
        dist.all_to_all_single(tokens, received)
        beat.step()


@one_rank_waits
def asks_other_programs(seconds: float) -> None:
    """Short programs one after the other (nvidia-smi, git, a metrics client), each waited for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        subprocess.run(["sleep", "0.7"], check=True)


@one_rank_waits
def waits_for_a_build_s_lock(seconds: float) -> None:
    """Another process builds an extension and holds the lock file; flock waits in the kernel."""
    path = Path(tempfile.mkdtemp()) / "lock"
    holder = subprocess.Popen(["flock", str(path), "sleep", str(seconds)])
    time.sleep(0.5)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    holder.wait()


@one_rank_waits
def takes_from_a_producing_process(seconds: float) -> None:
    """A loader of one's own: a forked process computes batches and puts them into a queue."""
    context = multiprocessing.get_context("fork")
    batches = context.Queue(2)
    producer = context.Process(target=_produce, args=(batches, seconds), daemon=True)
    producer.start()
    while batches.get() is not None:
        pass
    producer.join()


def _produce(batches: "multiprocessing.Queue[bytes | None]", seconds: float) -> None:
    for _ in range(2):
        busy(seconds / 2)
        batches.put(b"batch")
    batches.put(None)


@every_rank_waits
def saves_in_a_signal_s_handler(seconds: float) -> None:
    """SIGUSR1 means save: the handler writes, in the midst of whatever the main thread did."""

    def save(number: int, frame: FrameType | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _write_shard(Path(folder) / "preempted", seconds)

    signal.signal(signal.SIGUSR1, save)
    os.kill(os.getpid(), signal.SIGUSR1)


@one_rank_waits
def logs_to_a_slow_pipe(seconds: float) -> None:
    """`train.py | tee log`: the pipe is full, and its reader takes a little now and then."""
    reads, writes = os.pipe()
    log = logging.getLogger("slow")
    log.addHandler(logging.StreamHandler(os.fdopen(writes, "w")))
    reader = subprocess.Popen(
        [sys.executable, "-c", "import os, time\nwhile os.read(0, 16384): time.sleep(0.4)"], stdin=reads
    )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        log.error("x" * 4096)
    reader.kill()
    reader.wait()


@one_rank_waits
def prints_to_a_pager(seconds: float) -> None:
    """The reader of the standard output does not read for a while (a paused terminal), and then all of it."""
    reads, writes = os.pipe()
    wait = f"import os, time\ntime.sleep({seconds})\nwhile os.read(0, 65536): pass"
    reader = subprocess.Popen([sys.executable, "-c", wait], stdin=reads)
    os.close(reads)
    with os.fdopen(writes, "wb") as out:
        out.write(bytes(1 << 20))
    reader.wait()


@one_rank_waits
def imports_what_a_thread_imports(seconds: float) -> None:
    """Two threads import one slow module: the training thread waits for the import's lock."""
    folder = Path(tempfile.mkdtemp())
    (folder / "slow_extension.py").write_text(f"import time\nuntil = time.monotonic() + {seconds}\n"
                                              "while time.monotonic() < until:\n    sum(range(1000))\n")  # fmt: skip
    sys.path.insert(0, str(folder))
    thread = threading.Thread(target=importlib.import_module, args=("slow_extension",))
    thread.start()
    time.sleep(0.2)
    importlib.import_module("slow_extension")
    thread.join()


@situation
def asks_a_parameter_server() -> None:
    """RPC: rank 1 asks rank 0's process for something that takes long to compute there."""
    from torch.distributed import rpc  # noqa: TID251

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}")
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    train(WARM_UP)
    if RANK == 1:
        rpc.rpc_sync("worker0", compute, args=(QUIET_SECONDS,), timeout=0)
    train(60)
    rpc.shutdown()


@one_rank_waits
def reads_from_a_hard_mount(seconds: float) -> None:
    """A file server does not answer, the kernel waits in state D, and goes on when it is back."""
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = ctypes.c_void_p(ctypes.addressof(stack) + _STACK_BYTES - 64)
    libc.clone(
        ctypes.cast(libc.sleep, ctypes.c_void_p), top, _CLONE_VFORK | signal.SIGCHLD, ctypes.c_void_p(int(seconds))
    )
    os.wait()


@situation
def averages_now_and_then() -> None:
    """Local SGD: ranks step on their own and average every sixty steps; rank 3 is a fifth slower."""
    for _ in range(4):
        for _ in range(60):
            busy(STEP_SECONDS * (1.2 if RANK == 3 else 1.0))
            beat.step()
        dist.all_reduce(torch.ones(1024, device=DEVICE))


@situation
def looks_for_a_key_in_the_store() -> None:
    """The others ask the store every half second whether rank 0 has prepared the cache."""
    store = dist.distributed_c10d._get_default_store()
    train(WARM_UP)
    if RANK == 0:
        busy(QUIET_SECONDS)
        store.set("prepared", "1")
    while not store.check(["prepared"]):
        time.sleep(0.5)
    train(60)


@one_rank_waits
def asks_a_manager(seconds: float) -> None:
    """multiprocessing's Manager: a call to its process, which is at work for somebody."""
    with multiprocessing.get_context("fork").Manager() as manager:
        pool = manager.Pool(1)
        pool.apply(busy, (seconds,))


@situation
def flushes_at_exit() -> None:
    """Training is over and the groups are gone; rank 1's exit handler sends what its logger still has."""
    train(100)
    if RANK == 1:
        atexit.register(time.sleep, QUIET_SECONDS)
    dist.barrier()
    dist.destroy_process_group()


@one_rank_waits
def copies_its_checkpoint(seconds: float) -> None:
    """shutil copies a file from local disk to the store, again and again: sendfile, and bytes that flow."""
    with tempfile.TemporaryDirectory() as folder:
        source, until = Path(folder) / "step-100.pt", time.monotonic() + seconds
        source.write_bytes(bytes(64 << 20))
        while time.monotonic() < until:
            shutil.copyfile(source, Path(folder) / "copy.pt")


@one_rank_waits
def unpacks_its_shard(seconds: float) -> None:
    """zlib inflates a shard: C code that gives the GIL back."""
    packed, until = gzip.compress(os.urandom(1 << 20) * 16, 1), time.monotonic() + seconds
    while time.monotonic() < until:
        gzip.decompress(packed)


@one_rank_waits
def waits_for_a_server_to_start(seconds: float) -> None:
    """A local inference server loads its model; its port refuses until it is there."""
    started, port = time.monotonic() + seconds, queue.Queue[int]()

    def serve() -> None:
        time.sleep(max(0.0, started - time.monotonic()))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port.put(server.getsockname()[1])
            server.accept()

    threading.Thread(target=serve, daemon=True).start()
    while True:
        try:
            address = port.get_nowait()
        except queue.Empty:
            time.sleep(0.25)
            continue
        socket.create_connection(("127.0.0.1", address)).close()
        return


if __name__ == "__main__":
    main()
