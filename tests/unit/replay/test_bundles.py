"""What a bundle's timeline replays to is what was decided, whatever kind of story it tells."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallwatch.detectors.history import LATE_SECONDS
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import NodeSnapshot, ProcessEnd, RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS
from tests.builders.node import process, with_beat
from tests.builders.running_job import SimulatedRank, four, job_run
from tests.replay.bundles import missing
from tests.unit.loop.fakes import Bench

Edit = Callable[[float, RankSample], RankSample]


def stopped(second: float, rank: RankSample) -> RankSample:
    state = "T" if rank.rank == 2 and second >= 20 else "S"
    return msgspec.structs.replace(rank, process=Known(process(rank.rank, state=state), START_NS))


def killed(second: float, rank: RankSample) -> RankSample:
    if rank.rank != 1 or second < 20:
        return rank
    end = ProcessEnd(START_NS + 20 * SECOND_NS, None, 9, "zombie")
    return msgspec.structs.replace(rank, process=Unavailable("gone", START_NS), end=end)


def few_files(second: float, rank: RankSample) -> RankSample:
    files = (1020, 1024) if rank.rank == 3 and second >= 10 else (40, 1024)
    return msgspec.structs.replace(rank, process=Known(process(rank.rank, open_files=files), START_NS))


def saving(second: float, rank: RankSample) -> RankSample:
    return with_beat(rank, phase="checkpoint", phase_since_ns=START_NS + 20 * SECOND_NS) if second > 20 else rank


def unlike(second: float, rank: RankSample) -> RankSample:
    return with_beat(rank, differs=(("NCCL_ALGO", "Ring" if rank.rank == 2 else "not set"),))


def late(shots: list[NodeSnapshot]) -> list[NodeSnapshot]:
    return [
        msgspec.structs.replace(shot, late_seconds=2 * LATE_SECONDS if shot.tick in (22, 24) else 0.0) for shot in shots
    ]


STORIES: dict[str, tuple[str, list[NodeSnapshot]]] = {
    "hang": ("stall", job_run(four(stuck_at=20.3), 40)),
    "hang long after the timeline begins": ("stall", job_run(four(stuck_at=200.3), 220)),
    "hang of long steps": ("stall", job_run(four(step_seconds=5, stuck_at=200.3), 240)),
    "hang while our own ticks are late": ("stall", late(job_run(four(stuck_at=20.3), 45))),
    "one rank stands, the others step on": (
        "stall",
        job_run([SimulatedRank(0, stuck_at=20.3), *(SimulatedRank(rank) for rank in (1, 2, 3))], 90),
    ),
    "a phase": ("stall", job_run(four(stuck_at=20.3), 45, edit=saving)),
    "stop": ("stopped", job_run(four(stuck_at=20.3), 40, edit=stopped)),
    "death": ("exit", job_run(four(stuck_at=20.3), 40, edit=killed)),
    "never begins": ("init", job_run(four(stuck_at=0), 60)),
    "health": ("health", job_run(four(), 90, edit=few_files)),
    "environment": ("health", job_run(four(), 90, edit=unlike)),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_bundle_replays_to_the_decision_that_was_made(story: str, tmp_path: Path) -> None:
    detector, shots = STORIES[story]
    incidents = Bench(tmp_path, shots).run().latest.incidents
    assert any(detector == finding.detector for incident in incidents for finding in incident.findings)
    for incident in incidents:
        if (Path(incident.bundle) / "timeline.jsonl").exists():
            assert not missing(Path(incident.bundle))
        else:
            assert {finding.family for finding in incident.findings} == {"health"}, "who looks at no rank keeps none"


def test_a_timeline_that_tells_another_story_is_seen(tmp_path: Path) -> None:
    (incident,) = Bench(tmp_path, STORIES["stop"][1]).run().latest.incidents
    timeline = Path(incident.bundle) / "timeline.jsonl"
    timeline.write_bytes(timeline.read_bytes().replace(b'"state":"T"', b'"state":"S"'))
    assert [finding.detector for finding in missing(Path(incident.bundle))] == ["stopped"]
