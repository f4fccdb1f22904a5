"""The child that judges what the nodes of a job say (judge_child), as whoever asks it holds it."""

from typing import Final, Protocol

from stallwatch.encoding import json_of
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.node.children import module_of_ours
from stallwatch.node.run_once import Ended, RunOnce

_JUDGE_BYTES: Final = 2 << 30  # of addresses; 2,048 nodes of 8 ranks take 0.4 GB
_MOST_CAPTURED_BYTES: Final = 16 << 20


class JudgeHandle(Protocol):
    """node.run_once.RunOnce, as far as it is used here."""

    def poll(self) -> Ended | None:
        """What came of it; None while it works. Never waits."""

    def end(self) -> None:
        """Kill it; nothing comes of it any more."""


def start_judge(question: JudgeQuestion) -> JudgeHandle:
    """Given what nodes say, start a child that judges it, bounded in memory and output. Raise OSError where none can be
    started."""
    return RunOnce(
        module_of_ours("stallwatch.fleet.judge_child"),
        json_of(question),
        memory_bytes=_JUDGE_BYTES,
        limit_bytes=_MOST_CAPTURED_BYTES,
    )
