"""Moments that a held rank has missed."""

import pytest

from stallwatch.detectors.counter_samples import PeerRank, sampled, with_held
from stallwatch.detectors.history import RankHistory
from stallwatch.model.snapshot import CounterLook, GroupCounter, NodeSnapshot
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot
from tests.builders.running_job import found, run

STOPPED, FROZEN = {"state": "T"}, {"state": "S", "wchan": "do_freezer_trap"}


def stopped_for_a_second_of_three(seconds: int, held: dict[str, str], *, since: int = 60) -> list[NodeSnapshot]:
    """A job of four ranks, with steps of a quarter of a second, in which rank 2 is held so from a second on."""
    shots, moments = [], 4 * seconds
    steps, stands = [0], [False]
    for moment in range(1, moments + 1):
        stands.append(moment >= 4 * since and moment % 12 in (1, 2, 3, 4))
        steps.append(steps[-1] + (not stands[-1]))
    for second in range(1, seconds + 1):
        ranks = []
        for rank in range(4):
            mine = [m for m in range(max(1, 4 * second - 7), 4 * second + 1) if rank != 2 or not stands[m]]
            waits = [rank != 2 and stands[m] for m in mine]
            looks = tuple(
                CounterLook(m, START_NS + m * SECOND_NS // 4, steps[m], 0, 0, steps[m] + waiting, steps[m])
                for m, waiting in zip(mine, waits, strict=True)
            )
            last, waiting = mine[-1], waits[-1]
            groups = (GroupCounter("gloo", 0, steps[last] + waiting, steps[last]),)
            beat = heartbeat(
                rank,
                step=steps[last],
                last_step_ns=START_NS + last * SECOND_NS // 4,
                step_durations_ns=(SECOND_NS // 4,) * min(steps[last], 16),
                pulse_count=last // 4,
                pulse_ns=START_NS + last * SECOND_NS // 4,
                groups=groups,
                looks=looks,
            )
            ranks.append(sample(rank, beat, **(held if rank == 2 and stands[4 * second] else {})))  # type: ignore[arg-type]
        shots.append(snapshot(second, ranks, tick=second))
    return shots


@pytest.mark.parametrize("held", [STOPPED, FROZEN], ids=["stopped", "frozen"])
def test_who_is_held_for_a_second_again_and_again_is_slow(held: dict[str, str]) -> None:
    """It notes nothing meanwhile, and just then the others wait: nobody was told of it, ever."""
    slow = found(run(stopped_for_a_second_of_three(240, held)), "slow")
    assert {finding.ranks for _, finding in slow} == {(2,)}
    assert any(finding.stage == "confirmed" for _, finding in slow)


def test_who_stands_for_good_is_another_matter() -> None:
    ticks = run(stopped_for_a_second_of_three(60, STOPPED))
    assert not found(ticks, "slow")


def member(rank: int, *numbers: int) -> PeerRank:
    beat = heartbeat(rank, looks=tuple(CounterLook(n, n * SECOND_NS, 5, 0, 0, 5, 5) for n in numbers))
    return sampled({}, RankHistory(sample(rank, beat), START_NS, beat), nccl=False)


def test_a_held_rank_has_at_what_it_missed_what_it_had_last() -> None:
    members = (member(0, 1, 2, 3), member(1, 1))
    alive = (RankHistory(sample(0, None), START_NS), RankHistory(sample(1, None, state="T"), START_NS))
    first, second = with_held(members, alive)
    assert first is members[0]
    assert [(one.number, one.at_ns, one.step) for one in second.samples] == [
        (number, number * SECOND_NS, 5) for number in (1, 2, 3)
    ]
    both = (RankHistory(sample(0, None, state="T"), START_NS), alive[1])
    assert with_held(members, both) is members, "whom all wait for is nobody"
    runs = (alive[0], RankHistory(sample(1, None), START_NS))
    assert with_held(members, runs) is members
    never = (members[0], PeerRank(1, 7))
    assert with_held(never, alive)[1].samples == ()
