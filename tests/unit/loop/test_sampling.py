"""When a moving job is sampled, and what becomes of the samples."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from stallwatch.captures.spec import CaptureState, Compared
from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import DriftSection
from stallwatch.hook import requests
from stallwatch.hook.layout import PUBLISH_NS
from stallwatch.hook.pulse import LOOKS_PER_PULSE, SPREAD_NS
from stallwatch.loop import sampling
from stallwatch.loop.sampling import Sampler
from stallwatch.model.snapshot import JobDrift, NodeSnapshot, RankSample
from stallwatch.model.summary import GroupId, Offset, SampleMemory
from stallwatch.model.verdict import Verdict
from tests.builders.heartbeat import JOB, HeartbeatFields
from tests.builders.node import sample, snapshot, with_beat
from tests.builders.running_job import SimulatedRank
from tests.unit.loop.fakes import node_clock

PARTED = Verdict("collective_mismatch", (2,), "likely", "Rank 2 called something else.")
REMEMBERED = SampleMemory((Offset(0, GroupId("default_pg", "gloo", ()), 0, 1),))


class FakeRun:
    def __init__(self, at_ns: int, before: SampleMemory) -> None:
        self.at_ns = at_ns
        self.before = before
        self.result: Compared | None = None
        self.problem = ""
        self.cancelled = False

    def poll(self) -> CaptureState:
        done = self.result is not None or bool(self.problem)
        return CaptureState(done, done, problem=self.problem, compared=self.result)

    def cancel(self) -> None:
        self.cancelled = True


class Bench:
    """A node with one job of `ranks`, one tick a second."""

    def __init__(self, every: float = 300.0) -> None:
        self.clock = node_clock()
        self.runs: list[FakeRun] = []
        self.sampler = Sampler(DriftSection(every_seconds=every), self.clock, self._start)
        self.ranks = [sample(rank, SimulatedRank(rank).at(10)) for rank in range(4)]

    def _start(self, targets: Sequence[RankSample], at_ns: int, before: SampleMemory) -> FakeRun:
        self.runs.append(FakeRun(at_ns, before))
        return self.runs[-1]

    def tick(self, times: int = 1, *, quiet: bool = False) -> tuple[JobDrift, ...]:
        found: tuple[JobDrift, ...] = ()
        for _ in range(times):
            self.clock.advance(1)
            found = self.sampler.step(self.shot(self.ranks), {JOB} if quiet else set())
        return found

    def shot(self, ranks: list[RankSample]) -> NodeSnapshot:
        return snapshot(self.clock.now_ns / 1e9, ranks)


def test_a_job_is_sampled_once_in_each_time() -> None:
    bench = Bench()
    bench.tick(900)
    assert len(bench.runs) == 1  # the first is still under way
    for run in bench.runs:
        run.result = Compared(4, (), SampleMemory())
    bench.tick(300)
    assert len(bench.runs) == 2


def test_all_nodes_sample_at_the_same_moments_of_the_wall_clock() -> None:
    bench = Bench()
    bench.tick(600)
    wall_minus_monotonic = bench.clock.wall_ns() - bench.clock.monotonic_ns()
    at_ns = bench.runs[0].at_ns + wall_minus_monotonic
    assert at_ns % (300 * 10**9) == 0


def test_what_one_sample_remembers_goes_into_the_next() -> None:
    bench = Bench()
    bench.tick(310)
    assert bench.runs[0].before == SampleMemory()
    bench.runs[0].result = Compared(4, (PARTED,), REMEMBERED)
    assert bench.tick() == (JobDrift(JOB, bench.runs[0].at_ns, 4, (PARTED,)),)
    bench.tick(300)
    assert bench.runs[1].before == REMEMBERED


def test_a_sample_that_fails_says_why_and_forgets_nothing() -> None:
    bench = Bench()
    bench.tick(310)
    bench.runs[0].result = Compared(4, (), REMEMBERED)
    bench.tick(300)
    bench.runs[1].problem = "the capture ended early (exit code 3)"
    assert bench.tick() == (JobDrift(JOB, bench.runs[1].at_ns, 0, (), "the capture ended early (exit code 3)"),)
    bench.tick(300)
    assert bench.runs[2].before == REMEMBERED


def test_zero_seconds_is_never() -> None:
    bench = Bench(0)
    bench.tick(1000)
    assert bench.runs == []


def test_a_job_that_is_being_looked_at_is_left_alone() -> None:
    bench = Bench()
    bench.tick(1000, quiet=True)
    assert bench.runs == []


@pytest.mark.parametrize("words", [{"phase": "checkpoint"}, {"ended": True}, {"dump_started_ns": 5}])
def test_a_rank_that_is_busy_with_something_else_is_not_asked(words: HeartbeatFields) -> None:
    bench = Bench()
    bench.ranks[2] = with_beat(bench.ranks[2], **words)
    bench.tick(1000)
    assert bench.runs == []


def test_one_rank_or_ranks_without_a_hook_have_nobody_to_compare_with() -> None:
    bench = Bench()
    bench.ranks = [*bench.ranks[:3], replace(bench.ranks[3], heartbeat=sample(3, None).heartbeat)]
    bench.tick(1000)
    bench.ranks = bench.ranks[:1]
    bench.tick(1000)
    assert bench.runs == []


def test_a_sample_ends_with_its_job_and_with_the_daemon() -> None:
    bench = Bench()
    bench.tick(310)
    bench.ranks = []
    bench.tick()
    assert bench.runs[0].cancelled
    other = Bench()
    other.tick(310)
    other.sampler.close()
    assert other.runs[0].cancelled


def test_ranks_that_step_have_seen_their_request_by_the_moment_and_put_it_off_till_then() -> None:
    """They look for one with each pulse; at the tick before the moment was too early to ask."""
    pulses_apart_ns = (LOOKS_PER_PULSE + 1) * PUBLISH_NS + SPREAD_NS
    assert SECOND_NS + pulses_apart_ns + SECOND_NS // 2 <= sampling._LEAD_NS
    assert sampling._LEAD_NS < requests._LONGEST_DELAY_SECONDS * SECOND_NS
