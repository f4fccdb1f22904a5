"""Who holds a lock on a file, by /proc/locks."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from stallwatch.captures.file_locks import holder_of, parse_locks

_LOCKS = b"""\
1: POSIX  ADVISORY  READ 900 fe:00:2933001 128 128
2: FLOCK  ADVISORY  WRITE 11559 fe:00:5325408 0 EOF
2: -> FLOCK  ADVISORY  WRITE 14611 fe:00:5325408 0 EOF
2:  -> FLOCK  ADVISORY  WRITE 18750 fe:00:5325408 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:5325409 0 EOF
3: -> OFDLCK ADVISORY  WRITE 40 fe:00:5325409 0 EOF
4: LEASE  ACTIVE    READ 7
5: -> FLOCK  ADVISORY  WRITE 41 fe:00:1 0 EOF
"""


@pytest.mark.parametrize(("pid", "holder"), [
    (14611, 11559), (18750, 11559), (11559, None), (900, None), (40, None), (41, None), (1, None),
])  # fmt: skip
def test_the_line_of_the_same_number_without_an_arrow_holds_it(pid: int, holder: int | None) -> None:
    assert parse_locks(_LOCKS, pid) == holder


@pytest.mark.parametrize("data", [b"", b"\n\n", b"x\xff y", b"1: -> FLOCK A W", b"1: FLOCK A W x f 0 EOF\n"])
def test_other_text_tells_nothing(data: bytes) -> None:
    assert parse_locks(data, 1) is None


def test_a_list_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert holder_of(1, str(tmp_path)) is None


def test_of_a_real_process_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            with path.open("w") as its:
                fcntl.flock(its, fcntl.LOCK_EX)
            os._exit(0)
        until = time.monotonic() + 20
        while (holder := holder_of(child)) is None and time.monotonic() < until:
            os.sched_yield()
        fcntl.flock(mine, fcntl.LOCK_UN)
    os.waitpid(child, 0)
    assert holder == os.getpid()
