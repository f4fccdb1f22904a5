"""A slow rank of a job over several nodes, each of which by itself sees only waiting."""

import msgspec
import pytest

from stallwatch.detectors.node_pace import NodePace, RankPace
from stallwatch.fleet.pace_verdict import PaceVerdict, believed_paces, encode_pace, judge_pace
from stallwatch.fleet.place import Key
from stallwatch.fleet.seal import seal
from tests.replay.stragglers import Design, Job
from tests.unit.fleet.paces import SHARE, SlowNode, together

SECRET = b"sixteen bytes or more"
KEY = Key("train-0a1b2c3d", 0)


def pace(
    *ranks: int, waited: float = 0.5, steps: int = 1, first: int = 100, blocks: int = 64, ticks: int = 20
) -> NodePace:
    of_ranks = tuple(RankPace(rank, (1.0,), (int(waited * ticks),) * blocks) for rank in ranks)
    return NodePace(steps, first, (ticks,) * blocks, of_ranks, 1.0, nccl=False, since_step=100)


def test_a_rank_alone_on_its_node_is_named_though_no_node_finds_anything() -> None:
    found = list(together(Job("sleep", 6, 0.3, 3, 40.0), 1, 90))
    named = [(second, verdict) for second, verdict, _ in found if verdict.ranks]
    assert {verdict.ranks for _, verdict in named} == {(3,)}
    assert named[0][0] <= 40 + 30
    last = named[-1][1]
    assert (last.nodes, last.stage, last.of_nodes, last.of_ranks) == (("node3",), "confirmed", 6, 6)
    assert last.slowness is not None
    assert last.slowness.low_seconds < 0.3 * 0.17 < last.slowness.high_seconds
    assert "rank 3 holds the others back (node3)" in last.reason
    assert not any(f.detector == "slow" for _, _, alone in found for one in alone.values() for f in one.findings)


def test_a_node_all_of_whose_ranks_are_slow_is_named_with_them() -> None:
    *_, (_, verdict, alone) = together(SlowNode("sleep", 12, 0.4, 5, 30.0), 2, 90)
    assert verdict.ranks == (4, 5)
    assert "all ranks of node2" in verdict.reason
    assert not any(f.detector == "slow" for one in alone.values() for f in one.findings)


@pytest.mark.parametrize(
    ("by", "design"), [("nothing", "even"), ("pipeline", "even"), ("experts", "even"), ("nothing", "experts")]
)
def test_what_holds_nobody_back_names_nobody(by: str, design: Design) -> None:
    job = Job(by, 6, 0.0, 0, 0.0, design=design)  # type: ignore[arg-type]
    assert not [verdict for _, verdict, _ in together(job, 1, 150) if verdict.ranks]


def test_when_it_is_as_fast_as_the_others_again_it_is_over() -> None:
    *_, (_, verdict, _) = together(Job("sleep", 6, 0.5, 3, 30.0, lasts_seconds=40), 1, 260)
    assert verdict.ranks == ()


def test_a_node_that_says_nothing_more_costs_itself_alone() -> None:
    job = Job("sleep", 6, 0.4, 3, 60.0)
    *_, (_, verdict, _) = together(job, 1, 150, said=lambda second, node: node != "node5" or second < 30)
    assert (verdict.ranks, verdict.of_nodes) == ((3,), 5)


def test_blocks_of_different_lengths_are_laid_beside_each_other() -> None:
    fine, coarse = pace(0, steps=1, first=100, blocks=64), pace(1, steps=4, first=20, blocks=30)
    slow = pace(2, steps=2, first=45, blocks=40, waited=0.0)
    verdict = judge_pace({"a": fine, "b": coarse, "c": slow, "d": pace(3), "e": pace(4)}, SHARE, PaceVerdict())
    assert verdict.ranks == (2,)
    assert verdict.slowness is not None
    assert verdict.slowness.steps % 4 == 0


def test_of_two_ranks_and_of_one_node_nothing_is_said() -> None:
    assert judge_pace({"a": pace(0), "b": pace(1, waited=0.0)}, SHARE, PaceVerdict()).ranks == ()
    assert judge_pace({"a": pace(0, 1, 2, 3)}, SHARE, PaceVerdict()) == PaceVerdict()
    assert judge_pace({}, SHARE, PaceVerdict()) == PaceVerdict()


def test_more_ranks_than_some_nodes_have_are_no_few_that_hold_the_others_back() -> None:
    def job(slow: int) -> dict[str, NodePace]:
        return {
            f"n{node}": pace(*range(8 * node, 8 * node + 8), waited=0.0 if node < slow else 0.5) for node in range(24)
        }

    assert judge_pace(job(2), SHARE, PaceVerdict()).ranks == tuple(range(16))
    assert judge_pace(job(10), SHARE, PaceVerdict()).ranks == ()


def test_it_stands_until_several_judgements_have_not_seen_it() -> None:
    before = PaceVerdict((3,), ("node3",), "confirmed", "rank 3 holds the others back")
    calm = {f"n{rank}": pace(rank) for rank in range(6)}
    once = judge_pace(calm, SHARE, before)
    twice = judge_pace(calm, SHARE, once)
    assert (once.ranks, twice.ranks) == ((3,), (3,))
    assert judge_pace(calm, SHARE, twice).ranks == ()


def test_only_what_is_signed_and_whole_is_compared_and_no_rank_of_two_nodes() -> None:
    def sealed(node: str, said: NodePace, secret: bytes = SECRET) -> bytes:
        return seal(encode_pace(said), secret, "pace", KEY, node)

    broken = msgspec.structs.replace(pace(7), ticks=(1, 2))
    odd = msgspec.structs.replace(pace(8), steps=3)
    found = believed_paces(
        {
            "a": sealed("a", pace(0, 1)), "b": sealed("b", pace(1, 2)), "c": sealed("c", pace(3), b"another secret"),
            "d": sealed("e", pace(4)), "e": sealed("e", broken), "f": sealed("f", odd), "g": b"rubbish",
        },
        SECRET,
        KEY,
    )  # fmt: skip
    assert {node: [rank.rank for rank in one.ranks] for node, one in found.items()} == {"a": [0], "b": [2]}


@pytest.mark.parametrize(
    "change",
    [
        {"step_seconds": float("nan")},
        {"step_seconds": -1.0},
        {"ranks": (RankPace(7, (float("inf"),), (10,) * 64),)},
        {"ranks": (RankPace(7, (1.0,), (21,) * 64),)},
        {"ranks": (RankPace(7, (1.0,), (-1,) * 64),)},
        {"ranks": (RankPace(-7, (1.0,), (10,) * 64),)},
    ],
)
def test_a_pace_that_cannot_be_costs_its_node_alone(change: dict[str, object]) -> None:
    broken = msgspec.structs.replace(pace(7), **change)
    each = {f"n{rank}": pace(rank) for rank in range(6)} | {"odd": broken}
    found = believed_paces(
        {node: seal(encode_pace(one), SECRET, "pace", KEY, node) for node, one in each.items()}, SECRET, KEY
    )
    assert set(found) == {f"n{rank}" for rank in range(6)}
    assert judge_pace(found, SHARE, PaceVerdict()).ranks == ()


def test_a_group_that_has_completed_nothing_yet_is_no_rubbish() -> None:
    new = msgspec.structs.replace(pace(7), ranks=(RankPace(7, (-0.01, 1.0), (10,) * 64),))
    assert set(believed_paces({"n": seal(encode_pace(new), SECRET, "pace", KEY, "n")}, SECRET, KEY)) == {"n"}


def test_who_was_late_once_in_a_job_that_keeps_a_rate_holds_nobody_back() -> None:
    """Each rank has its next batch so long after its last: the others wait for it since then, and no step is longer."""
    job = Job("nothing", 6, 0.0, 3, 60.0, pace_seconds=0.25, stands_seconds=0.12)
    assert not [verdict for _, verdict, _ in together(job, 1, 170) if verdict.ranks]


def test_who_needs_longer_than_the_rate_that_its_job_keeps_is_named() -> None:
    *_, (_, verdict, _) = together(Job("sleep", 6, 1.0, 3, 60.0, pace_seconds=0.25, stands_seconds=0.12), 1, 110)
    assert (verdict.ranks, verdict.stage) == ((3,), "confirmed")


def paced(
    slow_for: int, *, step_ms: tuple[int, int], said: bool = True, missing: int | None = None
) -> dict[str, NodePace]:
    """Six nodes of a rank each: for rank 2 the others have waited for the last blocks, in which a step is as long as
    the second number says, and before as long as the first."""
    calm = 64 - slow_for
    lasted = (step_ms[0],) * calm + (step_ms[1],) * slow_for
    each = {}
    for rank in range(6):
        one = pace(rank, waited=0.1)
        waited = (2,) * calm + (0 if rank == 2 else 10,) * slow_for
        of_rank = (msgspec.structs.replace(one.ranks[0], waited=waited),)
        each[f"n{rank}"] = msgspec.structs.replace(one, ranks=of_rank, lasted_ms=lasted if said else ())
    if missing is not None:
        each = {node: _without_block(one, missing) for node, one in each.items()}
    return each


def _without_block(one: NodePace, place: int) -> NodePace:
    ticks = tuple(0 if at == place else many for at, many in enumerate(one.ticks))
    waited = tuple(0 if at == place else many for at, many in enumerate(one.ranks[0].waited))
    lasted = tuple(99_000 if at == place - 1 else many for at, many in enumerate(one.lasted_ms))
    ranks = (msgspec.structs.replace(one.ranks[0], waited=waited),)
    return msgspec.structs.replace(one, ticks=ticks, ranks=ranks, lasted_ms=lasted)


def test_how_long_a_step_was_before_is_kept_when_no_block_is_left_of_that_time() -> None:
    before = judge_pace(paced(30, step_ms=(1000, 1000)), SHARE, PaceVerdict())
    assert (before.ranks, before.waited_for, before.before_seconds) == ((), (2,), 1.0)
    assert judge_pace(paced(64, step_ms=(1000, 1000)), SHARE, before).ranks == ()
    assert judge_pace(paced(64, step_ms=(1000, 1500)), SHARE, before).ranks == (2,)
    assert judge_pace(paced(64, step_ms=(1000, 1000)), SHARE, PaceVerdict()).ranks == (2,), "nobody knows it"


def test_how_long_a_step_was_long_ago_is_forgotten() -> None:
    verdict = judge_pace(paced(30, step_ms=(1000, 1000)), SHARE, PaceVerdict())
    kept = [verdict := judge_pace(paced(0, step_ms=(1000, 1000)), SHARE, verdict) for _ in range(6)]
    assert [one.before_seconds for one in kept] == [1.0] * 5 + [0.0]


def test_a_block_that_no_node_saw_says_nothing_of_how_long_steps_are() -> None:
    assert judge_pace(paced(30, step_ms=(1000, 1000), missing=50), SHARE, PaceVerdict()).ranks == ()
    assert judge_pace(paced(30, step_ms=(1000, 1500), missing=50), SHARE, PaceVerdict()).ranks == (2,)


def test_of_nodes_of_a_version_that_does_not_say_how_long_steps_are_a_slow_rank_is_named_all_the_same() -> None:
    verdict = judge_pace(paced(30, step_ms=(1000, 1500), said=False), SHARE, PaceVerdict())
    assert verdict.ranks == (2,) and verdict.slowness is not None
    mixed = paced(30, step_ms=(1000, 1500), said=False) | {"n2": paced(30, step_ms=(1000, 1500))["n2"]}
    assert judge_pace(mixed, SHARE, PaceVerdict()).ranks == (2,)


def test_as_many_lengths_as_blocks_or_none() -> None:
    broken = msgspec.structs.replace(pace(7), lasted_ms=(1000,) * 3)
    assert not believed_paces({"n": seal(encode_pace(broken), SECRET, "pace", KEY, "n")}, SECRET, KEY)


@pytest.mark.parametrize("onset", [1.0, 40.0])
def test_what_a_rank_costs_that_is_late_from_the_first_steps_is_told_as_at_most(onset: float) -> None:
    """Nobody has seen the job without it: it may keep a rate, and lose nothing."""
    *_, (_, verdict, _) = together(Job("sleep", 6, 0.4, 3, onset), 1, 90)
    assert verdict.ranks == (3,) and verdict.slowness is not None
    assert verdict.slowness.at_most == (onset == 1.0)
    assert ("s, at most 0.0" in verdict.reason) == (onset == 1.0)
