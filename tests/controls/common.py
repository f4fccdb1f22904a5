"""What the situations of this folder share: a rank's set-up, steps, and work of one kind or another.

CONTROL_SECONDS is how long a situation is quiet; without end it is its twin, a fault of the same kind. CONTROL_BACKEND
is gloo or nccl; NCCL ranks share GPUs where there are fewer, each taken for another host. With CONTROL_BESIDE a second
thread of each rank keeps a group of its own busy.

A program registers its situations with `@situation` and ends with `main()`; `python PROGRAM NAME` is one rank, which
finds us by PYTHONPATH (launching.py). Times are those of a small machine: quiet for longer than any limit that was
learned, shorter than a test's patience.
"""

import hashlib
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

import stallwatch.hook.beat

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
QUIET_SECONDS = float(os.environ.get("CONTROL_SECONDS", "18"))
# What is always as long is done so often that it lasts as long as what is quiet for so many seconds.
ROUNDS = min(10, max(1, round(QUIET_SECONDS / 30)))
STEP_SECONDS = 0.05
BACKEND = os.environ.get("CONTROL_BACKEND", "gloo")
MARK = os.environ.get("CONTROL_MARK")  # a file whose time is that of the last step
FOR_EVER = 1e6  # seconds
# Of all ranks, whoever makes it first.
JOB_FOLDER = Path(tempfile.gettempdir()) / f"stallwatch-control-{os.environ['MASTER_PORT']}"
if BACKEND == "nccl":
    DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())
    if torch.cuda.device_count() < WORLD:
        os.environ["NCCL_HOSTID"] = f"node{RANK}"
    torch.cuda.set_device(DEVICE)
else:
    DEVICE = torch.device("cpu")
# Without a hook nothing but the processes themselves is seen.
beat = stallwatch.hook.beat.OFF if os.environ.get("CONTROL_HOOK") == "off" else stallwatch.attach()
# Without a hook a job must be seen to work for ten seconds before anything is told of it, and is found ten after its
# start: of a loop of its own, which does nothing else in its steps, 320 of them left seven.
WARM_UP = 440 if os.environ.get("CONTROL_HOOK") == "off" else 80  # steps
_MANY_STEPS = 60  # a stretch of training, and no single steps
_LEAST_STEPS = [WARM_UP] if os.environ.get("CONTROL_HOOK") == "off" else []  # of the first stretch
# Of the processor, in each of its steps: who trains uses it. A rank that only sleeps and meets the others takes three
# hundredths, as a poll does: it was not seen to work, and nothing was told of it.
_WORK_SECONDS = 0.004
_SITUATIONS: dict[str, Callable[[], None]] = {}
_BEFORE: dict[str, Callable[[], None]] = {}


def situation(function: Callable[[], None]) -> Callable[[], None]:
    """Register a program under its function's name; the runner reads the names without importing it."""
    _SITUATIONS[function.__name__] = function
    return function


def before_rendezvous(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what a situation does before it initialises its process group."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        _BEFORE[name] = function
        return function

    return register


def one_rank_waits(function: Callable[[float], None]) -> Callable[[float], None]:
    """Register a situation in which rank 1 does this, for so many seconds, in the middle of training."""

    def program() -> None:
        train(WARM_UP)
        if RANK == 1:
            function(QUIET_SECONDS)
        train(60)

    _SITUATIONS[function.__name__] = program
    return function


def every_rank_waits(function: Callable[[float], None]) -> Callable[[float], None]:
    """Register a situation in which all ranks do this at once."""

    def program() -> None:
        train(WARM_UP)
        function(QUIET_SECONDS)
        train(60)

    _SITUATIONS[function.__name__] = program
    return function


def stands(
    *, causes: tuple[str, ...] = ("not_entered",), where: tuple[str, ...] = ()
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a hang in which rank 2 does this, which never ends, in mid-training; the runner reads what must
    be said of it."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        def program() -> None:
            train(WARM_UP)
            if RANK == 2:
                function()
            train(60)

        _SITUATIONS[function.__name__] = program
        return function

    return register


def hang(
    *,
    causes: tuple[str, ...] = ("not_entered",),
    culprits: tuple[int, ...],
    where: tuple[str, ...] = (),
    by_stacks: tuple[str, ...] = (),
    by_nccl: Mapping[str, tuple[str, ...] | tuple[int, ...]] = MappingProxyType({}),
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a hang under its function's name; the runner reads what must be said of it. `by_stacks`: the causes
    where no hook and no recorder tells anything, and nobody is named. `by_nccl`: what of these differs with NCCL, which
    records, and waits for ever, where gloo aborts."""
    return situation


def stop(child: int) -> None:
    """Stop a child, and return once all of its threads stand: on a crowded machine they go on for a while after kill(),
    and a server answered one more request (2 of 12 at a load of 17, 3 of 6 hangs at 19 were none)."""
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)


def busy(seconds: float) -> None:
    """Work on the CPU in Python."""
    until, digest = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        digest = hashlib.sha256(digest * 64).digest()


def compute(seconds: float) -> None:
    """Work on the CPU in torch's own code, in calls of some milliseconds."""
    until, values = time.monotonic() + seconds, torch.randn(256, 256)
    while time.monotonic() < until:
        values = torch.nn.functional.normalize(values @ values)


def synchronize() -> None:
    """Wait for what the GPU was given, as a loop does that reads its loss: NCCL's collectives return at once."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


def step(seconds: float = STEP_SECONDS) -> None:
    gradient = torch.ones(1024, device=DEVICE)
    time.sleep(seconds)
    dist.all_reduce(gradient)
    gradient.div_(WORLD)
    gradient.sum().item()
    beat.step()
    if MARK:
        os.utime(MARK)


def train(steps: int, seconds: float = STEP_SECONDS) -> None:
    """Without a hook the first stretch is as long as a warm-up."""
    least = _LEAST_STEPS.pop() if steps >= _MANY_STEPS and _LEAST_STEPS else 0
    for number in range(max(steps, least)):
        if number < least:
            _work(_WORK_SECONDS)
        step(seconds)


def comes_late() -> None:
    """Of a rank that comes when the others have trained: its first stretch is no longer than theirs."""
    _LEAST_STEPS.clear()


def goes_on_as_before() -> None:
    """Without a hook the next stretch is as the first: who goes on without others does as much in a step."""
    if beat is stallwatch.hook.beat.OFF:
        _LEAST_STEPS.append(WARM_UP)


def _work(seconds: float) -> None:
    until, digest = time.thread_time() + seconds, b""
    while time.thread_time() < until:
        digest = hashlib.sha256(digest * 64).digest()


def train_in_a_thread(between: Callable[[], None]) -> None:
    """Train in a thread, as Ray's workers do, with something done between two steps; the main thread looks for the
    result every second."""
    results: queue.Queue[int] = queue.Queue()

    def loop() -> None:
        train(WARM_UP)
        between()
        train(60)
        results.put(1)

    threading.Thread(target=loop, name="training-loop", daemon=True).start()
    while True:
        try:
            results.get(timeout=1)
            return
        except queue.Empty:
            continue


def train_counted_by_a_thread(between: Callable[[], None]) -> None:
    """Train with something done between two steps; a thread of metrics takes each loss from a queue and counts the
    step."""
    losses: queue.Queue[float] = queue.Queue()

    def count() -> None:
        while True:
            losses.get()
            beat.step()

    threading.Thread(target=count, daemon=True).start()
    for number in range(WARM_UP + 60):
        if number == WARM_UP:
            between()
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(1024, device=DEVICE))
        losses.put(0.5)


def write_slowly(seconds: float) -> None:
    """A checkpoint: blocks are serialised and written until the time is over."""
    with tempfile.TemporaryFile() as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            file.write(pickle.dumps(torch.randn(64_000)))
            file.flush()
            time.sleep(0.02)  # a file system that gives 12 MB/s
            if file.tell() > 64 << 20:
                file.seek(0)


def read_late(seconds: float) -> None:
    """A shard from storage that answers late."""
    fifo = Path(tempfile.mkdtemp()) / "shard.bin"
    os.mkfifo(fifo)
    threading.Thread(target=_write_late, args=(fifo, seconds), daemon=True).start()
    fifo.read_bytes()


def _write_late(fifo: Path, seconds: float) -> None:
    with fifo.open("wb") as file:
        time.sleep(seconds)
        file.write(bytes(4096))


def _keep_busy(group: dist.ProcessGroup) -> None:
    """As an asynchronous checkpoint or a keep-alive does, whatever training does."""
    while True:
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(0.5)


def main() -> None:
    torch.set_num_threads(1)
    name = sys.argv[1]
    _BEFORE.get(name, lambda: None)()
    if not dist.is_initialized():
        dist.init_process_group(BACKEND)
    if "CONTROL_BESIDE" in os.environ:
        group = dist.new_group(backend="gloo")
        threading.Thread(target=_keep_busy, args=(group,), name="keep-alive", daemon=True).start()
    _SITUATIONS[name]()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
