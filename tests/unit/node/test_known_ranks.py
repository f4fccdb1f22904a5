import os

from stallwatch.model.snapshot import JobKey, RankSample
from stallwatch.node.known_ranks import KnownRanks, known_file, read_known
from tests.builders.node import sample


def ranks(owner: str, count: int, first_pid: int, command: str = "") -> list[RankSample]:
    job = JobKey("job", "epoch", owner)
    return [sample(rank, None, job=job, pid=first_pid + rank, command=command) for rank in range(count)]


def owners(descriptor: int) -> dict[str, int]:
    known = read_known(descriptor).values()
    return {owner: sum(one.job.owner == owner for one in known) for owner in ("alice", "bob")}


def test_who_has_many_ranks_come_and_go_pushes_nobody_elses_out() -> None:
    descriptor = known_file(ranks("alice", 8, 100))
    try:
        known = KnownRanks(descriptor)
        for turn in range(8):
            known.note(ranks("bob", 1_000, 10_000 * (turn + 1)))
        assert owners(descriptor) == {"alice": 8, "bob": 1_024}
    finally:
        os.close(descriptor)


def test_who_has_large_ranks_loses_of_his_own() -> None:
    """Nothing was written at all once all together were too large."""
    descriptor = known_file(())
    try:
        KnownRanks(descriptor).note([*ranks("bob", 200, 10_000, command="x" * 200_000), *ranks("alice", 8, 100)])
        known = owners(descriptor)
        assert known["alice"] == 8
        assert 0 < known["bob"] < 200
    finally:
        os.close(descriptor)
