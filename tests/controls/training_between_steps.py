"""Situations between steps that are no hang: clocks, helpers, pairs, replicas, turns. Started as
`training_between_steps.py NAME`. See common.py."""

import errno
import http.server
import multiprocessing
import os
import select
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.utils.data import DataLoader, Dataset  # noqa: TID251
from torch.utils.file_baton import FileBaton  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    QUIET_SECONDS,
    RANK,
    WARM_UP,
    WORLD,
    beat,
    busy,
    compute,
    every_rank_waits,
    main,
    one_rank_waits,
    situation,
    step,
    stop,
    train,
)


def _shared_folder() -> Path:
    """The same for all ranks."""
    made = [tempfile.mkdtemp() if RANK == 0 else ""]
    dist.broadcast_object_list(made, 0, device=DEVICE)
    return Path(made[0])


def _answer(requests: Connection) -> None:
    while True:
        requests.send(requests.recv())


@one_rank_waits
def server_is_stopped_and_continued(seconds: float) -> None:
    """Who serves the rank's files by a pipe is stopped for a while (its node is migrated), and goes on."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=_answer, args=(theirs,), daemon=True)
    server.start()
    assert server.pid
    stop(server.pid)
    go_on = threading.Timer(min(seconds, FOR_EVER), os.kill, (server.pid, signal.SIGCONT))
    go_on.daemon = True
    go_on.start()
    ours.send("shard")
    ours.recv()
    server.kill()


class _SlowTracker(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(1.5)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


@situation
def steps_are_logged_over_http() -> None:
    """Rank 0 posts each step's loss and waits for the answer; for a while the tracker takes more than a second."""
    train(WARM_UP)
    if RANK == 0:
        server = http.server.HTTPServer(("127.0.0.1", 0), _SlowTracker)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    for _ in range(int(min(QUIET_SECONDS, 600) / 1.6)):
        if RANK == 0:
            direct(url, b"loss").close()
        step()
    train(60)


@situation
def operator_pauses_training() -> None:
    """A file says that training pauses: every rank looks each second whether it is gone."""
    pause = _shared_folder() / "pause"
    train(WARM_UP)
    if RANK == 0:
        pause.touch()
        go_on = threading.Timer(min(QUIET_SECONDS, FOR_EVER), pause.unlink)
        go_on.daemon = True
        go_on.start()
    dist.barrier()
    while pause.exists():
        time.sleep(1.0)
    train(60)


@situation
def others_wait_for_rank_0_s_extension() -> None:
    """torch.utils.cpp_extension: rank 0 compiles and holds the lock file, the others wait for it to go."""
    baton = FileBaton(str(_shared_folder() / "lock"))
    train(WARM_UP)
    if RANK == 0:
        baton.try_acquire()
    dist.barrier()
    if RANK == 0:
        busy(QUIET_SECONDS)
        baton.release()
    else:
        baton.wait()
    train(60)


@situation
def calibrates_alone() -> None:
    """Every rank runs batches of its own without a step (statistics for a quantisation), each as many as it has."""
    train(WARM_UP)
    compute(QUIET_SECONDS * (1 + RANK) / WORLD)
    train(60)


@situation
def gossips_in_pairs() -> None:
    """Decentralised SGD: in each round two pairs average, by sends and receives; rank 1 computes for long once."""
    train(WARM_UP)
    mine, theirs = torch.ones(1024, device=DEVICE), torch.ones(1024, device=DEVICE)
    for number in range(120):
        peer = RANK ^ (1, 2, 3)[number % 3]
        time.sleep(0.03)
        if (RANK, number) == (1, 40):
            busy(QUIET_SECONDS)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]):
            work.wait()
        beat.step()


@situation
def one_replica_ends_earlier() -> None:
    """Two models of two ranks each are trained side by side; the first is done early, and waits in the last barrier."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    train(WARM_UP)
    began = time.monotonic()
    until = torch.ones(1, device=DEVICE)
    while until.item():
        time.sleep(0.05)
        until.fill_(float(time.monotonic() - began < (2.0 if RANK < 2 else QUIET_SECONDS)))
        dist.all_reduce(until, dist.ReduceOp.MAX, group=pairs[RANK // 2])
        beat.step()
    dist.barrier()
    train(20)


@one_rank_waits
def old_checkpoints_are_removed(seconds: float) -> None:
    """Only the last three are kept: thousands of files of the others are removed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        folder = Path(tempfile.mkdtemp())
        for number in range(3000):
            Path(folder, f"{number}.distcp").touch()
        shutil.rmtree(folder)


@every_rank_waits
def one_long_native_call(seconds: float) -> None:
    """A preconditioner is made from eigenvalues: each call takes many seconds in LAPACK, with the GIL given back."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.linalg.eigvals(torch.randn(900, 900))


@situation
def new_group_comes_late() -> None:
    """In mid-run all make a group for the evaluation; rank 1 prepares its part before."""
    train(WARM_UP)
    if RANK == 1:
        busy(QUIET_SECONDS)
    group = dist.new_group(timeout=timedelta(minutes=20))
    dist.barrier(group)
    train(60)


@situation
def root_sorts_what_it_scatters() -> None:
    """Rank 0 sorts the epoch's samples by length, in Python, and scatters them as objects; the others stand there."""
    train(WARM_UP)
    mine: list[object] = [None]
    parts = [list(range(1000)) for _ in range(WORLD)] if RANK == 0 else None
    until = time.monotonic() + QUIET_SECONDS
    while RANK == 0 and time.monotonic() < until:
        sorted(range(200_000), key=lambda number: number * 7919 % 104_729)
    dist.scatter_object_list(mine, parts, 0)
    train(60)


@situation
def steps_are_counted_in_bursts() -> None:
    """The loop counts its steps where it writes its log: sixty at once, every few seconds."""
    for _ in range(int(min(QUIET_SECONDS, 600) / 4) + 4):
        for _ in range(60):
            gradient = torch.ones(1024, device=DEVICE)
            time.sleep(0.06)
            dist.all_reduce(gradient)
        for _ in range(60):
            beat.step()
    train(20)


class _Samples(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        busy(QUIET_SECONDS / 8)
        return torch.ones(1)


@situation
def workers_of_the_loader_are_spawned() -> None:
    """Each worker is a new interpreter that imports torch first."""
    train(WARM_UP)
    if RANK == 1:
        for _ in DataLoader(_Samples(), num_workers=2, multiprocessing_context="spawn"):
            continue
    train(60)


@one_rank_waits
def disk_is_full_for_a_while(seconds: float) -> None:
    """A quota is used up; the checkpoint is tried again every two seconds, until somebody has made room."""
    until = time.monotonic() + seconds
    while True:
        try:
            if time.monotonic() < until:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        except OSError:
            time.sleep(2.0)


@one_rank_waits
def looks_for_a_word_every_two_seconds(seconds: float) -> None:
    """A command channel: select() with a time-out, again and again, until there is a word."""
    ours, theirs = os.pipe()
    word = threading.Timer(min(seconds, FOR_EVER), os.write, (theirs, b"go"))
    word.daemon = True
    word.start()
    while not select.select([ours], [], [], 2.0)[0]:
        continue
    os.read(ours, 2)


@situation
def ranks_take_tickets_in_the_store() -> None:
    """Each rank writes when its ticket is called, so that the file system has one writer at a time; each needs long."""
    train(WARM_UP)
    store = dist.distributed_c10d._get_default_store()
    ticket = store.add("ticket", 1)
    while store.add("called", 0) < ticket - 1:
        time.sleep(0.2)
    busy(QUIET_SECONDS / WORLD)
    store.add("called", 1)
    train(60)


if __name__ == "__main__":
    main()
