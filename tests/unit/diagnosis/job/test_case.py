"""Groups identified across ranks, by what they are and who is in them."""

import msgspec

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from tests.builders.job import Call, Group, Rank, transfer


def _case(*ranks: Rank, world_size: int | None = None) -> Case:
    return Case([reduce_rank(rank.evidence()) for rank in ranks], {}, world_size)


def _described(case: Case) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(group.description, group.ranks, group.members_known) for group in case.groups]


def test_the_default_group_of_gloo_is_the_world() -> None:
    group = Group("0", "default_pg", (0, 1, 2))
    ranks = [Rank(r, (Call(group),), backend="gloo", members_known=False) for r in (0, 1)]
    assert _described(_case(*ranks, world_size=3)) == [("default_pg", (0, 1, 2), True)]


def _configured(rank: int, config: tuple[int, ...], *calls: Call) -> Rank:
    """A rank whose gloo wrote these members under the name "", as torch 2.14 does of the group that was made last."""
    return Rank(rank, calls, backend="gloo", members_known=False, configured=config)


def test_members_of_a_group_of_gloo_that_was_made_last_are_not_the_default_group_s() -> None:
    """Ranks 0 to 3 have a group of their own, and wait for rank 4 in the default group."""
    group, part = Group("0", "default_pg", (0, 1, 2, 3, 4)), Group("1", "undefined", (0, 1, 2, 3), 1)
    ranks = [_configured(rank, (0, 1, 2, 3), Call(part), Call(group)) for rank in range(4)]
    assert ("default_pg", (0, 1, 2, 3, 4), True) in _described(_case(*ranks, world_size=5))


def test_a_group_of_gloo_that_nobody_has_used_yet_tells_nothing_of_the_default_group() -> None:
    group = Group("0", "default_pg", (0, 1, 2, 3))
    some = [_configured(rank, (0, 1) if rank < 2 else (0, 1, 2, 3), Call(group)) for rank in range(4)]
    assert _described(_case(*some, world_size=4)) == [("default_pg", (0, 1, 2, 3), True)]
    pairs = [_configured(rank, (0, 1), Call(group)) for rank in range(4)]
    assert _described(_case(*pairs, world_size=4)) == [("default_pg", (0, 1, 2, 3), True)]


def test_a_default_group_of_gloo_may_be_smaller_than_what_was_started() -> None:
    """A server of inference beside the trainers never joins a group."""
    group = Group("0", "default_pg", (0, 1, 2))
    ranks = [_configured(rank, (0, 1, 2), Call(group)) for rank in range(3)]
    assert _described(_case(*ranks, world_size=4)) == [("default_pg", (0, 1, 2), True)]


def test_members_of_the_only_group_that_a_rank_has_used_are_counted_within_it() -> None:
    part = Group("2", "undefined", (2, 3), 1)
    ranks = [_configured(rank, (0, 1), Call(part)) for rank in (2, 3)]
    assert _described(_case(*ranks, world_size=4)) == [("undefined", (2, 3), False)]


def test_groups_of_unknown_members_are_told_apart_by_name() -> None:
    groups = [Group("1", "tp", (0, 1), 1), Group("2", "tp", (2, 3), 1)]
    ranks = [Rank(r, (Call(groups[r // 2]),), backend="gloo", members_known=False) for r in range(4)]
    described = _described(_case(*ranks, world_size=4))
    assert [ranks for _, ranks, _ in described] == [(0, 1), (2, 3)]


def test_sisters_that_share_out_the_world_are_complete() -> None:
    groups = [Group("1", "tp0", (0, 1), 1), Group("2", "tp1", (2, 3), 1)]
    ranks = [Rank(r, (Call(groups[r // 2]),), backend="gloo", members_known=False) for r in range(4)]
    assert all(known for _, _, known in _described(_case(*ranks, world_size=4)))
    assert not any(known for _, _, known in _described(_case(*ranks[:3], world_size=4)))


def test_sisters_whose_gathers_tell_that_they_are_whole_complete_the_one_that_lacks_a_member() -> None:
    groups = [Group(str(1 + n), f"cp{n}", (2 * n, 2 * n + 1), 1 + n) for n in range(3)]
    gathers = [Call(group, "all_gather", 4, outputs=8) for group in groups]
    ranks = [Rank(r, (gathers[r // 2],), backend="gloo", members_known=False) for r in range(5)]
    assert _described(_case(*ranks, world_size=6))[-1] == ("cp2", (4, 5), True)


def test_a_gather_tells_how_many_members_there_are() -> None:
    group = Group("1", "odd", (0, 1), 1)
    call = Call(group, "all_gather", 4, outputs=12)
    ranks = [Rank(r, (call,), backend="gloo", members_known=False) for r in (0, 1)]
    assert _described(_case(*ranks, world_size=9)) == [("odd", (0, 1), False)]


def test_two_groups_of_the_same_members_are_told_apart_by_shared_names() -> None:
    one, two = Group("3", "undefined", (0, 1), 1), Group("4", "undefined", (0, 1), 2)
    ranks = [Rank(0, (Call(one), Call(two))), Rank(1, (Call(two), Call(one)))]
    case = _case(*ranks, world_size=2)
    names = [{member.stream.name for member in streams.values()} for streams in case.streams]
    assert names == [{"3"}, {"4"}]


def test_two_groups_of_the_same_members_without_shared_names_go_by_order() -> None:
    mine = [Group("3", "s", (0, 1), 1), Group("10", "s", (0, 1), 2)]
    theirs = [Group("5", "s", (0, 1), 1), Group("12", "s", (0, 1), 2)]
    ranks = [Rank(0, tuple(map(Call, mine))), Rank(1, tuple(map(Call, theirs)))]
    case = _case(*ranks, world_size=2)
    names = [{rank: member.stream.name for rank, member in streams.items()} for streams in case.streams]
    assert names == [{0: "3", 1: "5"}, {0: "10", 1: "12"}]


def test_ends_of_transfers_are_ranks_of_the_group_or_global_ones() -> None:
    stage = Group("1", "pp", (2, 6), 1)
    case = _case(Rank(6, (transfer(stage, ("recv", 0)),), 0), world_size=8)
    pending = case.summaries[6].pending[0]
    assert case.ends(6, pending, pending.transfers[0]) == (2, 6)


def test_a_completed_synchronising_collective_proves_where_everybody_has_been() -> None:
    group = Group("0", "default_pg", (0, 1))
    late = _case(Rank(0, (Call(group),) * 5), Rank(1, (Call(group),) * 2), world_size=2)
    assert late.is_stale(1, 0)
    broadcast = Call(group, "broadcast")
    early = _case(Rank(0, (broadcast,) * 5), Rank(1, (broadcast,) * 2), world_size=2)
    assert not early.is_stale(1, 0)


def test_the_direction_tells_whose_end_is_ones_own() -> None:
    """Rank 5 is number 1 of its group: "recv 5<-1" names global ranks, though 1 is its own number there."""
    stage = Group("1", "pp", (1, 5, 9, 13), 1)
    evidence = Rank(5, (transfer(stage, ("recv", 0)),), 0).evidence()
    entries = evidence.recorders[0].operations
    named = tuple(msgspec.structs.replace(entry, name="recv 5<-1") for entry in entries)
    recorder = msgspec.structs.replace(evidence.recorders[0], operations=named)
    case = Case([reduce_rank(msgspec.structs.replace(evidence, recorders=(recorder,)))], {}, 16)
    pending = case.summaries[5].pending[0]
    assert case.ends(5, pending, pending.transfers[0]) == (1, 5)
