"""Real hangs of training loops: a rank that calls something else, or elsewhere, or too early; and what stands behind a
thread, a child or a pipe. Started as `hangs_of_loops.py NAME`. What must be said is in the decorator; see common.py."""

import asyncio
import concurrent.futures
import hashlib
import multiprocessing
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    BACKEND,
    DEVICE,
    FOR_EVER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    before_rendezvous,
    hang,
    main,
    stands,
    step,
    stop,
    train,
)

_STUCK = threading.Event()
_FORK = multiprocessing.get_context("fork")


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(3,))
def data_ends_earlier_on_one_rank() -> None:
    """Rank 3 has fewer batches and goes on to evaluate, where metrics are gathered."""
    for _ in range(WARM_UP if RANK == 3 else WARM_UP + 60):
        step()
    mine = torch.ones(1, device=DEVICE)
    dist.all_gather([torch.empty_like(mine) for _ in range(WORLD)], mine)


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(1,))
def one_rank_returns_from_its_loop() -> None:
    """Rank 1 believes that it has trained enough and stands in the barrier before the last checkpoint."""
    for number in range(WARM_UP + 60):
        if RANK == 1 and number == WARM_UP:
            break
        step()
    dist.barrier()


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(0,))
def one_rank_has_a_step_more() -> None:
    """The number of steps was rounded otherwise on rank 0: it trains one more, the others evaluate."""
    train(WARM_UP + (RANK == 0))
    mine = torch.ones(1, device=DEVICE)
    dist.all_gather([torch.empty_like(mine) for _ in range(WORLD)], mine)


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered", "rank_raised"), culprits=(2,))
def except_pass_leaves_out_a_backward() -> None:
    """Rank 2's batch is too large; `except RuntimeError: continue` leaves out its backward, and its next forward
    broadcasts buffers while the others reduce gradients."""
    layers = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)).to(DEVICE)
    model = torch.nn.parallel.DistributedDataParallel(layers)
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        try:
            loss = model(torch.randn(4, 32, device=DEVICE)).sum()
            if RANK == 2 and number == WARM_UP:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            loss.backward()
        except RuntimeError:
            continue
        beat.step()


@hang(causes=("collective_mismatch",), culprits=(), by_nccl={"culprits": (1,)})
def sizes_differ() -> None:
    """Only rank 1 has images, and reduces what the others do not know of: gloo aborts whoever receives more than it
    expects, which is a crash, and tells of nobody who differs. NCCL hangs (on_gpus.py)."""
    for number in range(WARM_UP + 60):
        if RANK == 1 and number == WARM_UP:
            dist.all_reduce(torch.ones(8, device=DEVICE))
        step()


@hang(causes=("not_entered", "group_order", "collective_mismatch"), culprits=(1,))
def one_rank_takes_the_wrong_group() -> None:
    """Rank 1 reduces its loss among its tensor-parallel peers, the others among all."""
    tensor = dist.new_group([0, 1])
    dist.new_group([2, 3])
    train(WARM_UP)
    dist.all_reduce(torch.ones(4, device=DEVICE), group=tensor if RANK == 1 else None)
    train(60)


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(0, 1, 3))
def receives_from_the_wrong_stage() -> None:
    """Rank 0 receives the loss from rank 1; it is rank 3 that sends it. With gloo nobody can tell more than who
    stands in which transfer."""
    train(WARM_UP)
    loss = torch.ones(1 << 20, device=DEVICE)
    if RANK == 3:
        dist.send(loss, 0)
    if RANK == 0:
        dist.recv(loss, 1)
    train(60)


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(0,))
def rank_0_alone_gathers_its_shards() -> None:
    """FSDP: `if rank == 0: save(full state)`, but each parameter is gathered from all."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    model = torch.nn.Linear(64, 64).to(DEVICE)
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (WORLD,)))
    train(WARM_UP)
    if RANK == 0:
        [parameter.full_tensor() for parameter in model.parameters()]  # here
    train(60)


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(0,))
def rank_0_alone_saves_with_torch_s_checkpoint() -> None:
    """`if rank == 0: torch.distributed.checkpoint.save(...)`, which all ranks must call."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251

    train(WARM_UP)
    if RANK == 0:
        checkpoint.save({"weight": torch.ones(8)}, checkpoint_id=tempfile.mkdtemp())  # here
    train(60)


@hang(causes=("not_entered", "init_missing", "group_order", "collective_mismatch"), culprits=(3,))
def groups_of_different_members() -> None:
    """Rank 3 makes the new group without itself; its members wait for it."""
    train(WARM_UP)
    group = dist.new_group([0, 1, 2] if RANK == 3 else [0, 1, 2, 3])
    if RANK < 3:
        dist.barrier(group)
    train(60)


@hang(culprits=(2,), where=("lock",))
def ring_of_attention_lacks_one() -> None:
    """Ring attention: keys go around by sends and receives at once; rank 2 is stuck before its turn."""
    keys = torch.ones(1 << 14, device=DEVICE)
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if number == WARM_UP and RANK == 2:
            _STUCK.wait()  # here
        received = torch.empty_like(keys)
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, keys, (RANK + 1) % WORLD),
                dist.P2POp(dist.irecv, received, (RANK - 1) % WORLD),
            ]
        ):
            work.wait()
        received.sum().item()
        beat.step()


@hang(culprits=(3,), where=("lock", "teardown"))
def rpc_shuts_down_without_one() -> None:
    """RPC: all wait in `shutdown` for rank 3, which is stuck before it."""
    from torch.distributed import rpc  # noqa: TID251

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}")
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    train(WARM_UP)
    if RANK == 3:
        _STUCK.wait()  # here
    rpc.shutdown(timeout=3600)


@hang(culprits=(2,), where=("lock",))
def training_thread_stands_beside_an_event_loop() -> None:
    """The loop runs in a thread, and rank 2's is stuck; the main thread turns its event loop as ever."""

    def loop() -> None:
        train(WARM_UP)
        if RANK == 2:
            _STUCK.wait()  # here
        train(60)

    async def heart() -> None:
        training = asyncio.get_running_loop().run_in_executor(None, loop)
        while not training.done():
            await asyncio.sleep(0.5)

    asyncio.run(heart())


@hang(causes=("not_entered", "rank_raised"), culprits=(2,))
def own_time_out_ends_it() -> None:
    """Rank 2 sleeps between its tries for longer than the job's time-out, with which the others end: a crash."""
    train(WARM_UP)
    if RANK == 2:
        time.sleep(FOR_EVER)
    train(60)


@before_rendezvous("own_time_out_ends_it")
def _with_a_short_time_out() -> None:
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=25))


@stands(where=("dataloader", "user_code", "lock"))
def worker_of_an_executor_stands() -> None:
    """A task in a pool of processes waits for a semaphore that nobody gives back."""
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=_FORK) as pool:
        list(pool.map(_wait_for_ever, range(2)))  # here


def _wait_for_ever(number: int) -> None:
    _FORK.Semaphore(0).acquire()


@stands(where=("socket", "user_code", "lock", "dataloader"))
def manager_is_stopped() -> None:
    """The process of a multiprocessing Manager is stopped: calls of its proxies never return."""
    manager = _FORK.Manager()
    shared = manager.dict()
    stop(manager._process.pid)  # type: ignore[attr-defined]
    shared["step"] = 1  # here


@stands(where=("socket", "user_code", "lock", "filesystem", "dataloader"))
def engine_never_answers() -> None:
    """An engine in a process of its own waits for a lock, the rank for its answer."""
    mine, its = _FORK.Pipe()
    _FORK.Process(target=_serve, args=(its,), daemon=True).start()
    mine.send("a prompt")
    mine.recv()  # here


def _serve(requests: Connection) -> None:
    requests.recv()
    _STUCK.wait()  # the engine's own


@stands(where=("busy_loop", "user_code"))
def native_loop_without_the_gil() -> None:
    """Native code computes for ever, and has given the GIL back."""
    hashlib.pbkdf2_hmac("sha256", b"all", b"of it", 2_000_000_000)  # here


@stands(where=("lock", "store"))
def lock_is_held_over_the_store() -> None:
    """A thread waits in the store for a key that nobody sets, and holds the lock that the training thread needs."""
    held, taken = threading.Lock(), threading.Event()
    store = dist.distributed_c10d._get_default_store().clone()

    def fetch() -> None:
        with held:
            taken.set()
            store.wait(["vocabulary"], timedelta(hours=1))  # here

    threading.Thread(target=fetch, daemon=True).start()
    taken.wait()
    with held:  # here
        pass


@stands(where=("user_code", "filesystem", "lock", "socket"))
def grandchild_keeps_the_pipe() -> None:
    """A program has ended, but what it left in the background keeps its output open: `run` waits for its end."""
    subprocess.run(["sh", "-c", "sleep 1000000 & echo started"], capture_output=True, check=True)  # here


@stands(where=("lock", "user_code", "dataloader"))
def joins_a_thread_that_waits_to_put() -> None:
    """The epoch was left early: the prefetching thread waits for room in its queue, the loop for its end."""
    batches: queue.Queue[int] = queue.Queue(2)

    def prefetch() -> None:
        for number in range(100):
            batches.put(number)  # here

    thread = threading.Thread(target=prefetch, daemon=True)
    thread.start()
    batches.get()
    thread.join()  # here


@stands(where=("dataloader",), causes=("not_entered", "process_stopped"))
def loader_worker_is_stopped() -> None:
    """Somebody stopped a worker of the data loader."""
    loader = torch.utils.data.DataLoader(_Stops(), num_workers=1)
    for _ in loader:  # here
        pass


class _Stops(torch.utils.data.Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSTOP)
        return torch.ones(4)


if __name__ == "__main__":
    main()
