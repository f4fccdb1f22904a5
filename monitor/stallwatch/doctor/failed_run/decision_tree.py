"""The decision tree: does it hang at the start, always at the same step, or anywhere? Incidents on disk tell."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import pstdev
from typing import ClassVar

import msgspec

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.model.incident import Incident

_INCIDENT = msgspec.json.Decoder(Incident)

_MOST_INCIDENTS = 200
_RECENT_SECONDS, _MOST_JOBS = 86400.0, 3
_MAXIMUM_BYTES = 64 << 20


class Hang(msgspec.Struct, frozen=True):
    """What one incident on disk tells of where and when a job hung."""

    training_job: str
    cause: str
    where: str
    frame: str
    step: int | None  # the last step of the slowest rank; None: never stepped, or not counted
    started: bool  # whether the job had stepped at all
    at_seconds: float  # wall, when it was opened


def read_hangs(folder: Path) -> list[Hang]:
    """Incidents with a verdict, oldest first; what cannot be read is left out. Raise OSError."""
    hangs = []
    for path in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime)[-_MOST_INCIDENTS:]:
        file = path / "incident.json"
        try:
            if file.stat().st_size > _MAXIMUM_BYTES:
                continue
            incident = _INCIDENT.decode(file.read_bytes())
        except (OSError, msgspec.MsgspecError):
            continue
        verdict = incident.verdict
        if verdict is None or not verdict.traits.accuses:
            continue
        frames = [one.frame for one in verdict.culprit_processes if one.frame]
        step = _last_step(path)
        hangs.append(
            Hang(
                training_job=incident.job.training_job,
                cause=verdict.cause,
                where=verdict.where or "unknown",
                frame=f"{frames[0].file}:{frames[0].line}" if frames else "",
                step=step,
                at_seconds=incident.opened_wall_ns / 1e9,
                started=bool(step) or (verdict.where != "init" and verdict.cause != "init_missing"),
            )
        )
    return hangs


def _last_step(bundle: Path) -> int | None:
    """bundle.json's last_step: {rank: step}."""
    try:
        said = msgspec.json.decode((bundle / "bundle.json").read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    steps = said.get("last_step") if isinstance(said, dict) else None
    numbers = [one for one in steps.values() if isinstance(one, int)] if isinstance(steps, dict) else []
    return min(numbers, default=None)


class DecisionTree:
    """Reads incidents of the job that was asked for, else of the last day; Inapplicable without one, Undetermined where
    the folder cannot be read."""

    name: ClassVar[str] = "decision_tree"
    area: ClassVar[Area] = "failed run"
    looks_for: ClassVar[str] = "by incidents on disk: hangs at the start, always at the same step, or at random steps"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each job with recent hangs: where they stand, and which step of the tree to take next. The
        newest jobs only."""
        folder = surroundings.question.incidents
        if folder is None or not folder.is_dir():
            raise Inapplicable("no incidents on this node")
        try:
            hangs = read_hangs(folder)
        except OSError as error:
            raise Undetermined(f"{folder}: {error.strerror}") from error
        if not hangs:
            raise Inapplicable("no incident with a verdict")
        jobs: dict[str, list[Hang]] = defaultdict(list)
        for hang in hangs:
            jobs[hang.training_job].append(hang)
        asked = surroundings.question.job
        recent = {job: of for job, of in jobs.items() if surroundings.now_seconds - of[-1].at_seconds < _RECENT_SECONDS}
        chosen = {asked: jobs[asked]} if asked in jobs else {} if asked else recent
        newest = sorted(chosen.items(), key=lambda item: -item[1][-1].at_seconds)[:_MOST_JOBS]
        if not newest:
            raise Inapplicable(f"no incident of {asked} on this node" if asked else "no incident of the last day")
        return tuple(record for job, of_job in newest for record in self._job(job, of_job))

    def _job(self, job: str, hangs: list[Hang]) -> Iterator[FindingRecord]:
        last = hangs[-1]
        times = count(len(hangs), "incident")
        same_line = last.frame and all(hang.frame == last.frame for hang in hangs)
        place = f", each time at {last.frame}" if same_line and len(hangs) > 1 else ""
        if not last.started:
            yield finding(
                self, "info", job,
                seen=f"It hangs at its start, before the first step ({times}; the last: {last.cause}).",
                why="Hangs at the start are configuration: names, ports, interfaces, versions, a rank that does not "
                "come.",
                remedy="read the findings on environment and network on every node; then `stallwatch selftest`",
            )  # fmt: skip
            return
        steps = [hang.step for hang in hangs if hang.step is not None]
        if len(steps) >= 2 and pstdev(steps) <= max(1.0, 0.02 * max(steps)):
            yield finding(
                self, "info", job,
                seen=f"It hangs always near step {steps[-1]} ({times}){place}.",
                why="The same step every time is data or control flow: an epoch's end, uneven shards, an evaluation, a "
                "checkpoint, a sample that one rank alone skips.",
                remedy="compare what ranks do at that step: lengths of their data, `if rank == 0`, early exits; start "
                "from a checkpoint shortly before it",
            )  # fmt: skip
        elif len(steps) >= 2:
            yield finding(
                self, "info", job,
                seen=f"It hangs at different steps ({', '.join(map(str, steps[-5:]))}; {times}){place}.",
                why="A random step with the same line is a race (lock, fork, store); with different lines it is "
                "hardware, network or memory of one node.",
                remedy="does the same host or GPU come up each time? `stallwatch incidents`; exclude it, or look at "
                "that line for a lock",
            )  # fmt: skip
        else:
            yield finding(
                self, "info", job,
                seen=f"It hung {'at step ' + str(steps[-1]) if steps else 'after its start'} ({times}; "
                f"{last.cause}){place}.",
                why="One incident does not tell whether the step matters.",
                remedy="`stallwatch incidents` shows the verdict; run again: the same step is data or control flow, "
                "another is a race or hardware",
            )  # fmt: skip
