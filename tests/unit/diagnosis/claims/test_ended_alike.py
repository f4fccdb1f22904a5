"""A job that was ended as a whole is nobody's fault; a first death is."""

from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import NodeEvidence, Stacks
from stallwatch.model.kernel import KernelEvent
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat
from tests.builders.job import Rank, evidence, loop, world

CLOSED = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 94, in step',
    "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:18849. A remote worker crashed.",
)


def ended(rank: int, at_seconds: float, **how: Any) -> Rank:
    return Rank(rank, dumped=False, state="Z", ended_ns=int(at_seconds * SECOND_NS), **how)


def untold(rank: int) -> Rank:
    """It is gone; neither how nor when was seen."""
    return Rank(rank, dumped=False, state="X")


def test_a_job_whose_ranks_were_all_killed_within_a_second_is_nobodys_fault() -> None:
    verdict = judge(evidence(*[ended(rank, 5 + rank / 5, exit_signal=9) for rank in range(4)])).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("job_ended", ())
    assert "all 4 ranks ended by SIGKILL within a second" in verdict.summary


@pytest.mark.parametrize(("apart", "cause"), [(0.004, "undecided"), (0.4, "rank_exited")])
def test_of_ranks_that_all_went_at_once_and_of_whose_ends_nothing_is_known_none_was_the_first(
    apart: float, cause: str
) -> None:
    verdict = judge(evidence(*[ended(rank, 5 + rank * apart) for rank in range(4)])).verdicts[0]
    assert verdict.cause == cause


LOST = ("epoch 1", *CLOSED)


@pytest.mark.parametrize(
    "last",
    [
        ended(3, 6),  # nobody saw how
        Rank(3, dumped=False, state="X", log=LOST),
        ended(3, 4, log=LOST),
        Rank(3, dumped=False, state="Z", exit_code=1, log=LOST),  # nor when
    ],
)
def test_of_a_crash_people_are_told_where_it_is_not_known_how_one_rank_ended(last: Rank) -> None:
    """All the others lost their peers: that was undecided, and nobody was told that the job had died."""
    lost = [ended(rank, 5 + rank / 50, exit_code=1, log=LOST) for rank in range(3)]
    verdict = judge(evidence(*lost, last)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", (), "possible"), verdict.summary


def test_of_a_crash_people_are_told_whatever_its_launcher_swept_later() -> None:
    lost = [ended(rank, 5 + rank / 50, exit_code=1, log=LOST) for rank in range(2)]
    verdict = judge(evidence(*lost, ended(2, 5.3, log=LOST), ended(3, 5.5, exit_signal=15, log=LOST))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", (), "possible"), verdict.summary


def test_a_job_that_was_told_to_end_did_not_crash_by_what_its_ranks_lost() -> None:
    """Of rank 3 nobody saw the end: it may have been the first that SIGTERM ended."""
    lost = [ended(rank, 5 + rank / 50, exit_code=1, log=LOST) for rank in range(2)]
    told_to_end = ended(2, 4.99, exit_signal=15, log=LOST)
    verdict = judge(evidence(*lost, told_to_end, ended(3, 4.9, log=LOST))).verdicts[0]
    assert verdict.cause != "rank_exited", verdict.summary


def test_where_nobody_saw_how_some_ended_nor_how_the_others_fared_nothing_is_known_to_have_failed() -> None:
    unseen = [Rank(rank, dumped=False, looks=0, log=("epoch 1",)) for rank in (0, 3)]
    gone = [ended(rank, 5 + rank) for rank in (1, 2)]
    assert judge(evidence(*unseen, *gone)).verdicts[0].cause == "undecided"
    assert judge(evidence(*unseen, gone[0], ended(2, 7, exit_code=1))).verdicts[0].cause == "rank_exited"


def test_who_died_as_victims_do_is_not_named_where_somebody_was_not_seen_since() -> None:
    """Rank 1 lives; rank 2 may have been killed, which rank 0 then died of."""
    victim, lives = ended(0, 5, exit_code=1), Rank(1, loop(world(3), 3), 5)
    unseen = Rank(2, dumped=False, looks=0, log=("epoch 1",)).evidence()
    unread = replace(unseen, stacks=(Stacks("stacks.error.json", 2, 1002, (), "No such process"),))
    for other, culprits in ((unseen, ()), (unread, ()), (Rank(2, loop(world(3), 3), 5).evidence(), (0,))):
        told = evidence(victim, lives, world_size=3)
        verdict = judge(replace(told, ranks=(*told.ranks, other))).verdicts[0]
        assert (verdict.cause, verdict.culprits) == ("rank_exited", culprits), other


def test_by_hooks_that_say_so_ranks_of_which_no_process_was_seen_ended_well() -> None:
    """Of the others nothing was seen since."""
    told = evidence(*[Rank(rank, dumped=False, looks=0) for rank in (0, 1)], Rank(2, dumped=False, looks=1))
    beats = {rank: (heartbeat(rank), heartbeat(rank, ended=True, exit_code=0)) for rank in (0, 1)}
    ends = tuple(replace(rank, heartbeat=beats.get(rank.rank, ())) for rank in told.ranks)
    verdict = judge(replace(told, ranks=ends)).verdicts[0]
    assert verdict.cause == "undecided", verdict.summary


def test_who_is_killed_last_may_have_written_that_its_peers_are_gone() -> None:
    """Seen at a load of 13: `kill -9` of everything took long enough for one rank to lose its peers first."""
    killed = [ended(rank, 5 + rank / 7, exit_signal=9, log=CLOSED if rank in (1, 3) else ()) for rank in range(4)]
    assert judge(evidence(*killed)).verdicts[0].cause == "job_ended"


def test_the_rest_that_is_killed_at_once_after_a_kill_that_it_noticed_is_cleared_away() -> None:
    cleared = [ended(rank, 5.5 + rank / 1000, exit_signal=9, log=CLOSED) for rank in (0, 1, 3)]
    verdict = judge(evidence(ended(2, 5.0, exit_signal=9), *cleared)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def test_a_job_of_which_most_were_seen_to_be_killed_at_once_has_no_culprit() -> None:
    """Of one neither its process nor a stack or a dump was read: nothing says that it lives."""
    killed = [ended(rank, 5 + rank / 10, exit_signal=9) for rank in (1, 2, 3)]
    verdict = judge(evidence(Rank(0, dumped=False, looks=0, log=("epoch 1",)), *killed)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("job_ended", ())


@pytest.mark.parametrize(("at", "cause"), [(5.1, "job_ended"), (21.0, "job_ended"), (4.5, "rank_exited")])
def test_of_ranks_that_were_killed_alike_one_may_have_gone_unseen_unless_it_went_first(at: float, cause: str) -> None:
    """Who gets no processor time takes long to die, also of SIGKILL: 16 s after its peers, and nobody saw how."""
    killed = [ended(rank, 5 + rank / 10, exit_signal=9) for rank in (0, 2, 3)]
    verdict = judge(evidence(ended(1, at), *killed)).verdicts[0]
    assert verdict.cause == cause


@pytest.mark.parametrize("signal", [9, 15])
@pytest.mark.parametrize("size", [4, 8])
def test_where_a_whole_job_is_ended_of_one_nobody_may_have_seen_how_or_when(size: int, signal: int) -> None:
    """It is gone, and its reader tells of its end after the look: that is no first death."""
    swept = [ended(rank, 5 + rank / 500, exit_signal=signal) for rank in range(size - 1)]
    verdict = judge(evidence(*swept, untold(size - 1))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("job_ended", (), "possible")
    assert f"all {size - 1} ranks that were seen ended by" in verdict.summary


@pytest.mark.parametrize("lives", [False, True])
def test_of_several_that_were_killed_at_once_none_is_named_where_of_another_neither_how_nor_when_is_known(
    lives: bool,
) -> None:
    killed = [ended(rank, 5 + rank / 500, exit_signal=9) for rank in (0, 1)]
    last = Rank(3, loop(world(4), 3), 5) if lives else untold(3)
    verdict = judge(evidence(*killed, untold(2), last)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", (), "possible")
    assert judge(evidence(killed[0], untold(2), last, world_size=3)).verdicts[0].culprits == (0,)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (KernelEvent("oom_kill", "oom-kill: task=python,pid=9", 1, seconds=700.0, pid=9), "job_ended"),  # hours ago
        (KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 45, pid=1003", 1, 9004.0, xid=45), "job_ended"),  # of the kill
        (KernelEvent("oom_kill", "oom-kill: task=python,pid=9", 1, seconds=9000.0, pid=9), "rank_exited"),
        (KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 79", 1, seconds=9000.0, xid=79), "rank_exited"),
    ],
)
def test_what_the_kernel_told_long_before_or_because_of_the_end_ended_no_job(event: KernelEvent, cause: str) -> None:
    node = NodeEvidence("node0", (0, 1, 2, 3), kernel_events=(event,))
    ranks = [ended(rank, 9005 + rank / 5, exit_signal=9) for rank in range(4)]
    assert judge(evidence(*ranks, nodes=(node,))).verdicts[0].cause == cause


@pytest.mark.parametrize(
    ("known", "pid", "cause"),
    [
        ((False,) * 4, 9, "job_ended"),
        ((False, False, None, False), 9, "rank_exited"),  # one may have gone with it
        ((False,) * 4, 1002, "rank_exited"),  # it was a rank, whatever its cgroup counts
        ((False,) * 4, None, "rank_exited"),
    ],
)
def test_a_kill_for_memory_of_another_job_s_process_ended_no_rank_whose_cgroup_counts_none(
    known: tuple[bool | None, ...], pid: int | None, cause: str
) -> None:
    """Seen where a test of the same machine ran out of its memory some seconds before the job was ended by hand."""
    event = KernelEvent("oom_kill", "oom-kill: task=python", 1, seconds=9000.0, pid=pid)
    node = NodeEvidence("node0", (0, 1, 2, 3), kernel_events=(event,))
    told = evidence(*[ended(rank, 9005 + rank / 5, exit_signal=9) for rank in range(4)], nodes=(node,))
    ranks = (
        replace(rank, processes=tuple(replace(look, out_of_memory=memory) for look in rank.processes))
        for rank, memory in zip(told.ranks, known, strict=True)
    )
    assert judge(replace(told, ranks=tuple(ranks))).verdicts[0].cause == cause


def test_a_job_that_was_asked_to_end_is_nobodys_fault_however_its_ranks_took_it() -> None:
    ends: list[dict[str, int]] = [{"exit_signal": 15}, {"exit_code": 0}, {"exit_code": 143}, {"exit_signal": 15}]
    verdict = judge(evidence(*[ended(rank, 5 + 9 * rank, **how) for rank, how in enumerate(ends)])).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("job_ended", ())


@pytest.mark.parametrize(
    ("at", "how"),
    [
        (3.0, {"exit_signal": 9}),  # long before the others: a first death
        (5.0, {"exit_signal": 11}),
        (5.0, {"exit_code": 1}),
    ],
)
def test_a_first_death_or_one_of_its_own_kind_is_the_cause_of_the_others(at: float, how: dict[str, Any]) -> None:
    others = [ended(rank, 5 + rank / 10, exit_signal=9) for rank in (1, 2, 3)]
    verdict = judge(evidence(ended(0, at, **how), *others)).verdicts[0]
    assert verdict.cause == "rank_exited"


def test_ranks_that_all_crash_by_a_signal_of_their_own_were_not_ended_from_outside() -> None:
    ranks = [ended(rank, 5 + rank / 10, exit_signal=11) for rank in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "rank_exited"


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ({"exit_code": 1}, "ranks 0-3 lost the connection to a peer"),
        ({"exit_signal": 15}, "ranks 1-2 lost the connection to a peer and ended of that; ranks 0,3 still lived then"),
    ],
)
def test_a_job_whose_ranks_all_lost_a_peer_has_crashed_though_nobody_is_known_to_have_begun(
    later: dict[str, Any], told: str
) -> None:
    """Rank 3 destroyed its group and made it anew: it lived on. All write into one log, whose lines are anybody's."""
    own = [ended(rank, 5 + rank / 20, exit_code=1, log=CLOSED) for rank in (1, 2)]
    others = [ended(rank, 5.3 + rank / 50, log=CLOSED, **later) for rank in (0, 3)]
    verdict = judge(evidence(*own, *others)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", (), "possible")
    assert told in verdict.summary.lower()
    assert "second look" not in " ".join((verdict.summary, *verdict.missing))
    raised = [fact.fact for fact in verdict.because if " raised " in fact.fact]
    assert raised, "it names the peer that was not reached"
    assert len(raised) <= 3, "all say the same"
    assert "what each rank raised" in verdict.next_steps[0], "of no culprit there is a traceback to read"


def test_who_ended_of_a_key_that_nobody_set_is_not_said_to_have_lost_a_connection() -> None:
    """All ranks, at a rendezvous of RPC with no time-out to wait in."""
    log = (*CLOSED[:2], "torch.distributed.DistStoreError")
    ranks = [ended(rank, 5 + rank / 20, exit_code=1, log=log) for rank in range(4)]
    summary = judge(evidence(*ranks)).verdicts[0].summary
    assert "anks 0-3 waited for a peer in vain, or lost it, and ended of that" in summary


@pytest.mark.parametrize(
    "ends",
    [
        [{"exit_signal": 15}, {"exit_code": 1}, {"exit_signal": 15}, {"exit_signal": 15}],  # asked to end
        [{"exit_code": 0}, {"exit_code": 1}, {"exit_code": 1}, {"exit_code": 1}],  # it was done before the others
    ],
)
def test_where_the_first_end_was_no_failure_who_lost_a_peer_has_not_crashed(ends: list[dict[str, int]]) -> None:
    logs = [CLOSED if how.get("exit_code") else () for how in ends]
    ranks = [ended(rank, 5 + rank, log=log, **how) for rank, (how, log) in enumerate(zip(ends, logs, strict=True))]
    assert "lost the connection to a peer and ended of that" not in judge(evidence(*ranks)).verdicts[0].summary


@pytest.mark.parametrize(
    ("ends", "culprits"),
    [
        ({0: 5.0, 1: 5.004}, (0, 1)),
        ({0: 5.0, 1: 5.004, 2: 5.1}, (0, 1)),  # the third later: of it nothing tells whether it was swept
        ({0: 5.0, 1: 5.1}, (0,)),
    ],
)
def test_of_ranks_that_were_killed_within_milliseconds_all_are_named_while_others_of_their_node_live(
    ends: dict[int, float], culprits: tuple[int, ...]
) -> None:
    """Somebody killed several by hand, or the kernel a whole cgroup: the earliest by a millisecond was named alone."""
    killed = [ended(rank, at, exit_signal=9) for rank, at in ends.items()]
    verdict = judge(evidence(*killed, Rank(3, loop(world(4), 3), 5))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", culprits), verdict.summary


@pytest.mark.parametrize(("logged", "confidence"), [((), "likely"), ((1000,), "likely"), ((1000, 1001), "certain")])
def test_of_several_that_were_killed_at_once_it_is_certain_only_by_the_kernel_s_word_of_each(
    logged: tuple[int, ...], confidence: str
) -> None:
    """A launcher clears away within milliseconds, too, and who takes longer to die is still there."""
    events = tuple(KernelEvent("oom_kill", "oom-kill: task=python", 1, seconds=5.0, pid=pid) for pid in logged)
    killed = [ended(rank, 5 + rank / 100, exit_signal=9) for rank in (0, 1)]
    node = NodeEvidence("node0", (0, 1, 2, 3), kernel_events=events)
    verdict = judge(evidence(*killed, *[Rank(r, loop(world(4), 3), 5) for r in (2, 3)], nodes=(node,))).verdicts[0]
    assert (verdict.culprits, verdict.confidence) == ((0, 1), confidence)


def test_ranks_that_were_killed_at_once_after_another_had_ended_may_have_been_cleared_away() -> None:
    """Caught half-way, with one of the node still alive: of several that were swept no more are named than before."""
    killed = [ended(rank, 5 + rank / 500, exit_signal=9) for rank in (0, 1)]
    verdict = judge(evidence(*killed, ended(2, 4.9, exit_code=1), Rank(3, loop(world(4), 3), 5))).verdicts[0]
    assert verdict.culprits == (0,), verdict.summary


def test_of_ranks_that_were_killed_at_once_one_is_named_where_nobody_of_their_node_lives() -> None:
    """So does a launcher that clears away: the first is the cause."""
    killed = [ended(rank, 5 + rank / 500, exit_signal=9) for rank in (0, 1)]
    verdict = judge(evidence(*killed, Rank(2, loop(world(3), 2), 5, host="node1"))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (0,)), verdict.summary
