"""Moments that a rank has missed, as it was held, or as its hook could not look."""

from collections.abc import Sequence

import msgspec
import pytest

from stallwatch.detectors.counter_samples import PeerRank, sampled, with_held, with_late
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.looks import Looks, looked
from stallwatch.model.snapshot import CounterLook, GroupCounter, NodeSnapshot
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot
from tests.builders.running_job import found, run

STOPPED, FROZEN = {"state": "T"}, {"state": "S", "wchan": "do_freezer_trap"}
HOLDS_THE_GIL = {"state": "S"}


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
            # Its hook is in time for none of them: it looks once as it gets the GIL, before its rank comes to anything.
            late = [m for m in range(max(1, 4 * second - 7), 4 * second - 2) if stands[m] and not stands[m - 1]]
            late = late if rank == 2 and held is HOLDS_THE_GIL else []
            mine = sorted(mine + late)
            waits = [rank != 2 and stands[m] for m in mine]
            looks = tuple(
                CounterLook(
                    m, START_NS + (4 * m + 15 * (m in late)) * SECOND_NS // 16, steps[m], 0, 0, steps[m] + waiting,
                    steps[m],
                )
                for m, waiting in zip(mine, waits, strict=True)
            )  # fmt: skip
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


@pytest.mark.parametrize("held", [STOPPED, FROZEN, HOLDS_THE_GIL], ids=["stopped", "frozen", "holds the GIL"])
def test_who_is_held_for_a_second_again_and_again_is_slow(held: dict[str, str]) -> None:
    """It notes nothing meanwhile, and just then the others wait: nobody was told of it, ever. So is who holds the GIL:
    its hook cannot look."""
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


Seen = tuple[int, int, int, int]  # the moment, a second each, how many milliseconds after it, enqueued, completed


def noted(rank: int, *looks: Seen) -> PeerRank:
    """A rank as its hook has looked at it."""
    return sampled({}, history(rank, *looks), nccl=False)


def history(rank: int, *looks: Seen) -> RankHistory:
    made = (CounterLook(n, (1000 * n + late) * 1_000_000, 5, 0, 0, put, done) for n, late, put, done in looks)
    beat = heartbeat(rank, looks=tuple(made), groups=(GroupCounter("gloo", 0, looks[-1][2], looks[-1][3]),))
    return RankHistory(sample(rank, beat), START_NS, beat, readable=True)


def seen(member: PeerRank) -> list[Seen]:
    return [(s.number, s.at_ns // 1_000_000 - 1000 * s.number, s.enqueued, s.completed) for s in member.samples]


IN_TIME = ((1, 0, 10, 10), (2, 0, 11, 10), (3, 0, 11, 10), (4, 0, 12, 11))


@pytest.mark.parametrize(
    ("late", "then"),
    [
        ((2, 1500, 10, 10), [(2, 0, 10, 10), (3, 0, 10, 10)]),  # it has come to nothing all that time
        ((2, 300, 10, 10), [(2, 0, 10, 10)]),
        ((2, 1, 10, 10), [(2, 1, 10, 10)]),
        ((2, 1500, 11, 10), [(2, 1500, 11, 10)]),  # it waits now: since when nobody knows
        ((2, 1500, 11, 11), [(2, 1500, 11, 11)]),  # it has been there, and may have waited
    ],
    ids=["long", "short", "hardly", "waits", "has come"],
)
def test_what_a_late_look_shows_of_the_moments_before_it(late: Seen, then: list[Seen]) -> None:
    members = (noted(0, *IN_TIME), noted(1, *IN_TIME), noted(2, (1, 0, 10, 10), late, (4, 0, 12, 11)))
    first, _, third = with_late(members, taken=0, nccl=False)
    assert first is members[0]
    assert seen(third) == [(1, 0, 10, 10), *then, (4, 0, 12, 11)]


def test_what_its_peers_had_completed_tells_that_a_late_rank_has_not_come_where_it_has_gone_on_meanwhile() -> None:
    """A step begins between two of its looks, as where steps are short; it has always made one more call than they."""
    peers = [(1, 0, 10, 10), (2, 0, 13, 12), (3, 0, 14, 14)]
    members = (noted(0, *peers), noted(1, *peers), noted(2, (1, 0, 11, 11), (2, 50, 13, 13), (3, 0, 15, 15)))
    assert seen(with_late(members, taken=0, nccl=False)[2])[1] == (2, 0, 13, 13)
    assert with_late(members, taken=0, nccl=True)[2].samples == members[2].samples, "a device tells nobody when"
    stages = tuple(msgspec.structs.replace(one, role=(1000 * (one.rank + 1),)) for one in members)
    assert with_late(stages, taken=0, nccl=False)[2].samples == members[2].samples, "of another program"


def test_a_late_look_that_shows_what_the_one_before_did_is_of_all_moments_between() -> None:
    """Whatever its peers do: it waits in a call all that time."""
    members = (noted(0, *IN_TIME), noted(1, (1, 0, 11, 10), (2, 1500, 11, 10), (4, 0, 12, 11)))
    for nccl in (True, False):
        assert seen(with_late(members, taken=0, nccl=nccl)[1]) == [
            (1, 0, 11, 10), (2, 0, 11, 10), (3, 0, 11, 10), (4, 0, 12, 11)
        ]  # fmt: skip


def test_of_a_moment_that_two_late_looks_tell_of_the_first_of_them_is_taken() -> None:
    """At the fourth it waits: its hook says so half a second later, and then, once more late, that it is done."""
    peer = history(0, (1, 0, 11, 10), (2, 0, 12, 11), (3, 0, 12, 11), (4, 0, 12, 11), (5, 0, 13, 12))
    late = history(1, (1, 0, 11, 10), (2, 2500, 11, 10), (3, 1600, 11, 11), (5, 0, 13, 12))
    looks = looked(Looks(), (peer, late))
    assert [one.pending for one in looks.members[1].samples if one.number == 4] == [True, False]
    assert sum(look.waited[1] for look in looks.looks) == 4, "at all but the third"


def test_what_was_used_is_as_it_was() -> None:
    """Each tick: a job's late looks of the last three seconds were all asked again what they show."""
    late = (2, 1500, 10, 10)
    members = (noted(0, *IN_TIME), noted(1, (1, 0, 10, 10), late, (4, 0, 12, 11)))
    assert with_late(members, taken=3, nccl=False) is members
    assert with_late(members, taken=2, nccl=False) != members, "its peers may have come to the moments after it since"


def waits(
    *ticks: tuple[int, tuple[int, int], tuple[int, int]], stepped: Sequence[float] = (), usual: float = 0.25
) -> list[bool]:
    """Of a rank at ticks a second apart, whether it is taken to wait: its step, and of training's group and of another
    one what it has enqueued and completed; `stepped`: at which second it had stepped last, `usual` seconds a step."""
    seen: dict[tuple[int, int], PeerRank] = {}
    said = []
    for number, (step, own, other) in enumerate(ticks, start=1):
        groups = (GroupCounter("gloo", 0, *own), GroupCounter("gloo", 1, *other))
        look = CounterLook(number, number * SECOND_NS, step, 0, 0, own[0] + other[0], own[1] + other[1])
        beat = heartbeat(0, step=step, looks=(look,), groups=groups)
        if stepped:
            last_ns, usual_ns = int(stepped[number - 1] * SECOND_NS), int(usual * SECOND_NS)
            beat = msgspec.structs.replace(beat, last_step_ns=last_ns, step_durations_ns=(usual_ns,) * 9)
        rank = sampled(seen, RankHistory(sample(0, beat), START_NS, beat), nccl=False)
        seen = {(rank.rank, rank.pid): rank}
        said.append(rank.samples[-1].pending)
    return said


def test_what_a_checkpoint_s_thread_waits_for_while_training_steps_on_is_no_wait_of_training() -> None:
    """DCP's async_save: rank 1's storage is slow, and rank 0's thread waits for its result through 80 steps; rank 1 was
    told as slow, for rank 0 waited twice as much."""
    saves = [(10 + 4 * n, (20 + 4 * n, 20 + 4 * n), (3, 2)) for n in range(5)]
    assert waits(*saves) == [True, True, False, False, False]
    next_save = [(40, (50, 50), (3, 3)), (60, (70, 70), (4, 3)), (64, (75, 74), (4, 3))]
    assert waits(*saves, *next_save)[-3:] == [False, False, True], "known from then on; and its own wait is one"


# DiLoCo with a delayed average: begun in a group of its own, stepped beside for three seconds, and then waited for.
AVERAGE = [*((10 + 4 * min(n, 3), (10, 10), (3, 2)) for n in range(7)), (23, (10, 10), (3, 3))]


@pytest.mark.parametrize("stepped", [(), (0.9, 1.9, 2.9, 3.9, 3.95, 3.95, 3.95, 7.9)])
def test_who_steps_no_more_waits_for_what_it_stepped_beside(stepped: tuple[float, ...]) -> None:
    """The rank that all wait for was not found slow: what they waited for was taken for another thread's."""
    assert waits(*AVERAGE, stepped=stepped) == [True, True, False, False, True, True, True, False]


def test_a_step_that_takes_longer_than_a_tick_goes_on_as_long_as_it_usually_does() -> None:
    saves = [(10 + n // 3, (20, 20), (3, 2)) for n in range(14)]
    stepped = [1.0 + 3 * (n // 3) for n in range(14)]
    assert waits(*saves, stepped=stepped, usual=3.0)[-6:] == [False] * 6


def test_what_training_waits_for_in_each_step_is_its_own_in_whatever_group() -> None:
    steps = [(10 + 4 * n, (20, 20), (8 + 4 * n, 7 + 4 * n)) for n in range(6)]
    assert all(waits(*steps))
    stands = [(10, (20, 19), (3, 3))] * 6
    assert all(waits(*stands)), "it does not step"
