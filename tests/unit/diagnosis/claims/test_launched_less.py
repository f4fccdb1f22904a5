"""Stacks that all stand in communication, and what NCCL RAS has counted of each rank's launches."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, NodeEvidence, RasCommunicator, RasRank
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Rank, evidence

_CUDA = "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py"
WAITS = (CodeFrame("synchronize", _CUDA, 1100), CodeFrame("step", "/srv/job/train.py", 30), SLEEPS[-1])
EARLIER = (WAITS[0], CodeFrame("step", "/srv/job/train.py", 28), SLEEPS[-1])
Counts = dict[int, tuple[int, int]]  # of a rank: AllReduce, AllGather


def _judged(*communicators: Counts, ranks: int = 4, looks: int = 2, earlier: tuple[int, ...] = ()) -> Verdict:
    """`earlier`: ranks whose hosts stand at an earlier line of the same step."""
    stand = [
        Rank(rank, dumped=False, frames=EARLIER if rank in earlier else WAITS, wchan=None, state="R", looks=looks)
        for rank in range(ranks)
    ]
    told = evidence(*stand)
    pids = {rank.rank: rank.processes[-1].pid or 0 for rank in told.ranks}
    ras = tuple(
        RasCommunicator(
            str(number),
            len(counts),
            tuple(
                RasRank(place, "node0", pids[rank], (("AllReduce", reduced), ("AllGather", gathered)))
                for place, (rank, (reduced, gathered)) in enumerate(counts.items())
            ),
        )
        for number, counts in enumerate(communicators)
    )
    node = NodeEvidence("node0", tuple(range(ranks)), ras=ras)
    return judge(replace(told, nodes=(node,), looks=looks)).verdicts[0]


ALIKE = dict.fromkeys(range(4), (100, 5))


def test_who_left_a_call_out_has_launched_one_less() -> None:
    verdict = _judged({**ALIKE, 2: (99, 5)})
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")
    assert verdict.waiting == "0-1,3"
    assert any("104 collectives" in fact.fact and "105" in fact.fact for fact in verdict.because)
    assert "rank 2 has launched 104 collectives, by NCCL's own count, where others launched 105" in verdict.summary
    assert "left a call out" in verdict.next_steps[0]


def test_who_called_another_operation_has_launched_as_many_but_others() -> None:
    verdict = _judged({**ALIKE, 3: (99, 6)})
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (3,), "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.expected, verdict.mismatch.found) == ("all_reduce", "all_gather")


def test_who_is_behind_because_it_waits_for_another_is_not_named() -> None:
    """Replicas of two: rank 2 left out a call of its pair; rank 3 stands in it, and lacks where the world meets."""
    verdict = _judged({**ALIKE, 2: (99, 5), 3: (99, 5)}, {2: (10, 0), 3: (11, 0)}, {0: (11, 0), 1: (11, 0)})
    assert verdict.culprits == ()  # as many are behind as are not
    eight = dict.fromkeys(range(8), (100, 5))
    verdict = _judged({**eight, 2: (99, 5), 3: (99, 5)}, {2: (10, 0), 3: (11, 0)}, ranks=8)
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_who_has_less_as_its_host_stands_earlier_in_the_step_is_not_named_beside_who_left_a_call_out() -> None:
    """Rank 2's host waits for the GPU before its next launch; rank 1 is where ranks 0 and 3 are, with one less."""
    verdict = _judged({**ALIKE, 1: (99, 5), 2: (99, 5)}, earlier=(2,))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (1,), "likely")
    verdict = _judged({**ALIKE, 2: (99, 5)}, earlier=(2,))
    assert (verdict.culprits, verdict.confidence) == ((2,), "possible")


def test_who_may_wait_for_a_message_is_not_named() -> None:
    """Two of a pipeline: their communicator has sent and received, which is not counted."""
    assert _judged({**ALIKE, 2: (99, 5)}, {1: (0, 0), 2: (0, 0)}).culprits == ()


@pytest.mark.parametrize(
    "counts",
    [
        ALIKE,
        {**ALIKE, 0: (101, 5)},  # it leads: a host runs ahead, or called something extra
        {**ALIKE, 0: (99, 6), 1: (99, 6)},  # two against two
        {**ALIKE, 0: (99, 6), 1: (98, 7)},
        {0: (100, 5), 1: (99, 5)},  # of two, either may be wrong
    ],
)
def test_nobody_is_named_by_counts_that_tell_nothing(counts: Counts) -> None:
    assert _judged(counts).culprits == ()


def test_one_look_shows_no_standstill() -> None:
    assert _judged({**ALIKE, 2: (99, 5)}, looks=1).culprits == ()
