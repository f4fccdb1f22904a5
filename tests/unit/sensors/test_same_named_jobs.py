import os
from collections.abc import Sequence
from itertools import permutations

import pytest

from stallwatch.sensors.same_named_jobs import ProcessGroupKey, RankClaimant, kin_of, separate_jobs


def job(first: int, ranks: Sequence[int], kin: ProcessGroupKey, started: int) -> list[RankClaimant]:
    return [RankClaimant(first + rank, rank, started + rank, kin) for rank in ranks]


def remembering(members: Sequence[RankClaimant], told: dict[object, int]) -> list[RankClaimant]:
    return [member._replace(ordinal=told.get(member.key, member.ordinal)) for member in members]


A, B = ProcessGroupKey(1, 1, 1, 1, 1), ProcessGroupKey(1, 1, 1, 1, 2)


def test_a_job_is_one_whoever_started_its_ranks() -> None:
    members = job(10, [0, 1], A, 0) + job(20, [2, 3], B, 5)  # two launchers on one node, as two nodes
    assert set(separate_jobs(members).values()) == {1}


@pytest.mark.parametrize("place", range(5))
def test_two_processes_of_one_rank_are_two_jobs_told_apart_by_what_their_ranks_share(place: int) -> None:
    other = ProcessGroupKey(*(2 if field == place else 1 for field in range(5)))
    members = job(10, [0, 1, 2, 3], ProcessGroupKey(1, 1, 1, 1, 1), 0) + job(20, [0, 1, 2, 3], other, 2)
    told = separate_jobs(members)
    assert [told[key] for key in (10, 11, 12, 13)] == [1, 1, 1, 1]
    assert [told[key] for key in (20, 21, 22, 23)] == [2, 2, 2, 2]


def test_ranks_that_appear_in_any_order_end_in_their_own_job() -> None:
    everybody = job(10, [0, 1], A, 0) + job(20, [0, 1], B, 10)
    for order in permutations(everybody):
        told: dict[object, int] = {}
        for count in range(1, 5):
            told = dict(separate_jobs(remembering(order[:count], told)))
        assert told[10] == told[11] != told[20] == told[21]


def test_a_job_keeps_its_place_when_the_other_has_gone_and_late_ranks_join_their_kin() -> None:
    members = job(10, [0, 1], A, 0) + job(20, [0, 1], B, 10)
    told = separate_jobs(members)
    after = [member._replace(alive=member.kin is B) for member in remembering(members, told)]
    assert separate_jobs(after) == {20: 2, 21: 2}
    late = [*after, RankClaimant(22, 2, 30, B)]
    assert separate_jobs(late) == {20: 2, 21: 2, 22: 2}


def test_a_third_job_takes_no_name_that_was_used() -> None:
    members = job(10, [0], A, 0) + job(20, [0], B, 10)
    left = [m for m in remembering(members, separate_jobs(members)) if m.key == 20]
    assert separate_jobs([*left, RankClaimant(30, 0, 50, A)]) == {20: 2, 30: 3}


@pytest.mark.parametrize("shared", [(1, 1, 0, 0, 1), (0, 0, 0, 0, 0)], ids=["sessions", "containers"])
def test_one_more_process_of_a_rank_does_not_part_ranks_that_share_nothing(shared: tuple[int, ...]) -> None:
    """torchrun gives each rank a session of its own, an orchestrator a container: four ranks and a service of one of
    them were five jobs."""
    ranks = [
        RankClaimant(10 + rank, rank, rank, ProcessGroupKey(*(one or 100 + rank for one in shared)))
        for rank in range(4)
    ]
    service = RankClaimant(50, 0, 9, ProcessGroupKey(1, 1, 50, 50, 1))
    assert separate_jobs([*ranks, service]) == {10: 1, 11: 1, 12: 1, 13: 1, 50: 2}
    told = separate_jobs(ranks)
    assert separate_jobs(remembering([*ranks, service], told)) == {10: 1, 11: 1, 12: 1, 13: 1, 50: 2}


def test_two_jobs_of_two_launchers_each_are_two() -> None:
    """Two nodes' agents on one, twice."""
    parts = [(10, [0, 1], 1, 0), (20, [2, 3], 2, 5), (30, [0, 1], 3, 20), (40, [2, 3], 4, 25)]
    members = [
        one._replace(kin=ProcessGroupKey(1, 1, int(str(one.key)), 1, parent))
        for first, ranks, parent, started in parts
        for one in job(first, ranks, A, started)
    ]
    told = separate_jobs(members)
    assert {told[key] for key in (10, 11, 22, 23)} == {1}
    assert {told[key] for key in (30, 31, 42, 43)} == {2}


def test_where_nothing_else_tells_the_order_does() -> None:
    members = job(10, [0, 1], A, 0) + job(20, [0, 1], A, 10)
    assert separate_jobs(members) == {10: 1, 11: 1, 20: 2, 21: 2}


def test_kin_of_this_process_and_of_none() -> None:
    kin = kin_of(os.getpid(), os.getppid())
    assert kin.session == os.getsid(0)
    assert kin.network == os.stat("/proc/self/ns/net").st_ino
    assert kin_of(2**22 + 1, 1) == ProcessGroupKey(parent=1)
