"""What whole projects do that no hang is: stages of training, builds, tools of others, children that are polled, files
that flow in small pieces, hooks in children. Started as `training_projects.py NAME`. See common.py."""

import hashlib
import http.client
import http.server
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

# Attached by hand later, or not at all: `attach()` of common.py is turned off.
_UNHOOKED = {"hook_comes_after_warming_up": "0123", "one_rank_has_no_hook": "2"}
if os.environ["RANK"] in _UNHOOKED.get(sys.argv[1], ""):
    os.environ["STALLWATCH_DISABLE"] = "1"

import stallwatch  # noqa: E402
from tests.controls.common import (  # noqa: E402
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
    step,
    train,
    write_slowly,
)
from tests.controls.slow_mount import mounted  # noqa: E402

_FORK = multiprocessing.get_context("fork")


@situation
def first_steps_are_long() -> None:
    """Six steps of five seconds (allocators, caches, autotuning), then short ones."""
    for _ in range(6):
        compute(5.0)
        train(1)
    train(100)


@situation
def curriculum_has_stages() -> None:
    """From one step to the next the sequences are a hundred times as long, twice."""
    train(WARM_UP)
    for seconds in (5.0, 12.0):
        for _ in range(3):
            compute(seconds)
            train(1)
    train(40)


@situation
def pauses_grow() -> None:
    """Rank 0 validates every forty steps, each time on twice as much."""
    for doubled in range(4):
        train(40)
        if RANK == 0:
            compute(QUIET_SECONDS / 8 * 2**doubled)
        dist.barrier()
    train(40)


_WORK = """
import sys, time
end = time.time() + float(sys.argv[1])
while time.time() < end:
    sum(range(10000))
"""


@one_rank_waits
def polls_a_child_that_works(seconds: float) -> None:
    """`while child.poll() is None: sleep(1)`: a converter works in a program of its own."""
    child = subprocess.Popen([sys.executable, "-c", _WORK, str(seconds)])
    while child.poll() is None:
        time.sleep(1.0)


@one_rank_waits
def builds_an_extension(seconds: float) -> None:
    """torch.utils.cpp_extension builds a C++ extension in mid-run, as often as it takes."""
    from torch.utils.cpp_extension import load_inline  # noqa: TID251

    until, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < until:
        number += 1
        source = f"int answer() {{ return {number}; }}"
        with tempfile.TemporaryDirectory() as folder:  # a build that is killed leaves its lock behind
            load_inline(f"control_{number}", source, functions=["answer"], build_directory=folder)


@one_rank_waits
def somebody_profiles_it(seconds: float) -> None:
    """A colleague's py-spy records one rank at a hundred samples a second, each of which pauses it."""
    profiler = subprocess.Popen(
        ["py-spy", "record", "--pid", str(os.getpid()), "--duration", str(int(min(seconds, 1e5))),
         "--output", os.devnull, "--format", "raw"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compute(1.0)
    profiler.wait()


@one_rank_waits
def reads_small_pieces_of_a_slow_store(seconds: float) -> None:
    """A store over FUSE gives four kilobytes every second and a half; they flow."""
    until = time.monotonic() + seconds
    with mounted(1.5) as shard:
        while time.monotonic() < until:
            descriptor = os.open(shard, os.O_RDONLY)
            os.read(descriptor, 4096)
            os.close(descriptor)


@one_rank_waits
def verifies_a_checksum(seconds: float) -> None:
    """A data set's hash is computed over mapped files, in native code."""
    until, data = time.monotonic() + seconds, mmap.mmap(-1, 64 << 20)
    while time.monotonic() < until:
        hashlib.sha256(data).hexdigest()


@one_rank_waits
def copies_a_tree_of_small_files(seconds: float) -> None:
    """shutil.copytree of thousands of small files, again and again."""
    source, until = Path(tempfile.mkdtemp()), time.monotonic() + seconds
    for number in range(2000):
        (source / f"{number}.json").write_text("{}")
    while time.monotonic() < until:
        target = Path(tempfile.mkdtemp()) / "copy"
        shutil.copytree(source, target)
        shutil.rmtree(target.parent)
    shutil.rmtree(source)


@one_rank_waits
def long_poll_with_signs_of_life(seconds: float) -> None:
    """A service answers late, and sends an empty line every three seconds meanwhile."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SignsOfLife)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/judgement")
    connection.getresponse().read()


class _SignsOfLife(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            self.wfile.write(b"\n")
            time.sleep(3.0)

    def log_message(self, *_: object) -> None:
        return


@one_rank_waits
def waits_for_its_turn_at_a_lock(seconds: float) -> None:
    """A rate limiter: a lock between processes that another holds for some seconds at a time."""
    lock, until = _FORK.Lock(), time.monotonic() + seconds
    others = [_FORK.Process(target=_take_turns, args=(lock, seconds), daemon=True) for _ in range(3)]
    for other in others:
        other.start()
    while time.monotonic() < until:
        with lock:
            time.sleep(0.1)
    for other in others:
        other.kill()


def _take_turns(lock: "multiprocessing.synchronize.Lock", seconds: float) -> None:
    while True:
        with lock:
            time.sleep(3.0 if seconds < 1000 else seconds)
        time.sleep(0.2)  # or it takes it again at once, and nobody else ever does


@one_rank_waits
def starts_its_children_anew(seconds: float) -> None:
    """A supervisor within the rank: its worker fails again and again, and is started anew until it holds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(2); raise SystemExit(1)"], check=False)


@situation
def children_attach_too() -> None:
    """Workers of a loader are spawned, run the script's top level anew and attach; then they work and end."""
    train(WARM_UP)
    if RANK in (0, 3):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        work = f"import stallwatch\nbeat = stallwatch.attach()\nbeat.step()\n{_WORK}"
        workers = [
            subprocess.Popen([sys.executable, "-c", work, str(QUIET_SECONDS)], env=environment) for _ in range(2)
        ]
        for worker in workers:
            worker.wait()
    train(60)


@situation
def hook_comes_after_warming_up() -> None:
    """The hook is attached once training runs; soon after rank 0 evaluates."""
    train(40)
    del os.environ["STALLWATCH_DISABLE"]
    late = stallwatch.attach()
    for number in range(WARM_UP + 60):
        if RANK == 0 and number == WARM_UP:
            compute(QUIET_SECONDS)
        step()
        late.step()


@situation
def one_rank_has_no_hook() -> None:
    """Rank 2 is started by another script, without the hook, and evaluates once."""
    train(WARM_UP)
    if RANK == 2:
        compute(QUIET_SECONDS)
    train(60)


@situation
def one_rank_alone_counts_steps() -> None:
    """All attach, and only rank 0 calls `step()`; it saves for long, once."""
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(1024, device=DEVICE))
        if RANK == 0:
            beat.step()
            if number == WARM_UP:
                write_slowly(QUIET_SECONDS)


@situation
def throttled_between_epochs() -> None:
    """All ranks sleep between epochs (cheap hours, a cooling machine)."""
    for _ in range(2):
        train(60)
        time.sleep(QUIET_SECONDS / 2)
    train(60)


@situation
def roles_of_different_rhythms() -> None:
    """Trainers, a judge and a sampler: each counts its own steps, of a twentieth of a second to six."""
    trainers = dist.new_group([0, 1])
    until = time.monotonic() + 2 * QUIET_SECONDS
    while time.monotonic() < until:
        if RANK < 2:
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(64, device=DEVICE), group=trainers)
        elif RANK == 2:
            busy(random.uniform(0.5, 2.0))
        else:
            compute(6.0)
        beat.step()
    dist.barrier()


@situation
def gradients_of_a_minute() -> None:
    """Accumulation over half a minute (a minute or two, compressed) between two synchronisations, from the start."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for _ in range(4):
        for micro in range(8):
            compute(2 * QUIET_SECONDS / 8 * random.uniform(0.9, 1.1))
            with model.no_sync() if micro < 7 else nullcontext():
                model(torch.randn(4, 32, device=DEVICE)).sum().backward()
        beat.step()


@situation
def works_that_are_polled() -> None:
    """Ranks ask again and again whether their reductions have ended; rank 3 comes late to one."""
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if RANK == 3 and number == WARM_UP:
            compute(QUIET_SECONDS)
        work = dist.all_reduce(torch.ones(1024, device=DEVICE), async_op=True)
        assert work is not None
        while not work.is_completed():
            time.sleep(0.005)
        beat.step()


@situation
def pipeline_of_torch_evaluates() -> None:
    """torch's own pipeline schedule (GPipe): the last stage computes a metric for long, once."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: TID251

    batch = torch.randn(16, 32, device=DEVICE)
    stage = PipelineStage(torch.nn.Linear(32, 32).to(DEVICE), RANK, WORLD, DEVICE, input_args=batch[:4])
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).pow(2).mean())
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if RANK == 0:
            schedule.step(batch)
        elif RANK == WORLD - 1:
            schedule.step(target=batch)
            if number == WARM_UP:
                compute(QUIET_SECONDS)
        else:
            schedule.step()
        beat.step()


@situation
def groups_are_made_anew() -> None:
    """After a failure all destroy their groups and meet again, rank 3 late: it reads its weights anew."""
    train(WARM_UP)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 3)
    if RANK == 3:
        compute(QUIET_SECONDS)
    dist.init_process_group("gloo" if DEVICE.type == "cpu" else "nccl")
    train(60)


@situation
def stopped_and_continued_in_turn() -> None:
    """Somebody stops one rank after the other for two seconds (a live migration)."""
    train(WARM_UP)
    for turn in range(WORLD):
        if turn == RANK:
            child = os.fork()
            if child == 0:
                os.kill(os.getppid(), signal.SIGSTOP)
                time.sleep(2.0)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.waitpid(child, 0)
        train(20)


@every_rank_waits
def all_wait_for_a_socket_that_flows(seconds: float) -> None:
    """A data service gives each rank its batches slowly, some hundred bytes a second."""
    mine, other = socket.socketpair()
    child = os.fork()
    if child == 0:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            other.sendall(bytes(200))
            time.sleep(0.5)
        os._exit(0)
    other.close()
    while mine.recv(4096):
        pass
    os.waitpid(child, 0)


@situation
def leaves_by_an_exception_of_its_own() -> None:
    """Early stopping by `raise StopTraining`, on every rank, caught at the top; rank 0 then exports."""
    train(WARM_UP)
    try:
        raise StopIteration("loss has not improved")
    except StopIteration:
        pass
    if RANK == 0:
        compute(QUIET_SECONDS)


if __name__ == "__main__":
    main()
