"""Small programs in a known state, each claiming to be a rank, with a record as a hook writes it. They say "ready"
through a pipe, never by a sleep."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import JobKey, RankSample
from stallwatch.node.heartbeat_file import prepare, read_heartbeat
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.sensors.processes import ProcessWatch
from tests.builders.records import write_record

READY = "import os, sys, time, threading\nprint('ready', flush=True)\n"
SLEEPS = READY + "time.sleep(600)\n"
WAITS_FOR_LOCK = (
    READY
    + """
def take_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
take_lock()
"""
)
# As facts of the laboratory say: PyDLL keeps the GIL over the call.
HOLDS_GIL = (
    READY
    + """
import ctypes
class timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def native_work():
    ctypes.PyDLL(None).nanosleep(ctypes.byref(timespec(600, 0)), None)
native_work()
"""
)
# A parent is uninterruptible until the child of its vfork calls exec or exits.
UNINTERRUPTIBLE = """
import ctypes, subprocess, sys
library = sys.argv[1]
subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], check=True, input=b'''
#include <unistd.h>
int wait_for_disk(void) { if (vfork() == 0) { sleep(600); _exit(0); } return 0; }
''')
def read_shard():
    print("ready", flush=True)
    ctypes.CDLL(library).wait_for_disk()
read_shard()
"""
# What a tracer's stop ends with EINTR (signal(7)); the program does not ask again, as few in C do.
WAITS_FOR_AIO = """
import ctypes
library = ctypes.CDLL(None)
context, event = ctypes.c_ulong(0), (ctypes.c_char * 32)()
assert library.syscall(206, 8, ctypes.byref(context)) == 0
def wait_for_events():
    print("ready", flush=True)
    library.syscall(208, context, ctypes.c_long(1), ctypes.c_long(1), event, None)
wait_for_events()
"""
WITH_WORKER = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    def fetch_sample():
        os.write(write, b'x')
        time.sleep(600)
    fetch_sample()
os.read(read, 1)
print('ready', flush=True)
def next_batch():
    os.read(read, 1)
next_batch()
"""


class Subject:
    def __init__(self, program: str, directory: Path, rank: int = 0) -> None:
        self.rank = rank
        self.directory = directory
        prepare(directory)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(directory / f"library-{rank}.so")],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def state(self) -> str:
        with ProcessDirectory(self.pid) as directory:
            return directory.stat().state

    def wait_for_state(self, letters: str) -> None:
        deadline = time.monotonic() + 20
        while self.state() not in letters:
            assert time.monotonic() < deadline, f"process {self.pid} is {self.state()}, not {letters}"
            time.sleep(0.005)

    def wait_for_wchan(self, symbol: str) -> None:
        deadline = time.monotonic() + 20
        while (seen := Path(f"/proc/{self.pid}/wchan").read_text()) != symbol:
            assert time.monotonic() < deadline, f"process {self.pid} sleeps in {seen}, not {symbol}"
            time.sleep(0.005)

    def sample(self, *, with_hook: bool = False) -> RankSample:
        watch = ProcessWatch(self.pid)
        heartbeat = (
            Known(read_heartbeat(self.write_record()), time.monotonic_ns()) if with_hook else Unavailable("no hook", 0)
        )
        sample = RankSample(
            job=JobKey("job", "epoch"),
            rank=self.rank,
            local_rank=self.rank,
            world_size=2,
            pid=self.pid,
            start_ticks=watch.start_ticks,
            heartbeat=heartbeat,
            process=Known(watch.sample(), time.monotonic_ns()),
        )
        watch.close()
        return sample

    def write_record(self, answered: int = 0, refused_errno: int = 0) -> Path:
        """Write the record that this process' hook would write now."""
        with ProcessDirectory(self.pid) as directory:
            start_ticks = directory.stat().start_ticks
        return write_record(
            self.directory, self.rank, self.pid, start_ticks, answered_request=answered, refused_errno=refused_errno
        )

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(program: str, directory: Path, rank: int = 0) -> Iterator[Subject]:
    subject = Subject(program, directory, rank)
    try:
        yield subject
    finally:
        subject.end()
