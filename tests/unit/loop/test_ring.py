"""The last looks at the node: whose ranks are many costs himself his timeline, and nobody the node's memory."""

import msgspec

from stallwatch.loop.ring import SnapshotRing
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot, ProcessEnd, RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot


def ranks(owner: str, count: int, children: int = 0) -> list[RankSample]:
    loaders = (ChildProcess(60, "S", "loader"),) * children
    return [sample(rank, None, job=JobKey("job", "epoch", owner), children=loaders) for rank in range(count)]


def look(*of_users: list[RankSample]) -> NodeSnapshot:
    return snapshot(0, [rank for of_user in of_users for rank in of_user])


def test_of_who_has_many_ranks_so_many_are_kept_and_of_others_all() -> None:
    ring = SnapshotRing(60, 1)
    whole = look(ranks("alice", 8), ranks("bob", 500))
    for _ in range(3):
        ring.add(whole)
    assert ring.latest == whole, "the looks of now are whole"
    for old in ring.all()[:-1]:
        assert [sum(rank.job.owner == owner for rank in old.ranks) for owner in ("alice", "bob")] == [8, 64]
    assert len(ring.last_ranks_of(JobKey("job", "epoch", "bob"))) == 500


def test_of_who_has_many_children_none_are_kept() -> None:
    ring = SnapshotRing(60, 1)
    for _ in range(2):
        ring.add(look(ranks("alice", 2, children=8), ranks("bob", 2, children=3_000)))
    seen = {rank.job.owner: rank.process for rank in ring.all()[0].ranks}
    counts = {owner: len(known.value.children) for owner, known in seen.items() if isinstance(known, Known)}
    assert counts == {"alice": 8, "bob": 0}


def test_what_a_rank_has_left_that_ended_is_kept_once() -> None:
    """Each look is decoded anew, and the looks of two minutes held 120 copies: 40 deaths were 16 MB."""
    ring = SnapshotRing(60, 1)
    end = ProcessEnd(START_NS, 3, None, "hook")
    for second in range(100):
        ended = sample(0, heartbeat(0, step=7, exit_code=3), end=end, at_ns=START_NS + second * SECOND_NS)
        ring.add(
            snapshot(second, msgspec.msgpack.decode(msgspec.msgpack.encode((ended,)), type=tuple[RankSample, ...]))
        )
    kept = [rank for look in ring.all() for rank in look.ranks]
    readings = [rank.heartbeat for rank in kept]
    assert len(readings) == 60
    assert len({id(one.value) for one in readings if isinstance(one, Known)}) == 1
    assert len({id(rank.job) for rank in kept}) == 1
    assert [one.at_ns for one in readings] == [START_NS + second * SECOND_NS for second in range(40, 100)]


def test_of_a_rank_that_moves_each_look_keeps_its_own() -> None:
    ring = SnapshotRing(60, 1)
    shots = [snapshot(second, [sample(0, heartbeat(0, step=second), cpu_ticks=second)]) for second in range(60)]
    for shot in shots:
        ring.add(shot)
    assert list(ring.all()) == shots
