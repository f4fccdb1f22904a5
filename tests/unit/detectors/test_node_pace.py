"""What a node says of its ranks' waiting, for a comparison with those of other nodes."""

import msgspec
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.detection import Detection, DetectionState
from stallwatch.detectors.looks import Looks, StepLook
from stallwatch.detectors.node_pace import RankPace, pace_of, paces
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from tests.builders.heartbeat import JOB, START_NS
from tests.builders.node import with_beat
from tests.builders.running_job import SimulatedRank, job_run

MEMBERS = (PeerRank(0, 1000, role=(200, 100)), PeerRank(1, 1001, role=(100, 100)))


def looks(steps: range, ticks: int = 1, pending: tuple[int, int] = (1, 0), *, nccl: bool = False) -> Looks:
    each = tuple(
        StepLook(START_NS + step * SECOND_NS, ticks, waited=pending, surely=pending, pending=pending, steps=(step,))
        for step in steps
    )
    return Looks(MEMBERS, looks=each, count=len(each), nccl=nccl)


def test_blocks_of_steps_hold_moments_enough_and_the_one_under_way_is_left_out() -> None:
    pace = pace_of(looks(range(1, 14)), 0.5, 7)
    assert pace is not None
    assert (pace.steps, pace.first, pace.since_step, pace.step_seconds) == (4, 1, 7, 0.5)
    assert pace.ticks == (4, 4), "steps 4-7 and 8-11; 1-3 began before we looked, 12 is under way"
    assert pace.ranks == (RankPace(0, (15.385, 7.692), (4, 4)), RankPace(1, (7.692, 7.692), (0, 0)))


def test_long_steps_are_blocks_of_their_own() -> None:
    pace = pace_of(looks(range(1, 6), ticks=3, pending=(2, 1), nccl=True), 3.0, 1)
    assert pace is not None
    assert (pace.steps, pace.first, pace.ticks, pace.nccl) == (1, 2, (3, 3, 3), True)
    assert [rank.waited for rank in pace.ranks] == [(2, 2, 2), (1, 1, 1)]


def test_only_the_latest_blocks_are_said() -> None:
    pace = pace_of(looks(range(1, 201), ticks=3), 1.0, 1)
    assert pace is not None
    assert (pace.first, len(pace.ticks)) == (200 - 64, 64)


def test_how_long_a_block_lasted_is_told_from_its_first_look_to_the_next_ones() -> None:
    pace = pace_of(looks(range(1, 14), ticks=1), 0.5, 7)
    assert pace is not None and pace.lasted_ms == (4000, 4000)


def test_of_a_block_in_which_nobody_looked_for_a_while_it_is_not_known_how_long_it_lasted() -> None:
    """A checkpoint of a minute at step 6: the steps from which and to which nobody looked."""
    seen = looks(range(1, 17))
    later = tuple(replace(one, at_ns=one.at_ns + 60 * SECOND_NS * (one.step >= 6)) for one in seen.looks)
    pace = pace_of(replace(seen, looks=later), 0.5, 7)
    assert pace is not None and pace.lasted_ms == (0, 4000, 4000)


def test_of_too_little_nothing_is_said() -> None:
    assert pace_of(looks(range(1, 2)), 0.5, 1) is None
    assert pace_of(looks(range(4, 7)), 0.5, 1) is None, "no block is whole"
    assert pace_of(looks(range(1, 14)), 0.0, 1) is None, "no step's length is known"
    assert pace_of(looks(range(-1, 0)), 0.5, 1) is None, "nobody counts steps"


def remembered(world_size: int, ranks: int = 2, seconds: float = 40) -> DetectionState:
    def part_of_a_larger_job(second: float, rank: RankSample) -> RankSample:
        return msgspec.structs.replace(with_beat(rank, world_size=world_size), world_size=world_size)

    shots: list[NodeSnapshot] = job_run(
        [SimulatedRank(rank, step_seconds=0.5, waits=0.5) for rank in range(ranks)], seconds, edit=part_of_a_larger_job
    )
    detection, state = Detection(Config()), DetectionState()
    for shot in shots:
        state, _ = detection.step(state, shot)
    return state


def test_only_a_job_with_ranks_elsewhere_is_spoken_of() -> None:
    pace = paces(remembered(world_size=4))[JOB]
    assert [rank.rank for rank in pace.ranks] == [0, 1]
    assert pace.step_seconds == 0.5
    assert paces(remembered(world_size=2)) == {}, "all its ranks are here"
    assert paces(remembered(world_size=4, seconds=2)) == {}, "nothing was looked at"
    assert paces(DetectionState()) == {}


def test_of_more_ranks_than_a_node_has_nothing_is_said() -> None:
    assert len(paces(remembered(world_size=128, ranks=64, seconds=12))[JOB].ranks) == 64
    assert paces(remembered(world_size=128, ranks=65, seconds=12)) == {}
