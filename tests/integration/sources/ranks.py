"""Ranks with the real hook, in surroundings of a test's choice."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.sensors.ranks import RanksSensor
from stallwatch.sensors.sensor import Options

T = TypeVar("T")
SECONDS = 30.0
HOOKED = """
import os, sys, time
import stallwatch
beat = stallwatch.attach()
beat.step()
print("ready", flush=True)
def read_shard():
    sys.stdin.read()
read_shard()
"""


class HookedRank:
    """A process that `prefix` starts in its surroundings."""

    def __init__(self, directory: Path, *prefix: str, program: str = HOOKED, job: str = "job") -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29777",
            "STALLWATCH_DIR": str(directory),
            "STALLWATCH_JOB": job,
        }
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def hooked(directory: Path, *prefix: str, program: str = HOOKED) -> Iterator[HookedRank]:
    rank = HookedRank(directory, *prefix, program=program)
    try:
        yield rank
    finally:
        rank.end()


@contextlib.contextmanager
def sensor_of(directory: Path) -> Iterator[RanksSensor]:
    sensor = RanksSensor(Options((str(directory),), discover_seconds=0.2))
    try:
        yield sensor
    finally:
        sensor.close()


def seen(sensor: RanksSensor, job: str = "job") -> RankSample:
    """The rank as the sensor sees it, once it does and its process can be read."""

    def look() -> RankSample | None:
        mine = [rank for rank in sensor.read().ranks if rank.job.training_job == job]
        return mine[0] if mine and isinstance(mine[0].process, Known) else None

    return until(look, "the rank is seen")


def until(look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
        time.sleep(0.02)
    return found


def can(*command: str) -> bool:
    """Whether these surroundings can be had here."""
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
