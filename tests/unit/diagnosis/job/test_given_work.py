"""How much more ranks are given to work on than their peers, however many ranks there are."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.job.given_work import given_times
from stallwatch.model.evidence import RankEvidence
from tests.builders.job import Rank, loop, world


class Counted(str):
    """A group's name that counts how often it is looked up."""

    __slots__ = ()
    times = 0

    def __hash__(self) -> int:
        Counted.times += 1
        return super().__hash__()


def exchanged(elements: int, calls: Iterable[int] = range(40), group: str = "experts") -> RankEvidence:
    """A rank that received so many rows in each of these all-to-alls of a group."""
    seen = Rank(0, loop(world(2), 1), 1, looks=1).evidence()
    (recorder,) = seen.recorders
    one = replace(recorder.operations[0], name="all_to_all", group_description=group, output_sizes=((elements, 64),))
    made = tuple(replace(one, collective_seq_id=call) for call in calls)
    return replace(seen, recorders=(replace(recorder, operations=made),))


def test_who_receives_more_than_the_median_of_its_peers_does_so_by_that_many_times() -> None:
    assert given_times([exchanged(1200)], [exchanged(300), exchanged(400), exchanged(100)]) == 4.0


def test_of_several_slow_ranks_the_least_counts() -> None:
    peers = [exchanged(300) for _ in range(6)]
    assert given_times([exchanged(1200), exchanged(600)], peers) == 2.0


def test_each_is_compared_in_the_groups_that_it_is_in() -> None:
    """Two replicas of the experts, each with a group of its own."""
    here, there = [[exchanged(300, group=group) for _ in range(3)] for group in ("experts 0", "experts 1")]
    assert given_times([exchanged(900, group="experts 0"), exchanged(600, group="experts 1")], here + there) == 2.0
    assert given_times([exchanged(900, group="experts 2")], here + there) is None


def test_calls_that_not_all_have_recorded_do_not_count() -> None:
    ahead = [exchanged(300, range(2, 42)) for _ in range(3)]
    assert given_times([exchanged(600)], ahead) == 2.0


@pytest.mark.parametrize("calls", [range(3), range(900, 940)])
def test_a_peer_whose_record_is_of_another_time_is_left_out(calls: range) -> None:
    assert given_times([exchanged(600)], [*(exchanged(300) for _ in range(3)), exchanged(300, calls)]) == 2.0


@pytest.mark.parametrize("calls", [range(3), range(900, 940)])
def test_of_a_slow_rank_whose_record_is_of_another_time_nothing_is_known(calls: range) -> None:
    assert given_times([exchanged(600, calls)], [exchanged(300) for _ in range(3)]) is None


def test_each_rank_is_summed_once_however_many_are_slow() -> None:
    """A thousand ranks with 64 slow ones took more than a minute: for each pair its calls were looked up again."""
    group = Counted("experts")
    slow, peers = [exchanged(600, group=group) for _ in range(16)], [exchanged(300, group=group) for _ in range(48)]
    Counted.times = 0
    assert given_times(slow, peers) == 2.0
    calls, pairs = 40 * (16 + 48), 16 * 48
    assert Counted.times < 4 * calls + 8 * pairs
