"""A real redis-server whose wall clock is ours: what expires there expires by it. Needs redis-server and a C compiler.

libfaketime does not do: with jemalloc, as Debian builds the server, it calls itself before it is set up.
"""

import contextlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import redis

from stallwatch.fleet.redis_place import RedisPlace
from tests.builders.clock import SECOND_NS, WALL_NS
from tests.builders.redis_server import SERVER, redis_server
from tests.chaos.fleet_places import Places

COMPILER: Final = shutil.which("cc") or shutil.which("gcc")
_CLOCK: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *hand;

static int64_t now(void) {
    if (!hand) {
        int file = open(getenv("CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
        hand = mmap(0, sizeof *hand, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *hand;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, out);
    int64_t ns = now();
    out->tv_sec = ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *out, void *zone) {
    int64_t ns = now();
    (void)zone;
    out->tv_sec = ns / 1000000000;
    out->tv_usec = ns / 1000 % 1000000;
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = now() / 1000000000;
    if (out) *out = seconds;
    return seconds;
}
"""


class RedisInTime:
    """The server, as one story after the other uses it."""

    def __init__(self, client: "redis.Redis", hand: mmap.mmap) -> None:
        self._client, self._hand = client, hand
        self._places: dict[str, RedisPlace] = {}
        self._began_ns = WALL_NS

    def set_time(self, seconds: float) -> None:
        """So many seconds after the beginning of the story."""
        self._hand[:8] = int(self._began_ns + seconds * SECOND_NS).to_bytes(8, "little")

    def _place(self, number: int, key: str) -> RedisPlace:
        return self._places.setdefault(key, RedisPlace(self._client, "redis://simulated", key))

    def places(self) -> Places:
        """An empty server for the next story, some hours after the last one."""
        self._began_ns += 6 * 3600 * SECOND_NS
        self._client.flushall()
        return Places(self._place, self._client.flushall, self.set_time)


@contextlib.contextmanager
def redis_in_time(folder: Path) -> Iterator[RedisInTime]:
    """Start one. Raise FileNotFoundError where there is no server, or no compiler."""
    if SERVER is None or COMPILER is None:
        raise FileNotFoundError("redis-server and a C compiler: apt-get install redis-server gcc")
    source, library, clock, socket = (folder / name for name in ("clock.c", "clock.so", "clock", "redis.sock"))
    source.write_text(_CLOCK)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    clock.write_bytes(WALL_NS.to_bytes(8, "little"))
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_FILE": str(clock)}
    running = redis_server(
        folder, "--port", "0", "--unixsocket", str(socket), listens=socket, program=SERVER, environment=environment
    )
    with (
        clock.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as hand,
        running,
        contextlib.closing(redis.Redis(unix_socket_path=str(socket))) as client,
    ):
        yield RedisInTime(client, hand)
