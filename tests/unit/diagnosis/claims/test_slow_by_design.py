"""What says that a slow rank has more to do by the program, and what says nothing."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Evidence, HeldBack, Profile, RankEvidence, SampledStack, Usage
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, STEP_NS, Rank, loop, world
from tests.unit.diagnosis.job.test_time_spent import backward, line, load_batch, seen

STEPS = loop(world(4), 40)
OWN = [load_batch(38), seen(60, line(90)), backward(2)]
PEERS = [load_batch(6), seen(60, line(90)), backward(34)]
QUIET = Usage(1, 5.0, cpu_share=0.2, runnable_share=0.01, major_faults=0, read_bytes=0, cpus=(0, 1))


def _rank(number: int, stacks: list[SampledStack], usage: Usage, late_ns: int, changes: dict[str, Any]) -> RankEvidence:
    calls, done = STEPS[: 76 if late_ns else 78], 75 if late_ns else 77
    rank = Rank(number, calls, done, looks=1, frames=SLEEPS, backend="gloo").evidence()
    (recorder,) = rank.recorders
    moved = tuple(
        msgspec.structs.replace(one, created_ns=(one.created_ns or 0) + late_ns, **changes)
        for one in recorder.operations
    )
    last = max(operation.created_ns or 0 for operation in moved)
    return msgspec.structs.replace(
        rank,
        recorders=(msgspec.structs.replace(recorder, operations=moved),),
        captured_at_ns=last + STEP_NS // 2,
        profiles=(Profile("ranks/profile.txt", 1, tuple(stacks)),),
        usages=(usage,),
    )


def slow(
    rank: int,
    *,
    usage: Usage = QUIET,
    of_peers: Usage = QUIET,
    received: int = 0,
    peers_received: int = 0,
) -> Verdict:
    """Of a job that is held back by a rank since its first steps; in each call they receive so many elements by an
    all-to-all, 0: there is none."""

    def changes(elements: int) -> dict[str, Any]:
        return {"name": "all_to_all", "output_sizes": ((elements, 64),)} if elements else {}

    ranks = [
        _rank(number, OWN, usage, STEP_NS // 2, changes(received))
        if number == rank
        else _rank(number, PEERS, of_peers, 0, changes(peers_received))
        for number in range(4)
    ]
    held_back = HeldBack((rank,), "they wait", None, sure=True, from_start=True, grows=False)
    (found,) = judge(Evidence(4, "gloo", tuple(ranks), (), (), held_back=held_back)).verdicts
    assert (found.cause, found.culprits) == ("slow_rank", (rank,))
    return found


def test_an_expert_that_is_sent_more_tokens_has_more_to_do() -> None:
    """Four experts, of which a router chooses one four times as often, live under gloo: told as slow after 100 s."""
    said = "rank 2 receives 4.0 times as much as the others in all-to-all exchanges"
    assert said in slow(2, received=1200, peers_received=300).by_design


@pytest.mark.parametrize(("received", "peers_received"), [(300, 300), (320, 300), (0, 0)])
def test_who_is_sent_as_much_as_the_others_is_slow_by_itself(received: int, peers_received: int) -> None:
    assert slow(2, received=received, peers_received=peers_received).by_design == ""


CROWDED = msgspec.structs.replace(QUIET, cpu_share=0.028, runnable_share=0.354)
CROWDED_PEER = msgspec.structs.replace(QUIET, cpu_share=0.008, runnable_share=0.110)


def test_on_a_crowded_machine_who_computes_more_waits_longer_for_a_cpu_and_is_no_worse_off() -> None:
    """Rank 0 logs 40 ms in each step at a load of 31 on two cores: it was told that its CPUs are taken."""
    told = slow(0, usage=CROWDED, of_peers=CROWDED_PEER)
    assert "consistent with work that the program gives to the first rank" in told.by_design
    said = "no CPU to run on 35% of the time, its peers 11%, but the same part of the time in which each wants to run"
    assert any(said in one.fact for one in told.because)
    assert not any("taskset" in step for step in told.next_steps)


def test_whose_cpus_are_taken_more_often_when_it_wants_one_is_held_up_by_others() -> None:
    told = slow(0, usage=msgspec.structs.replace(CROWDED, cpu_share=0.2), of_peers=QUIET)
    assert told.by_design == ""
    assert any("taskset" in step for step in told.next_steps)
