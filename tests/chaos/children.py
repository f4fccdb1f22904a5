"""Children that never answer, and what they need denied: nobody waits for them for ever."""

import contextlib
import resource
import signal
import time
from collections.abc import Iterator

import psutil

from tests.chaos.kills import kind_of
from tests.chaos.node import Node, told_after

_ALONE_SECONDS = 200.0  # one that hangs is given up after 60 s, and the next one has to start
_FEW = 3


def _children(node: Node) -> dict[str, list[psutil.Process]]:
    found: dict[str, list[psutil.Process]] = {}
    for unit in (node.daemon, node.side):
        for process in unit.processes()[1:]:
            with contextlib.suppress(psutil.Error):
                found.setdefault(kind_of(process), []).append(process)
    return found


def blocked_one_by_one(node: Node) -> Iterator[str]:
    """Stopped for ever, which is what a child in the kernel's hands looks like from outside."""
    told_after(node, "warm", "killed")  # now there is one of each
    for kind in sorted(set(_children(node))):
        stopped = _children(node).get(kind, [])
        for process in stopped:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        try:
            job = f"without-{kind.replace(' ', '-').replace('.', '-')}"
            seconds = told_after(node, job, "stopped", wait_seen=False, seconds=_ALONE_SECONDS)
            assert node.client.healthy(), f"the loop waits for {kind}"
            yield f"{kind} blocked: told after {seconds:.1f} s"
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)


def blocked_all(node: Node) -> Iterator[str]:
    told_after(node, "warm", "killed")
    stopped = [process for several in _children(node).values() for process in several]
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            assert node.client.healthy(), "the loop waits for its children"
            time.sleep(0.5)
        seconds = told_after(node, "without-all", "stopped", wait_seen=False, seconds=_ALONE_SECONDS)
        yield f"{len(stopped)} children blocked at once: told after {seconds:.1f} s"
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)


def no_handles(node: Node) -> Iterator[str]:
    """The daemon, then the privileged side, may open few files more."""
    for name, unit in (("daemon", node.daemon), ("privileged side", node.side)):
        assert unit.pid is not None
        before = resource.prlimit(unit.pid, resource.RLIMIT_NOFILE)
        few = psutil.Process(unit.pid).num_fds() + _FEW
        resource.prlimit(unit.pid, resource.RLIMIT_NOFILE, (few, before[1]))
        until = time.monotonic() + 10
        pid = unit.pid
        job = f"few-handles-{name.partition(' ')[0]}"
        seen: float | None
        try:
            seen = told_after(node, job, "stopped", wait_seen=False, seconds=40)
        except TimeoutError:
            seen = None
        assert unit.pid == pid, f"the {name} has ended"
        resource.prlimit(unit.pid, resource.RLIMIT_NOFILE, before)
        yield f"{name} with {_FEW} handles left: " + (f"told after {seen:.1f} s" if seen else "not told meanwhile")
        if seen is None:
            node.until(lambda job=job: bool([one for one in node.told() if one.job == job]), "it is told then", 150)  # type: ignore[misc]
            yield "told once there were handles again"
        assert time.monotonic() > until - 10


def no_memory(node: Node) -> Iterator[str]:
    """Each process of ours may take hardly more memory than it has: what fails is done again, or said."""
    processes = [process for unit in (node.daemon, node.side) for process in unit.processes()]
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            most = process.memory_info().vms + (1 << 20)
            resource.prlimit(process.pid, resource.RLIMIT_AS, (most, unlimited[1]))
    seen: float | None
    try:
        seen = told_after(node, "no-memory", "stopped", wait_seen=False, seconds=60)
    except TimeoutError:
        seen = None
    for process in [process for unit in (node.daemon, node.side) for process in unit.processes()]:
        with contextlib.suppress(OSError):  # those that were started meanwhile have it from their parents
            resource.prlimit(process.pid, resource.RLIMIT_AS, unlimited)
    yield "one MiB left to each: " + (f"told after {seen:.1f} s" if seen else "not told meanwhile")
    if seen is None:
        node.until(lambda: bool([one for one in node.told() if one.job == "no-memory"]), "it is told then", 150)
        yield "told once there was memory again"
