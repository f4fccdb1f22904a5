"""Hangs of kinds that people report: orders, resumes, helpers, kernel objects. Started as
`hangs_in_the_field.py NAME`. See common.py."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
import torch.distributed.nn.functional  # noqa: TID251
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: TID251

from tests.controls.common import DEVICE, RANK, WARM_UP, WORLD, before_rendezvous, hang, main, stands, step, train

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEMGET, _IO_SETUP, _IO_GETEVENTS = 64, 206, 208  # x86-64


def _gather() -> None:
    dist.all_gather([torch.ones(64, device=DEVICE) for _ in range(WORLD)], torch.ones(64, device=DEVICE))


@hang(causes=("collective_mismatch",), culprits=(2,))
def parameters_come_out_of_a_set() -> None:
    """A collective for each entry of a dictionary whose order is each rank's own (NVIDIA/apex#19)."""
    train(WARM_UP)
    for number in range(60):
        kinds = [_gather, lambda: dist.broadcast(torch.ones(64, device=DEVICE), 1)]
        for reduce in reversed(kinds) if RANK == 2 and number == 10 else kinds:
            reduce()
        step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(3,))
def one_model_lacks_a_key_of_the_checkpoint() -> None:
    """Rank 0 broadcasts a checkpoint key by key, each rank takes those that its model has; rank 3's has one less
    (pytorch/pytorch#134095)."""
    train(WARM_UP)
    for _ in range(7 if RANK == 3 else 8):
        dist.broadcast(torch.ones(4096, device=DEVICE), 0)
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def one_skips_the_step_of_a_sharded_optimizer() -> None:
    """A gradient of rank 2 is infinite after the reduction of the norm: it alone skips the step, in which each rank
    broadcasts the shard that it has updated."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8))).to(DEVICE)
    optimizer = ZeroRedundancyOptimizer(layers.parameters(), torch.optim.SGD, lr=0.1)
    train(WARM_UP)
    for number in range(60):
        layers(torch.ones(2, 16, device=DEVICE)).sum().backward()
        if RANK != 2 or number != 10:
            optimizer.step()
        optimizer.zero_grad()
        step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(0,))
def rank_0_alone_consolidates_its_optimizer() -> None:
    """`if rank == 0: optimizer.consolidate_state_dict()`, in which every rank sends its shard."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8))).to(DEVICE)
    optimizer = ZeroRedundancyOptimizer(layers.parameters(), torch.optim.SGD, lr=0.1)
    train(WARM_UP)
    if RANK == 0:
        optimizer.consolidate_state_dict()
    train(60)


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(0,))
def dispatcher_ends_without_a_word() -> None:
    """Rank 0 reads for all and broadcasts each batch; its data end, and it leaves the loop without saying so."""
    train(WARM_UP)
    for number in range(60):
        if RANK == 0 and number == 20:
            break
        batch = [number]
        dist.broadcast_object_list(batch, 0, device=DEVICE)
        step()
    dist.barrier()


@hang(causes=("collective_mismatch", "group_order", "undecided"), culprits=())
def threads_race_in_one_group() -> None:
    """A thread of metrics uses the group of training; once, on rank 2, it is the first of the two."""
    train(WARM_UP)
    for number in range(60):
        first, second = (0.0, 0.4) if RANK == 2 and number == 10 else (0.4, 0.0)

        def measure(late: float) -> None:
            time.sleep(late)
            _gather()

        thread = threading.Thread(target=measure, args=(first,), daemon=True)
        thread.start()
        time.sleep(second)
        step()
        thread.join()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(1,))
def handler_of_one_rank_meets_nobody() -> None:
    """Only rank 1 got the signal to save, and its handler begins with a barrier (ai2cm/ace#1407 in short)."""

    def save(*_: object) -> None:
        dist.barrier()

    signal.signal(signal.SIGUSR1, save)
    train(WARM_UP)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    train(60)


@stands(where=("user_code", "busy_loop", "gil"))
def pattern_backtracks() -> None:
    """A regular expression of a text filter meets a line on which it never ends, and holds the GIL."""
    re.match(r"(\w+\s?)+$", "a" * 200 + "!")  # here


@stands(where=("filesystem", "user_code", "socket"))
def file_is_awaited_by_inotify() -> None:
    """A trigger file that nobody makes, awaited as `watchdog` does; the kernel's symbol is also that of a socket."""
    watch = _LIBC.inotify_init1(0)
    _LIBC.inotify_add_watch(watch, tempfile.mkdtemp().encode(), 0x100)
    os.read(watch, 4096)  # here


@stands(where=("socket", "user_code"))
def datagram_never_comes() -> None:
    """A license or metrics server is asked by UDP, without a time-out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.sendto(b"?", ("127.0.0.1", 9))
        asked.recv(64)  # here


@hang(causes=("collective_mismatch",), culprits=(0, 1))
def half_of_the_ranks_call_a_barrier_of_all() -> None:
    """Ranks 0 and 1 evaluate in a group of their own, and forget it in the barrier: two against two, but these have
    left the usual order, at a line that is not in the loop."""
    pair = dist.new_group([0, 1])
    train(WARM_UP)
    if RANK < 2:
        dist.all_reduce(torch.ones(8, device=DEVICE), group=pair)
        dist.barrier()
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def one_resumed_from_an_older_checkpoint() -> None:
    """Each rank evaluates where its own counter says so, and rank 2's is one step behind the others'."""
    train(WARM_UP)
    offset = 1 if RANK == 2 else 0
    for number in range(100):
        if (number + offset) % 25 == 24:
            _gather()
        step()


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(2,))
def one_generates_fewer_tokens() -> None:
    """Parameters are gathered for every token; rank 2's sample ends first, and it goes on to the next phase
    (deepspeedai/DeepSpeed#8262)."""
    train(WARM_UP)
    for _ in range(6):
        for _ in range(16):
            _gather()
            time.sleep(0.01)
        step()
    for _ in range(9 if RANK == 2 else 16):
        _gather()
        time.sleep(0.01)
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def layer_is_dropped_on_one_rank() -> None:
    """LayerDrop by each rank's own dice, in a sharded model: rank 2 does not gather one layer of twelve."""
    train(WARM_UP)
    for number in range(60):
        for layer in range(12):
            if (RANK, number, layer) != (2, 10, 5):
                _gather()
        step()


@before_rendezvous("one_takes_the_rank_of_another")
def _take_another_rank() -> None:
    rank = min(RANK, WORLD - 2)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(seconds=80))


@hang(causes=("undecided", "init_missing"), culprits=())
def one_takes_the_rank_of_another() -> None:
    """The start, whose time-out is 80 seconds: rank 3 computes its rank by itself, and comes as rank 2 once more. All
    stand at the same line: who came as whom nothing shows, and the sentence names RANK among what to compare."""
    train(WARM_UP)


@stands(where=("lock", "user_code"))
def semaphore_of_a_program_that_crashed() -> None:
    """A semaphore of System V outlives who held it."""
    semaphore = _LIBC.syscall(_SEMGET, 0, 1, 0o1600)
    take = (ctypes.c_short * 3)(0, -1, 0)
    while _LIBC.semop(semaphore, take, 1):  # here
        continue  # EINTR


@hang(culprits=(3,), where=("lock", "user_code"))
def keeps_the_semaphore_of_its_node() -> None:
    """Rank 3 has the node's semaphore, and stands; ranks 1 and 2 wait for it, and rank 0 for all of them. No kernel
    tells who has it."""
    semaphore = [_LIBC.syscall(_SEMGET, 0, 1, 0o1666)]
    dist.broadcast_object_list(semaphore, 0, device=DEVICE)
    train(WARM_UP)
    if RANK == 3:
        threading.Event().wait()  # here
    while RANK and _LIBC.semop(semaphore[0], (ctypes.c_short * 3)(0, -1, 0), 1):
        continue  # EINTR
    dist.barrier()


@stands(where=("filesystem", "user_code"))
def asynchronous_io_never_ends() -> None:
    """States on NVMe: the kernel's queue is asked for an event that never comes (huggingface/transformers#12715)."""
    context, event = ctypes.c_ulong(0), (ctypes.c_char * 32)()
    _LIBC.syscall(_IO_SETUP, 8, ctypes.byref(context))
    while _LIBC.syscall(_IO_GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None) < 1:  # here
        continue  # EINTR


@stands(where=("lock", "user_code", "filesystem"))
def counter_is_never_raised() -> None:
    """A producer in native code signals by an eventfd; it has given up."""
    os.eventfd_read(os.eventfd(0))  # here


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def backward_of_one_rank_has_no_collective() -> None:
    """An all-gather that autograd knows: where nothing before it needs a gradient, its backward is left out."""
    weight = torch.ones(8, device=DEVICE, requires_grad=True)
    train(WARM_UP)
    for number in range(60):
        frozen = RANK == 2 and number == 10
        parts = torch.distributed.nn.functional.all_gather(weight.detach() if frozen else weight * 2)
        (torch.stack(list(parts)).sum() + weight.sum()).backward()
        step()


@hang(causes=("not_entered",), culprits=(2,))
def coordinator_never_hears_from_one() -> None:
    """Rank 0 receives the results of all, from whoever is first; rank 2 stands at a lock before it sends its own."""
    train(WARM_UP)
    for number in range(12):
        result = torch.ones(4)
        if RANK == 0:
            for _ in range(WORLD - 1):
                dist.recv(result)
        else:
            if RANK == 2 and number == 8:
                held = threading.Lock()
                held.acquire()
                held.acquire()  # here
            dist.send(result, 0)
        step()


@hang(causes=("rank_exited", "not_entered"), culprits=(2,))
def one_becomes_another_program() -> None:
    """`exec` of a clean-up script in a rank's error path; its connections stay open in it."""
    train(WARM_UP)
    if RANK == 2:
        for handle in map(int, os.listdir("/proc/self/fd")):
            try:
                os.set_inheritable(handle, True)
            except OSError:
                continue
        os.execvp("sleep", ["sleep", "1000000"])
    train(60)


@hang(causes=("rank_exited",), culprits=(2,))
def one_leaves_its_work_to_a_fork() -> None:
    """A library makes itself a daemon: the parent exits with 0, the child keeps every connection and trains no more."""
    train(WARM_UP)
    if RANK == 2:
        if os.fork() == 0:
            signal.pause()
        os._exit(0)
    train(60)


@hang(causes=("rank_exited",), culprits=(2,))
def helper_keeps_the_connections_of_the_dead() -> None:
    """Rank 2 is killed; a helper that it had forked holds its sockets open, and no peer sees the end."""
    train(WARM_UP)
    if RANK == 2:
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    train(60)


@hang(causes=("p2p_unmatched",), culprits=())
def all_receive_from_anybody() -> None:
    """Every worker waits for work from whoever has some, and nobody has any left: who should send, nothing tells."""
    train(WARM_UP)
    dist.recv(torch.ones(4))


@stands(where=("user_code", "filesystem"))
def waits_for_a_window_of_a_job() -> None:
    """`flock FILE command`: another program holds the file's lock, and the rank waits for its child."""
    path = Path(tempfile.mkdtemp(), "lock")
    keeper = subprocess.Popen(["flock", str(path), "sleep", "1000000"], env={"PATH": os.environ["PATH"]})
    time.sleep(0.5)
    subprocess.run(["flock", str(path), "true"], env={"PATH": os.environ["PATH"]}, check=False)  # here
    keeper.wait()


if __name__ == "__main__":
    main()
