"""What a node writes for the one that merges says the same as its raw evidence."""

import msgspec

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.node_summary import NodeSummary, judge_nodes, summarise_node
from stallwatch.model.evidence import Evidence, ThreadState
from tests.builders.heartbeat import heartbeat
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, world

W8 = world(8)
STEPS = loop(W8, 6)


def _ranks() -> list[Rank]:
    ranks = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), host=f"node{r // 4}") for r in range(8) if r != 5]
    return [*ranks, Rank(5, STEPS, frames=SLEEPS, host="node1")]


def _over_the_wire(found: Evidence) -> NodeSummary:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(summarise_node(found)), type=NodeSummary)


def test_two_nodes_together_name_the_rank_that_neither_could_prove_certain() -> None:
    ranks = _ranks()
    parts = [
        _over_the_wire(evidence(*(rank for rank in ranks if rank.host == host), world_size=8))
        for host in ("node0", "node1")
    ]
    whole = judge(evidence(*ranks, world_size=8)).verdicts[0]
    merged = judge_nodes(parts).verdicts[0]
    assert (merged.cause, merged.culprits, merged.confidence) == (whole.cause, whole.culprits, whole.confidence)
    assert merged.waiting == whole.waiting
    assert judge_nodes(parts[::-1]).verdicts == judge_nodes(parts).verdicts


def test_one_node_alone_does_not_say_that_communication_is_stuck() -> None:
    part = _over_the_wire(evidence(*(rank for rank in _ranks() if rank.host == "node0"), world_size=8))
    assert judge_nodes([part]).verdicts[0].cause == "undecided"


def test_members_of_large_groups_travel_as_runs() -> None:
    size = 4096
    strided = Group("1", "dp0", tuple(range(0, size, 8)), 1)
    calls = (*loop(world(size), 2), Call(strided))
    summary = summarise_node(evidence(Rank(0, calls), world_size=size))
    assert len(msgspec.msgpack.encode(summary)) < 10_000


def test_what_only_its_own_node_could_see_travels_too() -> None:
    """The exit code that a hook said last; that a process has a group though its threads stay behind."""
    group = ThreadState(7, "pt_nccl_watchdg", "S")
    beat = heartbeat(0, ended=True, exit_code=3)
    found = evidence(Rank(0, STEPS, state="Z"), world_size=1)
    rank = found.ranks[0]
    look = msgspec.structs.replace(rank.processes[-1], threads=(*rank.processes[-1].threads, group))
    found = msgspec.structs.replace(found, ranks=(msgspec.structs.replace(rank, processes=(look,), heartbeat=(beat,)),))
    digest = _over_the_wire(found).ranks[0]
    assert digest.last_words[0].exit_code == 3
    assert [thread.name for thread in digest.processes[0].threads] == ["python", "pt_nccl_watchdg"]
    assert judge_nodes([_over_the_wire(found)]).verdicts == judge(found).verdicts
