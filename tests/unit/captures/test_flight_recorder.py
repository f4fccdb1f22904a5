"""Which rungs a recorder is asked for, and how ranks that share few cores take turns."""

from itertools import pairwise

import pytest

from stallwatch.captures.flight_recorder import rungs_of, turns
from stallwatch.hook.pulse import REQUEST_SECONDS
from stallwatch.model.snapshot import GroupCounter
from tests.builders.heartbeat import heartbeat

FIRST = ("active", "entries")


@pytest.mark.parametrize(
    ("recorders", "asked"),
    [(("gloo",), ("entries",)), (("nccl",), FIRST), (("gloo", "nccl"), FIRST), ((), FIRST)],
)
def test_gloo_is_not_asked_twice_for_one_answer(recorders: tuple[str, ...], asked: tuple[str, ...]) -> None:
    groups = tuple(GroupCounter(name, number, 5, 4) for number, name in enumerate(recorders))
    assert rungs_of(heartbeat(0, groups=groups), FIRST) == asked


def test_what_is_asked_for_alone_is_asked() -> None:
    groups = (GroupCounter("gloo", 0, 5, 4),)
    assert rungs_of(heartbeat(0, groups=groups), ("active",)) == ("active",)
    assert rungs_of(None, FIRST) == FIRST


def test_ranks_with_cores_enough_dump_at_once() -> None:
    assert turns(8, 16) == (0,) * 8
    assert turns(0, 2) == ()


def test_ranks_that_share_two_cores_dump_one_after_the_other() -> None:
    moments = turns(8, 2)
    assert len(set(moments)) == 8
    apart = [later - sooner for sooner, later in pairwise(moments)]
    assert min(apart) >= 50_000_000  # a dump of a full ring takes 30 ms
    assert min(moments) >= 250_000_000  # every hook has looked for its request by then
    # Hooks that have answered a moment ago have, sooner.
    soon = turns(8, 2, look=2)
    assert min(soon) >= 2 * REQUEST_SECONDS * 1e9
    assert max(soon) - min(soon) == max(moments) - min(moments)
    assert turns(8, 2, look=3) == moments


def test_half_of_the_cores_dump_at_a_time_and_nobody_waits_for_long() -> None:
    assert len(set(turns(16, 8))) == 4
    assert max(turns(256, 2)) <= 2_400_000_000  # a hook puts its answer off by four seconds at most
