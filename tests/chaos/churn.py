"""An hour of ranks that come and go, in minutes: the reader of ranks by itself, asked as fast as it answers. What a
soak needs hours to show of it is seen here: does it grow by the rank, or by the look?"""

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from stallwatch.encoding import Unpacker, pack
from stallwatch.sensors.sensor import Options
from tests.chaos.node import ROOT, STEPS

CALM_RANKS = 8
_LIVES_SECONDS = 6.0
_BETWEEN_LOOKS_SECONDS = 0.01
_ANSWER_SECONDS = 60.0
_LINES = 12
# What is kept for ten minutes after a rank's end, and what is done each five, are in their turns as well.
_READER = (
    "import sys\nfrom stallwatch.node import free_lists, known_ranks\n"
    "known_ranks._KEEP_SECONDS, free_lists._EVERY_SECONDS = 5.0, float(sys.argv[2])\n"
    "from stallwatch.sensors.child import main\nmain(['ranks', sys.argv[1]])"
)


def run(seconds: float, seed: int, every_seconds: float) -> Iterator[str]:
    """Yield lines of how much memory the reader has, a job of two ranks coming every two seconds. `every_seconds`:
    between what it gives back of freed tuples (node/free_lists.py)."""
    chance, folder = random.Random(seed), Path(tempfile.mkdtemp(prefix="sw-churn-"))
    ranks, known = folder / "ranks", os.memfd_create("known", 0)
    ranks.mkdir()
    options = Options(directories=(str(ranks),), keep_ended_seconds=2.0, discover_seconds=2.0, known=known)
    command = [sys.executable, "-P", "-c", _READER, msgspec.json.encode(options).decode(), str(every_seconds)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(known,))
    jobs = [(float("inf"), _job(ranks, "calm", CALM_RANKS))]
    unpacker, looks, count = Unpacker(), 0, 0
    began = next_job = next_line = time.monotonic()
    try:
        while (now := time.monotonic()) < began + seconds:
            looks += 1
            _ask(reader, unpacker, looks)
            if now >= next_job:
                jobs.append((now + _LIVES_SECONDS, _job(ranks, f"job-{count}", 2)))
                count, next_job = count + 1, now + 2.0
            for end_at, job in [one for one in jobs if one[0] < now]:
                _end(job, chance.choice((signal.SIGKILL, signal.SIGUSR2)))
                jobs.remove((end_at, job))
            if now >= next_line:
                process = psutil.Process(reader.pid)
                yield (
                    f"{now - began:4.0f} s, {looks} looks, {count} jobs: {process.memory_info().rss / 1e6:.2f} MB, "
                    f"handles {process.num_fds()}, threads {process.num_threads()}"
                )
                next_line = now + seconds / _LINES
            time.sleep(_BETWEEN_LOOKS_SECONDS)
    finally:
        reader.kill()
        reader.wait()
        for _, job in jobs:
            _end(job, signal.SIGKILL)
        os.close(known)
        shutil.rmtree(folder, ignore_errors=True)


def _job(directory: Path, name: str, size: int) -> list["subprocess.Popen[bytes]"]:
    common = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "monitor"), "STALLWATCH_DIR": str(directory)}
    common |= {"STALLWATCH_JOB": name, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    null = subprocess.DEVNULL
    return [
        subprocess.Popen(
            [sys.executable, "-S", str(STEPS)],
            stdin=null,
            stdout=null,
            stderr=null,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]


def _end(job: list["subprocess.Popen[bytes]"], number: int) -> None:
    for rank in job:
        rank.send_signal(number)
    for rank in job:
        try:
            rank.wait(5)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _ask(reader: "subprocess.Popen[bytes]", unpacker: Unpacker, number: int) -> None:
    """Ask it once and take its answer, and what it says by itself meanwhile."""
    assert reader.stdin is not None and reader.stdout is not None
    reader.stdin.write(pack(msgspec.msgpack.encode(number)))
    reader.stdin.flush()
    answered = False
    while not answered:
        ready, _, _ = select.select([reader.stdout], [], [], _ANSWER_SECONDS)
        assert ready, "the reader of ranks does not answer"
        data = os.read(reader.stdout.fileno(), 1 << 18)
        assert data, "the reader of ranks has ended"
        answered = any(msgspec.msgpack.decode(message)["request"] == number for message in unpacker.feed(data))
