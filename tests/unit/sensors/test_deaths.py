import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from stallwatch.sensors.deaths import DeathWatch


def waiting_child() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_first_death_is_told_from_the_second() -> None:
    ticks = iter(range(100))
    watch = DeathWatch(lambda: next(ticks))
    children = [waiting_child(), waiting_child()]
    told: dict[int, int] = {}
    pidfds = [watch.watch(child.pid, partial(told.__setitem__, number)) for number, child in enumerate(children)]
    watch.look()
    assert told == {}
    for number in (1, 0):
        children[number].kill()
        os.waitid(os.P_PID, children[number].pid, os.WEXITED | os.WNOWAIT)
        watch.look()
    assert told[1] < told[0]
    for child, pidfd in zip(children, pidfds, strict=True):
        child.communicate()
        assert pidfd is not None
        os.close(pidfd)


def test_death_is_told_once_and_forgotten_ones_never() -> None:
    watch = DeathWatch()
    told: list[str] = []
    first, second = waiting_child(), waiting_child()
    pidfds = [
        watch.watch(first.pid, lambda _: told.append("first")),
        watch.watch(second.pid, lambda _: told.append("x")),
    ]
    assert pidfds[1] is not None
    watch.forget(pidfds[1])
    for child in (first, second):
        child.kill()
        child.communicate()
    watch.look()
    watch.look()
    assert told == ["first"]
    for pidfd in pidfds:
        assert pidfd is not None
        os.close(pidfd)


def test_death_is_told_while_waiting_for_the_next_request() -> None:
    watch = DeathWatch()
    read, write = os.pipe()
    child = waiting_child()
    seen = threading.Event()
    pidfd = watch.watch(child.pid, lambda _: seen.set())
    child.kill()
    child.communicate()
    assert watch.wait(read) == (False, True)
    assert seen.is_set()
    assert watch.wait(read, 0.0) == (False, False)
    os.write(write, b"x")
    assert watch.wait(read) == (True, False)
    for descriptor in (read, write, pidfd):
        assert descriptor is not None
        os.close(descriptor)


def test_process_that_ended_before_it_was_watched_is_said() -> None:
    child = waiting_child()
    child.kill()
    child.communicate()
    with pytest.raises(ProcessLookupError):
        DeathWatch().watch(child.pid, lambda _: None)
