"""Hands files, one by one, to children that parse them; a file that kills or stalls its child is a caveat."""

import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from stallwatch.bundle.child import READY, OpenFile, ParsedParts, ParseTask, main
from stallwatch.encoding import msgpack_of
from stallwatch.errors import StallwatchError
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.node.children import OwnFork, module_of_ours, start_own
from stallwatch.node.worker import Worker

_MAXIMUM_ANSWER_BYTES: Final = 512 << 20
_BYTES_PER_WORKER: Final = 8 << 20  # starting a second interpreter pays beyond this
_MAXIMUM_WORKERS: Final = 8
_START_SECONDS: Final = 60.0  # of an interpreter, on a machine that has much else to do: no file is to blame for it
_END_SECONDS: Final = 1.0  # one that is blocked in a file system is left to it
# glibc's: what a file took is kept for the next one, not given back to the kernel, which would have to clear it anew
# for each block of a log (a fifth of the time) and each dump.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
# Neither the environment nor the working directory takes part in the child's imports (-I), and -S saves the time of
# looking for site-packages again: it gets our path.
_START: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from stallwatch.bundle.child import main; "
    "sys.exit(main(int(sys.argv[1]), ahead=sys.argv[2] == 'ahead'))"
)


class Limits(msgspec.Struct, frozen=True):
    """What one file may cost, and all of them."""

    # Interpreter and imports take about 60 MiB of addresses; a whole 256 MiB dump and its columns fit below this.
    address_space_bytes: int = 1536 << 20
    seconds: float = 20.0
    bytes_per_second: int = 2 << 20  # a slow, shared machine still parses this much: larger files get longer
    lost_seconds: float = 120.0  # spent on files that were too much in all; then the others are not tried any more
    answers_bytes: int = 512 << 20  # what all files say; in memory it takes several times as much


DEFAULT_LIMITS: Final = Limits()


class FileTask(msgspec.Struct):
    """One file. `open` returns its descriptor, or raises OSError or StallwatchError; `done` gets what came of it: the
    result as msgpack, or the clause that says why there is none."""

    part: OpenFile
    size_bytes: int
    open: Callable[[], int]
    done: Callable[[msgspec.Raw | None, str], None]

    def opened(self) -> int | None:
        """A descriptor of the file, or None once its problem has been told."""
        try:
            return self.open()
        except OSError as error:
            self.done(None, f"it cannot be opened: {error.strerror or error}")
        except StallwatchError as error:
            self.done(None, str(error))
        return None


class Task(msgspec.Struct):
    """Files that go to a child together. With a rank they are its recorders, and `summarised` gets their summary."""

    files: list[FileTask]
    rank: int | None = None
    summarised: Callable[[msgspec.Raw], None] | None = None

    @property
    def size_bytes(self) -> int:
        """Size of all its files together."""
        return sum(file.size_bytes for file in self.files)


_ahead: Final[list[tuple[Limits, Worker]]] = []


def start_ahead(limits: Limits = DEFAULT_LIMITS) -> None:
    """Start a child before there is anything to parse, for the next `parse_all` with these limits: it imports
    meanwhile. Raise OSError."""
    worker = _worker(limits, "ahead")
    worker.start()
    _ahead.append((limits, worker))


def _started_ahead(limits: Limits) -> Worker | None:
    """One that lives, which is the caller's from now on."""
    for one in [one for one in _ahead if one[0] == limits]:
        _ahead.remove(one)
        if one[1].is_alive:
            return one[1]
        one[1].end(0.0)
    return None


def _worker(limits: Limits, when: str = "now") -> Worker:
    # A lock that another thread holds would be held for ever in a copy of this process.
    if when == "forked" and threading.active_count() == 1:
        parse = partial(main, limits.address_space_bytes)
        fork = partial(OwnFork, parse, module_of_ours("stallwatch.bundle.child"), leads_session=False, quiet=True)
        return Worker(fork, limit_bytes=_MAXIMUM_ANSWER_BYTES)
    arguments = [str(limits.address_space_bytes), when, *filter(None, sys.path)]
    command = [sys.executable, "-I", "-S", "-c", _START, *arguments]
    start = start_own(command, leads_session=False, quiet=True, variables=_ALLOCATOR)
    return Worker(start, limit_bytes=_MAXIMUM_ANSWER_BYTES)


def parse_all(
    tasks: Sequence[Task],
    limits: Limits = DEFAULT_LIMITS,
    meanwhile: Callable[[], object] | None = None,
    *,
    forks: bool = False,
) -> None:
    """Run every task; each file gets its `done` exactly once, in this thread. What a file does never raises here.
    `meanwhile` is called in a thread of its own once the children are started: this one has little to do. `forks`: the
    children are copies of this process where that has one thread, and need not start and import for 0.1 s each."""
    waiting = deque(tasks)
    spent = _Spent(limits)
    total_bytes = sum(task.size_bytes for task in tasks)
    count = min(_MAXIMUM_WORKERS, os.cpu_count() or 1, len(tasks), 1 + total_bytes // _BYTES_PER_WORKER)
    with selectors.DefaultSelector() as selector:
        workers = [_Reader(selector, limits, waiting, spent, "forked" if forks else "now") for _ in range(count)]
        if meanwhile is not None and workers:
            threading.Thread(target=meanwhile, name="meanwhile", daemon=True).start()
        try:
            while waiting or any(worker.task for worker in workers):
                if clause := spent.all():
                    _refuse(waiting, clause)
                for worker in workers:
                    worker.take_next()
                _serve(selector, workers)
        finally:
            for worker in workers:
                worker.end()


class _Spent:
    """What reading has cost so far, over all workers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.lost_seconds = 0.0
        self.answers_bytes = 0

    def all(self) -> str:
        """A clause when nothing more may be read, "" otherwise."""
        if self.lost_seconds > self._limits.lost_seconds:
            return "not read: files before it were too much for their reader, and took too long together"
        if self.answers_bytes > self._limits.answers_bytes:
            return "not read: the files before it say more than fits into memory"
        return ""


def _refuse(waiting: deque[Task], clause: str) -> None:
    while waiting:
        for file in waiting.popleft().files:
            file.done(None, clause)


def _serve(selector: selectors.BaseSelector, workers: Sequence["_Reader"]) -> None:
    """Wait until a worker has something to say or is late."""
    busy = [worker for worker in workers if worker.task]
    if not busy:
        return
    soonest = min(worker.deadline for worker in busy)
    ready = {key.data for key, _ in selector.select(max(0.0, soonest - time.monotonic()))}
    for worker in busy:
        if worker in ready:
            worker.read()
        elif time.monotonic() >= worker.deadline:
            worker.lose("reading it took too long and was ended")


class _Reader:
    """One child, replaced when a file was too much for it."""

    def __init__(
        self, selector: selectors.BaseSelector, limits: Limits, waiting: deque[Task], spent: _Spent, when: str
    ) -> None:
        self.task: Task | None = None
        self._spent = spent
        self._given = self._seconds = 0.0
        self._is_ready = False  # it has started
        self.deadline = 0.0
        self._limits = limits
        self._waiting = waiting
        self._selector = selector
        started = _started_ahead(limits)
        self._worker = started or _worker(limits, when)
        if started is None:
            self._start()
        else:
            self._register()

    def take_next(self) -> None:
        """When idle, give the child the next files that can be opened."""
        while self.task is None and self._waiting:
            task = self._waiting.popleft()
            opened = [(file, descriptor) for file in task.files if (descriptor := file.opened()) is not None]
            try:
                if opened:
                    task.files = [file for file, _ in opened]
                    self._give(task, [descriptor for _, descriptor in opened])
            finally:
                for _, descriptor in opened:
                    os.close(descriptor)

    def read(self) -> None:
        """Take in what the child says, and pass the answer on when it is whole."""
        try:
            for message in self._worker.messages():
                if message == READY:
                    self._is_ready, self._given = True, time.monotonic()
                    self.deadline = self._given + self._seconds
                    continue
                self._pass_on(_ANSWER.decode(message))
                return
        except (ValueError, *NOT_JSON):
            self.lose("the process that read it answered nonsense")
            return
        if self._worker.has_ended:
            self.lose("reading it takes more memory or time than it may")

    def lose(self, clause: str) -> None:
        """The task has cost us the child. Of several files each is tried again alone, so that only one is lost."""
        task, self.task = self.task, None
        self._spent.lost_seconds += time.monotonic() - self._given
        self._restart()
        if task is None:
            return
        if len(task.files) == 1:
            task.files[0].done(None, clause)
        else:
            self._waiting.extendleft(Task([file]) for file in reversed(task.files))

    def end(self) -> None:
        if self._worker.descriptor is not None:
            self._selector.unregister(self._worker.descriptor)
        self._worker.end(_END_SECONDS, patience_seconds=0.0)

    def _start(self) -> None:
        self._is_ready = False
        self._worker.start()
        self._register()

    def _register(self) -> None:
        assert self._worker.descriptor is not None
        self._selector.register(self._worker.descriptor, selectors.EVENT_READ, self)

    def _restart(self) -> None:
        self.end()
        self._start()

    def _give(self, task: Task, descriptors: Sequence[int]) -> None:
        self.task = task
        self._given = time.monotonic()
        self._seconds = self._limits.seconds + task.size_bytes / self._limits.bytes_per_second
        self.deadline = time.monotonic() + self._seconds + (0.0 if self._is_ready else _START_SECONDS)
        job = msgpack_of(ParseTask(tuple(file.part for file in task.files), task.rank))
        try:
            sent = self._worker.ask(job, self.deadline, descriptors)
        except BrokenPipeError:
            sent = False
        if not sent:
            self.lose("the process that reads it could not be started")

    def _pass_on(self, answer: ParsedParts) -> None:
        task = self.task
        assert task is not None
        if len(answer.parts) != len(task.files) or (answer.spent and len(task.files) > 1):
            self.lose("the process that read it answered nonsense")
            return
        self.task = None
        self._spent.answers_bytes += sum(len(memoryview(part.value)) for part in answer.parts) + len(
            memoryview(answer.summary)
        )
        if answer.spent:
            self._spent.lost_seconds += time.monotonic() - self._given
            self._restart()
        for file, part in zip(task.files, answer.parts, strict=True):
            file.done(None if part.problem else part.value, part.problem)
        if task.summarised is not None and bytes(answer.summary) != _NOTHING:
            task.summarised(answer.summary)


_ANSWER: Final = msgspec.msgpack.Decoder(ParsedParts)
_NOTHING: Final[Any] = b"\xc0"  # msgpack's nil
