"""Kills at random moments, while faults come and go: nothing may be lost, and nothing told twice but between its
sending and the note that it was sent."""

import contextlib
import random
import time
from pathlib import Path

import psutil

from tests.chaos.node import Node, node_of
from tests.chaos.stories import Result, Stories, left_behind

OPEN_FAULTS = 2
CALM_SECONDS = 300.0  # after the last kill: what was not told by then is lost
_MAIN_WEIGHT = 2


def kind_of(process: psutil.Process) -> str:
    """What a process of ours does, by its command line."""
    words = process.cmdline()
    modules = [word for word in words if word.startswith("stallwatch.")]
    if not modules:
        return Path(words[0]).name if words else "gone"
    name = modules[0].removeprefix("stallwatch.")
    if name == "sensors.child":
        return f"sensor {words[words.index(modules[0]) + 1]}"
    return name if name != "cli" else f"cli {words[words.index(modules[0]) + 1]}"


class Killing:
    def __init__(self, node: Node, seed: int) -> None:
        self._node = node
        self._random = random.Random(seed)
        self.result = Result(seed)
        self._stories = Stories(node, self._random, self.result)

    def run(self, kills: int, seconds: float) -> Result:
        chance, result = self._random, self.result
        began = time.monotonic()
        end, gap = began + seconds, seconds / max(kills, 1)
        next_kill = began + chance.expovariate(1 / gap)
        try:
            while time.monotonic() < end and result.kills.total() < kills:
                while time.monotonic() >= next_kill and result.kills.total() < kills:
                    self._kill_one()  # on a busy machine several at once: what was due is not left out
                    next_kill += chance.expovariate(1 / gap)
                self._stories.step(OPEN_FAULTS)
            result.seconds = time.monotonic() - began
            calm_until = time.monotonic() + CALM_SECONDS
            while time.monotonic() < calm_until and not self._stories.all_over:
                self._stories.step(0)
        finally:
            self._stories.end()
        self._stories.count()
        return result

    def _kill_one(self) -> None:
        """One kind of process is as likely as another, the two units' own more so."""
        by_kind: dict[str, list[psutil.Process]] = {}
        mains = {self._node.daemon.pid: "daemon", self._node.side.pid: "privileged side"}
        for unit in (self._node.daemon, self._node.side):
            for process in unit.processes():
                with contextlib.suppress(psutil.Error):
                    by_kind.setdefault(mains.get(process.pid) or kind_of(process), []).append(process)
        weights = [_MAIN_WEIGHT if kind in mains.values() else 1 for kind in by_kind]
        if not by_kind:
            return
        (kind,) = self._random.choices(list(by_kind), weights)
        with contextlib.suppress(psutil.Error):
            self._random.choice(by_kind[kind]).kill()
            self.result.kills[kind] += 1
        for one in self._node.uncommitted():
            self._stories.excused[one] += 1


def run(kills: int, seconds: float, seed: int, keep: Path | None = None) -> Result:
    with node_of(keep=keep) as node:
        node.start()
        result = Killing(node, seed).run(kills, seconds)
        folder = node.folder
    result.left_behind = left_behind(folder)
    return result
