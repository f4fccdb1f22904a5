"""NCCL's own count of launches, joined to ranks by the pid that each process has for itself."""

import msgspec

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import NodeEvidence, RankEvidence, RasCommunicator, RasRank
from tests.builders.job import SLEEPS, Rank, loop, world


def case(ranks: list[RankEvidence], pids: list[int]) -> Case:
    counts = [26, 26, 25, 26]
    members = tuple(RasRank(rank, "n", pid, (("AllReduce", counts[rank]),)) for rank, pid in enumerate(pids))
    node = NodeEvidence("node0", (0, 1, 2, 3), ras=(RasCommunicator("0x1", 4, members),))
    activities = {rank.rank: read_activity(rank) for rank in ranks}
    return Case([reduce_rank(rank) for rank in ranks], activities, 4, (node,), {rank.rank: rank for rank in ranks})


def ranks_of(namespace_pids: list[int | None]) -> list[RankEvidence]:
    found = []
    for number, inner in enumerate(namespace_pids):
        evidence = Rank(number, loop(world(4), 5), frames=SLEEPS).evidence()
        looks = tuple(msgspec.structs.replace(look, namespace_pid=inner) for look in evidence.processes)
        found.append(msgspec.structs.replace(evidence, processes=looks))
    return found


def test_rank_that_launched_less_is_known_by_its_pid() -> None:
    assert case(ranks_of([None] * 4), [1000, 1001, 1002, 1003])._behind == {2}


def test_rank_in_a_container_is_known_by_its_pid_in_there() -> None:
    assert case(ranks_of([11, 12, 13, 14]), [11, 12, 13, 14])._behind == {2}


def test_pid_that_several_containers_have_names_nobody() -> None:
    assert case(ranks_of([7, 7, 7, 7]), [7, 7, 7, 7])._behind == frozenset()


def test_another_job_s_report_with_the_same_pids_names_nobody() -> None:
    # Two jobs in containers that share the node's network: the first one's service answers; all pids but one are alike.
    assert case(ranks_of([21, 22, 23, 24]), [20, 21, 22, 23])._behind == frozenset()


def test_report_in_another_order_is_of_another_job() -> None:
    assert case(ranks_of([13, 11, 12, 14]), [11, 12, 13, 14])._behind == frozenset()
