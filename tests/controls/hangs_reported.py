"""Hangs of kinds that people report, of one rank and of several. Started as `hangs_reported.py NAME`. See common.py."""

import atexit
import http.server
import logging
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
import torch.multiprocessing  # noqa: TID251

from tests.controls.common import DEVICE, FOR_EVER, RANK, WARM_UP, WORLD, beat, hang, main, stands, step, train

_KEPT: list[Any] = []
_STUCK = threading.Event()


@stands(where=("user_code", "filesystem"))
def line_without_an_end() -> None:
    """select says that there is output, and readline waits for the end of a line which a progress bar never writes
    (mlcommons/storage#391)."""
    program = "import sys, time; sys.stdout.write('12%\\r'); sys.stdout.flush(); time.sleep(1e6)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={})
    assert child.stdout
    select.select([child.stdout], [], [])
    child.stdout.readline()  # here


@stands(where=("lock", "socket", "user_code"))
def log_handler_sends_to_a_dead_server() -> None:
    """A metrics thread logs, and its handler stands in a socket with logging's lock held: so does whoever logs next."""
    ours, _KEPT[:] = socket.socketpair(), [None]
    _KEPT.append(ours)

    class Shipper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            while True:
                ours[0].send(bytes(4096))  # here

    log = logging.getLogger("metrics")
    log.addHandler(Shipper())
    threading.Thread(target=log.error, args=("loss",), daemon=True).start()
    time.sleep(0.5)
    log.error("step")


@stands(where=("lock", "user_code"))
def queue_is_joined() -> None:
    """`queue.join()` waits for every task to be done, and a consumer forgot to say so of one."""
    tasks: queue.Queue[int] = queue.Queue()
    tasks.put(1)
    tasks.get()
    tasks.join()  # here


@stands(where=("lock", "user_code", "unknown", "collective"))
def torch_s_future_that_nobody_sets() -> None:
    """The same of torch's own futures, which wait in C++; its text is that of a collective's wait."""
    torch.futures.Future().wait()  # type: ignore[no-untyped-call,unused-ignore] # here


@stands(where=("user_code", "lock"))
def any_child_is_waited_for() -> None:
    """`os.wait()`: the child that it meant was reaped by somebody else, and another one lives for ever."""
    _KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"], env={}))
    subprocess.run(["true"], check=True)
    os.wait()  # here


def _helper(_: int) -> None:
    multiprocessing.Event().wait()


@stands(where=("user_code", "lock"))
def spawned_helper_is_joined() -> None:
    """torch.multiprocessing's processes, joined; the only one waits for an event that nobody sets."""
    torch.multiprocessing.start_processes(_helper, nprocs=1, start_method="fork")  # here


@stands(where=("user_code", "busy_loop"))
def clock_is_polled() -> None:
    """A rate limit in milliseconds was taken for seconds; the loop looks at the clock ten times a second."""
    until = time.time() + 86_400_000
    while time.time() < until:
        time.sleep(0.1)  # here


@stands(where=("user_code", "lock", "dataloader"))
def forked_worker_computes() -> None:
    """A pool is forked after torch's own threads were: a worker's first large product waits for threads that are not
    there (OpenMP after fork)."""
    torch.set_num_threads(2)
    big = torch.randn(400, 400)
    big @ big
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(_product, [big])  # here


def _product(big: torch.Tensor) -> None:
    torch.set_num_threads(2)
    for _ in range(10):
        big = big @ big
    signal.pause()


@stands(where=("lock", "user_code", "filesystem"))
def lock_file_of_a_dead_process() -> None:
    """A soft lock's file names a process that is no more; nobody removes it."""
    path = Path(tempfile.mkdtemp()) / "dataset.lock"
    path.write_text("999999")
    while path.exists():
        time.sleep(0.25)  # here


@stands(where=("socket", "user_code"))
def service_of_the_tracker_is_silent() -> None:
    """A tracker's finish() sends a request to its own service by a local socket, and reads the answer bit by bit."""
    ours, theirs = socket.socketpair()
    _KEPT.append(theirs)
    ours.sendall(b'{"request": "finish"}\n')
    ours.settimeout(1.0)
    while True:
        try:
            if not ours.recv(1):  # here
                return
        except TimeoutError:
            continue


@stands(where=("lock", "user_code"))
def callback_waits_for_its_own_thread() -> None:
    """A heartbeat thread is stopped from its own callback's lock: join of a thread that waits for us."""
    lock = threading.Lock()
    lock.acquire()

    def beat_once() -> None:
        with lock:
            pass

    heart = threading.Thread(target=beat_once, daemon=True)
    heart.start()
    heart.join()  # here


@stands(where=("user_code", "lock", "teardown"))
def timer_is_never_cancelled() -> None:
    """The end of a context waits for a timer that starts itself anew for ever."""
    done = threading.Event()

    def again() -> None:
        timer = threading.Timer(0.5, again)
        timer.daemon = True
        timer.start()

    again()
    while not done.is_set():
        done.wait(0.5)  # here


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(0,))
def metric_of_rank_0_meets_nobody() -> None:
    """Rank 0 alone computes a metric whose compute() gathers over all ranks; the others train on."""
    train(WARM_UP)
    if RANK == 0:
        dist.all_gather([torch.ones(2, device=DEVICE) for _ in range(WORLD)], torch.ones(2, device=DEVICE))
    train(60)


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(2,))
def empty_batch_leaves_out_its_statistics() -> None:
    """A synchronised batch norm: the rank with an empty batch skips its statistics and reduces its gradient."""
    train(WARM_UP)
    for number in range(60):
        if RANK != 2 or number != 10:
            dist.all_gather([torch.ones(3, device=DEVICE) for _ in range(WORLD)], torch.ones(3, device=DEVICE))
        step()


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(2,))
def destructor_calls_a_collective() -> None:
    """An object's end averages over all ranks; on rank 2 the garbage collector came sooner."""

    class Averager:
        def __del__(self) -> None:
            dist.broadcast(torch.ones(2, device=DEVICE), 1)

    held = Averager()
    train(WARM_UP)
    if RANK == 2:
        del held
        train(60)
    else:
        train(60)
        del held


@hang(causes=("data_exhausted", "collective_mismatch", "not_entered"), culprits=(2,))
def exit_handler_waits_in_a_barrier() -> None:
    """Rank 2 has no more data and exits; its exit handler waits for all in a barrier, the others train."""
    atexit.register(dist.barrier)
    train(WARM_UP)
    if RANK == 2:
        sys.exit(0)
    train(6000)


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(0,))
def rank_0_sends_its_schedule() -> None:
    """Rank 0 broadcasts a new learning rate within `if rank == 0`."""
    train(WARM_UP)
    if RANK == 0:
        dist.broadcast_object_list([{"rate": 1e-4}], src=0, device=DEVICE)
    train(60)


@hang(causes=("collective_mismatch",), culprits=(), by_nccl={"culprits": (2,)})
def handler_tells_all_of_its_error() -> None:
    """Rank 2's exception handler counts the errors of all ranks; no other has one. The sizes differ, gloo aborts it and
    all are gone before a dump: who is wrong is not known."""
    train(WARM_UP)
    try:
        if RANK == 2:
            raise ValueError("a corrupt sample")
        train(60)
    except ValueError as error:
        dist.all_reduce(torch.ones(1, device=DEVICE))
        print(error)


@hang(causes=("not_entered",), culprits=(2,), where=("socket",))
def asks_a_rank_that_waits_for_it() -> None:
    """Rank 2 asks rank 0's server for its shard; the server answers when rank 0's step is over, which waits for
    rank 2."""
    step_is_over = threading.Event()

    class Shards(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            step_is_over.wait()

        def log_message(self, *_: object) -> None:
            return

    port = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    if RANK == 0:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shards)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port.fill_(server.server_address[1])
    dist.broadcast(port, 0)
    train(WARM_UP)
    if RANK == 2:
        urllib.request.urlopen(f"http://127.0.0.1:{int(port.item())}/shard")  # here
    step()
    step_is_over.set()


@hang(causes=("rank_exited",), culprits=(), by_nccl={"causes": ("not_entered",), "culprits": (2,)})
def one_takes_its_groups_down() -> None:
    """Rank 2 destroys its groups in an exception's handler and waits for a lock; the others' connections break, and
    what is told of their end is that it lived then."""
    train(WARM_UP)
    if RANK == 2:
        dist.destroy_process_group()
        _STUCK.wait()
    train(60)


@hang(causes=("collective_mismatch",), culprits=(), by_nccl={"culprits": (2,)})
def splits_of_experts_disagree() -> None:
    """A mixture of experts: rank 2 sends its tokens by splits of its own, the others expect equal ones. gloo aborts who
    receives too much, and all are gone before a dump."""
    train(WARM_UP)
    splits = [4] * WORLD
    sent = [8, *splits[1:]] if RANK == 2 else splits
    out = torch.zeros(sum(splits), device=DEVICE)
    dist.all_to_all_single(out, torch.ones(sum(sent), device=DEVICE), splits, sent)
    train(60)


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted", "rank_raised", "rank_exited"), culprits=(2,))
def sampler_meets_nobody() -> None:
    """Rank 2's epoch begins sooner, and its sampler agrees with all ranks on a seed. Under NCCL it takes the others'
    gradients for the size of an object, and has no memory for so much."""
    train(WARM_UP)
    for number in range(60):
        if number == (10 if RANK == 2 else 40):
            dist.broadcast_object_list([number], src=1, device=DEVICE)
        step()


@hang(causes=("not_entered", "data_exhausted", "rank_exited"), culprits=(1,))
def one_waits_for_the_last_upload() -> None:
    """The end: rank 1 joins its uploading thread, whose server is silent, before the last barrier."""
    train(WARM_UP)
    ours = socket.socketpair()
    uploads = threading.Thread(target=ours[0].recv, args=(1,), daemon=True)
    uploads.start()
    if RANK == 1:
        uploads.join()  # here
    dist.barrier()


@hang(causes=("not_entered",), culprits=(3,), where=("lock", "user_code"))
def waits_for_work_of_its_own_thread() -> None:
    """Rank 3's training thread waits for a result of its evaluating thread, which waits in a queue for its model."""
    train(WARM_UP)
    models: queue.Queue[int] = queue.Queue()
    results: queue.Queue[int] = queue.Queue()
    if RANK == 3:
        threading.Thread(target=lambda: results.put(models.get()), daemon=True).start()
        results.get()  # here
    train(60)


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(1,), by_stacks=("p2p_unmatched",))
def stage_returns_early() -> None:
    """A pipeline of four: stage 1 leaves out one micro-batch, and goes on to the next step's collective."""
    train(WARM_UP)
    for number in range(60):
        for part in range(4):
            if RANK == 1 and (number, part) == (10, 3):
                continue
            batch = torch.ones(8, device=DEVICE)
            if RANK > 0:
                dist.recv(batch, RANK - 1)
            if RANK < WORLD - 1:
                dist.send(batch, RANK + 1)
        step()


@hang(culprits=(2,), where=("user_code", "lock", "filesystem"))
def signal_comes_in_an_import() -> None:
    """A handler imports a module while the main thread imports it, too."""
    folder = Path(tempfile.mkdtemp())
    (folder / "slowly.py").write_text("import time\ntime.sleep(1e6)\n")
    train(WARM_UP)
    if RANK == 2:
        sys.path.insert(0, str(folder))
        threading.Thread(target=__import__, args=("slowly",), daemon=True).start()
        time.sleep(0.5)
        __import__("slowly")  # here
    train(60)


@hang(culprits=(2,), where=("user_code",))
def sleeps_in_the_last_phase() -> None:
    """All but rank 2 have ended their epoch and count it; rank 2 sleeps in its own."""
    for _ in range(WARM_UP // 8):
        for _ in range(8):
            time.sleep(0.05)
            dist.all_reduce(torch.ones(64, device=DEVICE))
        beat.step()
    if RANK == 2:
        time.sleep(FOR_EVER)  # here
    dist.barrier()


if __name__ == "__main__":
    main()
