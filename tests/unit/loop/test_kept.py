"""Jobs that come, die and are forgotten, one after the other: of none of them anything is kept for ever."""

import types
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch import daemon
from stallwatch.captures.capture_run import CaptureState
from stallwatch.config import Config
from stallwatch.incidents import life, life_cycle, tally
from stallwatch.loop.judging import JudgeState
from stallwatch.loop.protocols import Capturing, Judging
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.model.snapshot import JobKey, NodeSnapshot, ProcessEnd, RankSample
from stallwatch.outputs.log import LogOutput
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, HeartbeatFields
from tests.builders.node import sample, snapshot
from tests.builders.running_job import SimulatedRank
from tests.unit.incidents.stories import report as report_of
from tests.unit.loop.fakes import Bench, FakeCapture, FakeJudgement, FakeOutput, FakeStarter

_EVERY_SECONDS, _DIES_AFTER, _ENDS_AFTER, _SEEN_SECONDS = 3, 3, 5, 9
_FULL_SECONDS, _JOBS = 60, 12
_NOT_FOLLOWED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, Path)


class ForgetfulStarter(FakeStarter):
    """Tests look at what the others noted; this one notes nothing."""

    def capture(self, *_: Any) -> Capturing:
        return FakeCapture(CaptureState(done=True, evidence_complete=True))

    def judge(self, incident: Incident) -> Judging:
        return FakeJudgement(JudgeState(self.report))


class LastOnly(FakeOutput):
    def publish(self, report: NodeReport) -> None:
        self.reports[:] = [report]


def look(second: int) -> NodeSnapshot:
    """Eight ranks that go on, and beside them the jobs of these seconds: one of two ranks dies, then the other."""
    calm: HeartbeatFields = {"groups": ()}  # of collectives the last 768 looks are kept: that takes minutes to fill
    ranks = [sample(one.rank, one.at(second, calm), world_size=8) for one in map(SimulatedRank, range(8))]
    for number in range(max(0, second - _SEEN_SECONDS) // _EVERY_SECONDS, second // _EVERY_SECONDS + 1):
        ranks += of_job(number, second - number * _EVERY_SECONDS)
    return snapshot(second, ranks, tick=second)


def of_job(number: int, age: int) -> Iterator[RankSample]:
    job = JobKey(f"job-{number}", f"epoch-{number}", "anna")
    for rank, ends in enumerate((_ENDS_AFTER, _DIES_AFTER)):
        pid, end_ns = 2_000 + 2 * number + rank, START_NS + (number * _EVERY_SECONDS + ends) * SECOND_NS
        beat = SimulatedRank(rank).at(min(age, ends), {"training_job": job.training_job, "epoch": job.epoch})
        end = ProcessEnd(end_ns, None, 9, "unknown") if age >= ends else None
        yield sample(rank, beat, job=job, world_size=2, pid=pid, end=end)


def kept(root: object) -> Counter[str]:
    """How many objects of each type are to be had from this one."""
    seen, left, found = {id(root)}, [root], Counter[str]()
    while left:
        one = left.pop()
        found[type(one).__name__] += 1
        for other in _held_by(one):
            if id(other) not in seen and not isinstance(other, _NOT_FOLLOWED):
                seen.add(id(other))
                left.append(other)
    return found


def _held_by(one: object) -> Iterator[object]:
    if isinstance(one, Mapping):
        yield from (*one.keys(), *one.values())
    elif isinstance(one, (tuple, list, set, frozenset)) or type(one).__name__ == "deque":
        yield from one  # type: ignore[misc]
    elif isinstance(one, msgspec.Struct):
        yield from (getattr(one, name) for name in one.__struct_fields__)
    elif hasattr(one, "__dict__"):
        yield from vars(one).values()


def test_of_a_job_that_is_forgotten_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a bound of its own is filled soon: by fewer jobs, in shorter times."""
    monkeypatch.setattr(daemon, "_AFTER_SECONDS", 4.0)
    for module, name in ((life, "_MOST_NUMBERED"), (life_cycle, "_KEPT_PAST"), (tally, "_MOST_COUNTED")):
        monkeypatch.setattr(module, name, 4)
    config = msgspec.structs.replace(
        Config(), incidents=msgspec.structs.replace(Config().incidents, timeline_seconds=4.0, keep_bytes=0)
    )
    starter = ForgetfulStarter(report_of("rank_exited", (1,)))
    bench = Bench(tmp_path, [look(0)], starter=starter, outputs=[LastOnly(), LogOutput()], config=config)  # type: ignore[list-item]
    counts = []
    for second in range(_FULL_SECONDS + _JOBS * _EVERY_SECONDS):
        bench.panel.snapshots = [look(second)]
        bench.run(1)
        if second in (_FULL_SECONDS - 1, _FULL_SECONDS + _JOBS * _EVERY_SECONDS - 1):
            counts.append(kept(bench.daemon))
    assert sum(one.state == "ended" for one in bench.latest.incidents) == 4, "each was an incident"
    full, last = counts
    # Some numbers are equal by chance, and one object then: not one for every second job.
    assert {name: (full[name], count) for name, count in last.items() if count > full[name] + _JOBS / 2} == {}
