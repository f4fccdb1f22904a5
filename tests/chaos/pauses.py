"""Time in which nothing of ours runs: a suspended machine, a frozen container, a daemon alone that is stopped."""

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator

import psutil

from tests.chaos.node import Node, RankProcesses, told_after

PAUSE_SECONDS = 120.0
_AFTER_SECONDS = 30.0  # by then whatever the pause looked like would have been told


def _ours(node: Node) -> list[psutil.Process]:
    return [process for unit in (node.daemon, node.side) for process in unit.processes()]


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _started(node: Node, name: str) -> RankProcesses:
    job = RankProcesses(node, name)
    node.jobs.append(job)
    node.until(lambda: {rank.state for rank in node.ranks(name)} == {"stepping"}, f"{name} is seen")
    return job


def _wait(node: Node, seconds: float) -> None:
    until = time.monotonic() + seconds
    node.until(lambda: time.monotonic() > until, "time passes", seconds + 10)


def suspended(node: Node) -> Iterator[str]:
    """The daemon, its side, their children and the ranks stand for two minutes, twice: with a job that is well, and
    with one whose rank was stopped before. Nobody is told of the first, nothing is told twice of the other."""
    well = _started(node, "well")
    told_after(node, "stood-before", "stopped")
    before = len(node.told())
    for turn in (1, 2):
        ranks = [psutil.Process(process.pid) for process in well.processes]
        ours = _ours(node)
        _send([*ours, *ranks], signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        _send([*ranks, *ours], signal.SIGCONT)
        node.until(node.answers, "it answers again", 30)
        _wait(node, _AFTER_SECONDS)
        assert {rank.state for rank in node.ranks("well")} == {"stepping"}, f"{node.ranks('well')}"
        (waiting,) = node.incidents("stood-before")
        assert waiting.state == "open", f"what stood before is {waiting.state}"
        more = node.told()[before:]
        assert not more, f"told after the pause: {more}"
        yield f"suspended for {PAUSE_SECONDS:.0f} s ({turn}): nothing told of the job that is well, nothing twice"
    yield f"told after {told_after(node, 'after', 'killed'):.1f} s once it goes on"


def daemon_alone(node: Node) -> Iterator[str]:
    """Only what is ours stands; meanwhile one job's rank dies, another's is stopped, and a third steps."""
    jobs = {name: _started(node, name) for name in ("dies", "stops", "steps")}
    ours = _ours(node)
    _send(ours, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS / 2)
    jobs["dies"].send(1, signal.SIGKILL)
    jobs["stops"].send(1, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS / 2)
    began = time.monotonic()
    _send(ours, signal.SIGCONT)
    for name, cause in (("dies", "rank_exited"), ("stops", "process_stopped")):
        node.until(lambda name=name: any(one.job == name for one in node.told()), f"{name} is told", 60)  # type: ignore[misc]
        (first, *_) = [one for one in node.told() if one.job == name]
        assert (first.cause, first.culprits) == (cause, (1,)), f"told {first}"
        yield f"what {name} while it stood: told {time.monotonic() - began:.1f} s after it goes on"
    _wait(node, _AFTER_SECONDS)
    assert not [one for one in node.told() if one.job == "steps"], "told of a job that steps"


def side_blocked(node: Node) -> Iterator[str]:
    """The privileged side's own process stands for ever: what it has started goes on, and the rest is said."""
    told_after(node, "warm", "killed")
    assert node.side.pid is not None
    side = psutil.Process(node.side.pid)
    side.send_signal(signal.SIGSTOP)
    try:
        for fault in ("stopped", "killed"):
            seconds = told_after(node, f"without-side-{fault}", fault, wait_seen=False, seconds=200)
            assert node.client.healthy(), "the loop waits for the privileged side"
            yield f"its process stands: {fault} told after {seconds:.1f} s"
    finally:
        side.send_signal(signal.SIGCONT)
    yield f"told after {told_after(node, 'side-again', 'killed'):.1f} s once it goes on"
