"""Jobs to which faults happen at random moments, each followed from its start to the message that it is over; and what
was lost of that."""

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.node import Node, RankProcesses, twice

LOOK_SECONDS = 0.1
HELD_SECONDS = 5.0  # nobody but us stops a rank for as long as this
# What each fault may be called.
CAUSES = {
    "stopped": ("process_stopped",),
    "killed": ("rank_exited",),
    "failed": ("rank_exited", "rank_raised"),
}
_UNANSWERED = re.compile(r"logger=stallwatch\.outputs (\w+): incident (\S+), (\w+): no answer within")
SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL, "failed": signal.SIGUSR2}


@dataclass
class Story:
    """A job from its start to the message that it is over."""

    job: RankProcesses
    fault: str
    rank: int
    wait_seconds: float  # from when the daemon has seen it to the fault
    goes_on: bool  # a stopped rank is let go on, instead of the whole job ended
    seen_at: float | None = None
    struck_at: float | None = None
    told_at: float | None = None
    over_at: float | None = None
    ended: bool = False
    stopped_since: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.job.job


@dataclass
class Result:
    seed: int
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    untold: list[str] = field(default_factory=list)
    ends_untold: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    messages: int = 0
    excused: int = 0
    duplicates: list[str] = field(default_factory=list)
    left_stopped: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    wrong_ends: int = 0
    told_after: list[float] = field(default_factory=list)

    @property
    def good(self) -> bool:
        lists = (self.untold, self.ends_untold, self.wrong, self.false, self.duplicates, self.left_stopped)
        return not any(lists) and not self.left_behind and not self.wrong_ends

    def lines(self) -> list[str]:
        after = sorted(self.told_after) or [0.0]
        return [
            f"seed {self.seed}: {self.kills.total()} kills in {self.seconds:.0f} s: "
            + ", ".join(f"{count} {kind}" for kind, count in self.kills.most_common()),
            f"faults {self.faults}: told {self.faults - len(self.untold)}, lost {len(self.untold)} {self.untold}; "
            f"told after {after[len(after) // 2]:.1f} s (median), {after[-1]:.1f} s (most)",
            f"ends not told {len(self.ends_untold)} {self.ends_untold}",
            f"wrong cause or rank {len(self.wrong)} {self.wrong}; healthy jobs told of {len(self.false)} {self.false}",
            f"messages {self.messages}, twice {self.excused + len(self.duplicates)}: between sending and its note "
            f"{self.excused}, otherwise {len(self.duplicates)} {self.duplicates}",
            f"ranks left stopped {self.left_stopped}, processes left behind {self.left_behind}, ends that nobody wanted"
            f" {self.wrong_ends}",
            "verdict: " + ("nothing lost" if self.good else "SOMETHING WAS LOST"),
        ]


class Stories:
    """A healthy job of `healthy_ranks`, and beside it others that come, meet a fault and go."""

    def __init__(self, node: Node, chance: random.Random, result: Result, healthy_ranks: int = 2) -> None:
        self._node, self._random, self.result = node, chance, result
        self._stories: list[Story] = []
        self.excused: Counter[tuple[str, str, str]] = Counter()
        self._calm = RankProcesses(node, "calm", healthy_ranks)
        self._calm_stopped: dict[int, float] = {}

    @property
    def all_over(self) -> bool:
        """Each output has its own thread and child: on a busy machine one has told the end before the other began."""
        texts = self._node.slack_texts
        return all(story.over_at and any(story.name in text for text in texts) for story in self._stories)

    def end(self) -> None:
        self._calm.end()
        for story in self._stories:
            story.job.end()

    def step(self, open_faults: int) -> None:
        time.sleep(LOOK_SECONDS)
        self._node.look_after()
        open_stories = [story for story in self._stories if not story.over_at]
        if len(open_stories) < open_faults:
            chance, number = self._random, len(self._stories)
            fault = chance.choice(list(SIGNALS))
            job = RankProcesses(self._node, f"job-{number}-{fault}")
            self._stories.append(Story(job, fault, chance.randrange(2), chance.uniform(0, 6), chance.random() < 0.5))
        told = self._node.told()
        for story in open_stories:
            self._advance(story, {one.step for one in told if one.job == story.name})
        for job, since, allowed in [(self._calm, self._calm_stopped, set[int]())] + [
            (story.job, story.stopped_since, {story.rank} if story.struck_at else set())
            for story in open_stories
            if not story.ended
        ]:
            self._note_stopped(job, since, allowed)

    def _advance(self, story: Story, steps: set[str]) -> None:
        now = time.monotonic()
        if story.seen_at is None:
            if len([rank for rank in self._node.ranks(story.name) if rank.state == "stepping"]) == 2:
                story.seen_at = now
        elif story.struck_at is None:
            if now >= story.seen_at + story.wait_seconds:
                story.job.send(story.rank, SIGNALS[story.fault])
                story.struck_at = now
                self.result.faults += 1
        elif story.told_at is None:
            if "told" in steps:
                story.told_at = now
                self.result.told_after.append(now - story.struck_at)
        elif not story.ended:
            story.ended = True
            if story.fault == "stopped" and story.goes_on:
                story.job.send(story.rank, signal.SIGCONT)
            else:
                story.job.end()
        elif {"resolved", "ended"} & steps:
            story.over_at = now
            story.job.end()

    def _note_stopped(self, job: RankProcesses, since: dict[int, float], allowed: set[int]) -> None:
        stopped = set(job.stopped()) - allowed
        for rank in list(since):
            if rank not in stopped:
                del since[rank]
        for rank in stopped:
            if time.monotonic() - since.setdefault(rank, time.monotonic()) > HELD_SECONDS:
                self.result.left_stopped.append(f"{job.job} rank {rank}")
                since[rank] = float("inf")

    def count(self) -> None:
        result, told = self.result, self._node.told()
        self.excused += unanswered(self._node.log_text())
        result.messages = len(told) + len(self._node.slack_texts)
        result.wrong_ends = len(self._node.daemon.wrong_codes) + len(self._node.side.wrong_codes)
        for story in self._stories:
            mine = [one for one in told if one.job == story.name]
            first = next((one for one in mine if one.step == "told"), None)
            if story.struck_at is None:
                result.false += [f"{story.name}: {one}" for one in mine]
            elif first is None:
                result.untold.append(story.name)
            else:
                right = first.cause in CAUSES[story.fault] and first.culprits == (story.rank,)
                result.wrong += [] if right else [f"{story.name}: rank {story.rank}, told {first}"]
                result.ends_untold += [] if story.over_at else [story.name]
                texts = sum(story.name in text for text in self._node.slack_texts)
                result.untold += [] if texts else [f"{story.name} in Slack"]
        result.false += [str(one) for one in told if one.job == "calm"]
        for (incident, step), more in twice(told).items():
            excused = min(more, self.excused["webhook", incident, step])
            result.excused += excused
            result.duplicates += [f"{incident} {step}"] * (more - excused)
        for text, count in Counter(self._node.slack_texts).items():
            if count > 1:
                excused = sum(
                    times
                    for (output, incident, _), times in self.excused.items()
                    if output == "slack" and incident in text
                )
                result.excused += min(count - 1, excused)
                result.duplicates += [f"Slack: {text[:200]}"] * max(0, count - 1 - excused)


def unanswered(log: str) -> Counter[tuple[str, str, str]]:
    """Given a daemon's log, return by (output, incident, step) how many attempts got no answer in time: such a message
    may have arrived, and goes out again."""
    return Counter((one[1], one[2], one[3]) for one in _UNANSWERED.finditer(log))


def left_behind(folder: Path) -> list[str]:
    """Processes that still name the node's folder, or write what they say there: who was forked names none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any(str(folder) in word for word in words) or _says_into(folder, process.pid):
                found.append(" ".join(words)[:200])
    return found


def _says_into(folder: Path, pid: int) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/2")).is_relative_to(folder)
    except OSError:
        return False
