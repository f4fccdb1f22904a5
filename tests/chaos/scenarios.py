"""What a node may do to its monitor, one thing at a time; each scenario says what was lost of it."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.chaos import children, disks, floods, gpus, pauses, state
from tests.chaos.node import Node, node_of
from tests.chaos.stories import left_behind

Play = Callable[[Node], Iterator[str]]
# Each yields lines of what it saw, and raises where something was lost that should not be.
SCENARIOS: dict[str, Play] = {
    "full-disk": disks.full,
    "read-only-disk": disks.read_only,
    "hanging-disk": disks.hanging,
    "shared-mount": disks.shared,
    "vanished-directories": disks.vanished,
    "corrupt-state": state.corrupt,
    "clock": state.clock_jumps,
    "stale-records": floods.stale_records,
    "fast-ranks": floods.fast_ranks,
    "restarting-rank": floods.restarting_rank,
    "reused-pids": floods.reused_pids,
    "kernel-log": floods.kernel_log,
    "blocked-children": children.blocked_one_by_one,
    "all-children-blocked": children.blocked_all,
    "blocked-side": pauses.side_blocked,
    "suspended": pauses.suspended,
    "daemon-stopped": pauses.daemon_alone,
    "handles": children.no_handles,
    "memory": children.no_memory,
    "released-gpus": gpus.released,
}


def run(names: Sequence[str], seed: int, keep: Path | None) -> int:
    """Play some, or all; return an exit code."""
    unknown = set(names) - set(SCENARIOS)
    if unknown:
        print(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(SCENARIOS)}")
        return 64
    lost = 0
    for name in names or SCENARIOS:
        began = time.monotonic()
        problem, lines = play(name, None if keep is None else keep / name)
        lost += bool(problem)
        print(f"{name} ({time.monotonic() - began:.0f} s): " + (f"LOST: {problem}" if problem else "nothing lost"))
        print("".join(f"    {line}\n" for line in lines), end="", flush=True)
    print(f"{len(names or SCENARIOS)} scenarios, of {lost} something was lost")
    return 1 if lost else 0


def play(name: str, keep: Path | None = None) -> tuple[str, list[str]]:
    """Return what was lost, and what was seen."""
    lines: list[str] = []
    with node_of(keep=keep) as node, contextlib.ExitStack() as cleaning:
        cleaning.callback(node.end_jobs)
        folder = node.folder
        try:
            node.start()
            lines += SCENARIOS[name](node)
            wrong = {"daemon": node.daemon.wrong_codes, "privileged side": node.side.wrong_codes}
            if any(wrong.values()):
                return f"a unit ended by itself, with {wrong}", lines
        except Exception as error:  # what a scenario raises is its verdict
            return f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}", lines
    left = left_behind(folder)
    return f"left behind: {left}" if left else "", lines
