"""Verdicts from what happened to processes, which come before the structure of waits."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace as struct_replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import ProcessLook, RankEvidence, ThreadState
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 6)
CLOSED = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 94, in step',
    "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:18849. A remote worker crashed.",
)


def _waiting(*ranks: int) -> list[Rank]:
    return [Rank(r, (*STEPS, STEPS[0]), len(STEPS)) for r in ranks]


def test_a_killed_rank_explains_the_waits() -> None:
    dead = Rank(2, dumped=False, state="Z", exit_signal=9)
    verdict = judge(evidence(*_waiting(0, 1, 3), dead)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", (2,), "certain")


def _stepped_at(rank: RankEvidence, seconds: float) -> RankEvidence:
    return struct_replace(rank, heartbeat=(heartbeat(rank=rank.rank, last_step_ns=int(seconds * SECOND_NS)),))


@pytest.mark.parametrize(
    ("code", "seconds", "cause", "culprits"),
    [(0, 14, "not_entered", (0,)), (0, 11, "rank_exited", (3,)), (1, 14, "rank_exited", (3,))],
    ids=["they went on", "they may have run ahead", "it failed"],
)
def test_who_left_in_order_and_was_gone_on_without_is_not_waited_for(
    code: int, seconds: float, cause: str, culprits: tuple[int, ...]
) -> None:
    """A world that shrinks in its processes: a machine is taken back, the others meet anew, and later one is late. gloo
    writes no members of groups down."""
    left = Rank(3, dumped=False, state="Z", exit_code=code, ended_ns=10 * SECOND_NS)
    late = Rank(0, STEPS, len(STEPS), SLEEPS)
    told = evidence(late, *_waiting(1, 2), left)
    ranks = [_stepped_at(rank, seconds) if rank.rank < 3 else rank for rank in told.ranks]
    verdict = judge(struct_replace(told, ranks=tuple(ranks))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)


@pytest.mark.parametrize(
    ("went_on", "cause", "culprits"),
    [((1, 2), "not_entered", (0,)), ((1,), "rank_exited", (3,)), ((), "rank_exited", (3,))],
)
def test_without_a_hook_detection_tells_who_went_on_after_somebody_left(
    went_on: tuple[int, ...], cause: str, culprits: tuple[int, ...]
) -> None:
    left = Rank(3, dumped=False, state="Z", exit_code=0, ended_ns=10 * SECOND_NS)
    told = evidence(Rank(0, STEPS, len(STEPS), SLEEPS), *_waiting(1, 2), left)
    verdict = judge(struct_replace(told, went_on=went_on)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)


def test_who_left_in_order_is_waited_for_where_nobody_else_is() -> None:
    """Local SGD: the others step by themselves until they average."""
    left = Rank(3, dumped=False, state="Z", exit_code=0, ended_ns=10 * SECOND_NS)
    told = evidence(*_waiting(0, 1, 2), left)
    ranks = [_stepped_at(rank, 14) if rank.rank < 3 else rank for rank in told.ranks]
    verdict = judge(struct_replace(told, ranks=tuple(ranks))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (3,))


def test_peers_that_died_of_it_are_victims() -> None:
    dead = Rank(2, dumped=False, state="Z", exit_signal=9)
    victims = [Rank(r, dumped=False, state="Z", exit_code=1, log=CLOSED) for r in (0, 1, 3)]
    verdict = judge(evidence(*victims, dead)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def _raised(rank: int, *said: str) -> Rank:
    traceback = ("Traceback (most recent call last):", '  File "/srv/job/train.py", line 12, in save')
    log = [line for text in said for line in (*traceback, text, "", "During handling of the above exception, another "
           "exception occurred:", "")][:-3]  # fmt: skip
    return Rank(rank, dumped=False, state="Z", exit_code=1, log=tuple(log))


@pytest.mark.parametrize(
    ("said", "does"),
    [
        (("OSError: [Errno 28] No space left on device",), "df -h"),
        (("RuntimeError: basic_ios::clear: iostream error",
          "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), "df -h"),
        (("KeyError: 'y'",), "look for the sample"),
    ],
)  # fmt: skip
def test_a_death_of_an_exception_is_told_with_its_line_and_what_mends_it(said: tuple[str, ...], does: str) -> None:
    """As `analyze` of the log alone tells it."""
    later = ("an epoch more",) * 20  # their lines stand at other places
    victims = [Rank(r, dumped=False, state="Z", exit_code=1, log=(*later, *CLOSED)) for r in (1, 2, 3)]
    verdict = judge(evidence(_raised(0, *said), *victims)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (0,))
    assert "/srv/job/train.py:12 in save" in verdict.summary
    assert does in verdict.next_steps[0]


def test_of_equal_ends_the_first_on_one_clock_counts() -> None:
    ends = {0: 30, 1: 10, 2: 20}
    ranks = [Rank(r, dumped=False, state="Z", exit_signal=11, ended_ns=at) for r, at in ends.items()]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (1,)


def test_who_was_cleared_away_after_a_victim_had_ended_is_no_cause() -> None:
    """Rank 1 timed out waiting for one that still lived; its agent then ended the others, and nobody saw how."""
    timed_out = Rank(1, dumped=False, state="Z", exit_code=1, log=CLOSED, ended_ns=SECOND_NS)
    cleared = [Rank(r, dumped=False, state="X", ended_ns=SECOND_NS * 5 // 2) for r in (0, 2, 3)]
    verdict = judge(evidence(timed_out, *cleared)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", ())
    at_once = [Rank(r, dumped=False, state="X", ended_ns=SECOND_NS * 11 // 10) for r in (0, 3)]
    first = Rank(2, dumped=False, state="X", ended_ns=SECOND_NS * 9 // 10)
    verdict = judge(evidence(timed_out, first, *at_once)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def test_a_crash_of_which_all_blame_a_peer_that_lived_is_told_without_a_name() -> None:
    """Rank 2 destroyed its groups and went on; the launcher ended it once the others had died of their connections."""
    victims = [Rank(rank, dumped=False, state="Z", exit_code=1, log=CLOSED, ended_ns=SECOND_NS) for rank in (0, 1, 3)]
    cleared = Rank(2, dumped=False, state="X", exit_signal=15, ended_ns=SECOND_NS * 11 // 10)
    told = judge(evidence(*victims, cleared)).verdicts[0]
    assert (told.cause, told.culprits) == ("rank_exited", ())
    assert "ranks 0-1,3 lost the connection" in told.summary
    assert "rank 2 still lived then" in told.summary


def test_who_is_ended_by_sigterm_after_a_victim_is_cleared_away_however_soon() -> None:
    """A launcher looks at its ranks ten times a second, and ends the others at once."""
    lost = Rank(3, dumped=False, state="X", exit_code=1, log=CLOSED, ended_ns=SECOND_NS)
    swept = Rank(1, dumped=False, state="X", exit_signal=15, ended_ns=SECOND_NS * 5 // 4)
    unseen = [Rank(r, dumped=False, state="X", ended_ns=SECOND_NS * 4 // 3) for r in (0, 2)]
    verdict = judge(evidence(lost, swept, *unseen)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", ())
    before = dataclasses.replace(swept, ended_ns=SECOND_NS * 3 // 4)
    verdict = judge(evidence(lost, before, *unseen)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (1,))


def _broke(rank: int, elements: int, error: str) -> tuple[str, ...]:
    says = f"[rank{rank}]:[E1129 11:14:47.692163219 ProcessGroupNCCL.cpp"
    return (
        f"{says}:612] [Rank {rank}] Collective WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn={elements}, "
        f"NumelOut={elements}, Timeout(ms)=600000) raised the following async exception: NCCL error: {error}",
        f"{says}:2303] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: "
        "81 PG status: last enqueued work: 81, last completed work: 80",
    )


def test_ranks_that_end_of_a_collective_of_different_sizes_are_judged_by_what_they_called() -> None:
    """NCCL over sockets refuses a message that is too long, and the communicators of all break."""
    truncated = (
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/job/train.py", line 90, in step',
        "[rank3]:     dist.all_reduce(grad)",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3780, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.28.9",
        "[rank3]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "[rank3]: Last error:",
        "[rank3]: NET/Socket : peer 10.0.0.2<34366> message truncated : receiving 1048576 bytes instead of 65536.",
    )
    broke = (
        *_broke(3, 64, "invalid usage"),
        *(line for rank in (2, 0, 1) for line in _broke(rank, 4194304, "remote process exited or there was an error")),
    )
    refused = Rank(3, dumped=False, state="X", exit_code=1, log=(*truncated, *broke), ended_ns=SECOND_NS)
    swept = [
        Rank(r, dumped=False, state="X", exit_signal=15, log=(*truncated, *broke), ended_ns=SECOND_NS * 5 // 4)
        for r in range(3)
    ]
    verdict = judge(evidence(*swept, refused)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (3,))
    alone = dataclasses.replace(refused, log=truncated)
    verdict = judge(evidence(*(dataclasses.replace(one, log=truncated) for one in swept), alone)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())
    assert "1048576 bytes in a collective where it expected 65536, and was aborted by NCCL" in verdict.summary
    # The launcher has not ended the last one yet, who waits for a peer: that peer is a victim.
    (waits,) = _waiting(2)
    verdict = judge(evidence(*(dataclasses.replace(one, log=truncated) for one in swept[:2]), waits, alone)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())


TIMED_OUT = ("RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 25000ms for recv operation",)


@pytest.mark.parametrize(("seconds", "cause"), [(1.1, "not_entered"), (0.9, "rank_exited")])
def test_who_was_cleared_away_when_the_others_had_waited_in_vain_is_the_one_that_did_not_enter(
    seconds: float, cause: str
) -> None:
    ended: dict[str, Any] = {"dumped": True, "state": "X"}
    waited = [
        dataclasses.replace(w, **ended, exit_code=1, log=TIMED_OUT, ended_ns=SECOND_NS) for w in _waiting(0, 1, 2)
    ]
    cleared = Rank(3, STEPS, len(STEPS), SLEEPS, state="X", exit_signal=15, ended_ns=int(seconds * SECOND_NS))
    verdict = judge(evidence(*waited, cleared)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, (3,))
    assert not any("py-spy" in step for step in verdict.next_steps)


def test_all_ended_well_is_healthy() -> None:
    ranks = [Rank(r, dumped=False, state="Z", exit_code=0) for r in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "healthy"


def test_only_victims_accuse_nobody() -> None:
    ranks = [Rank(r, dumped=False, state="Z", exit_code=1, log=CLOSED) for r in range(2)]
    verdict = judge(evidence(*ranks, world_size=4)).verdicts[0]
    assert verdict.culprits == ()
    assert verdict.cause == "undecided"


def test_a_stopped_process_comes_before_what_it_has_not_entered() -> None:
    stopped = Rank(3, dumped=False, state="T", wchan="do_signal_stop")
    verdict = judge(evidence(*_waiting(0, 1, 2), stopped)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("process_stopped", (3,))


def _ran(look: ProcessLook, ticks: int) -> ProcessLook:
    assert look.pid is not None
    return struct_replace(look, threads=(ThreadState(look.pid, "python", "T", ticks, look.wchan),))


def test_who_is_stopped_and_goes_on_by_turns_is_not_held() -> None:
    """cpulimit; a scheduler that lets jobs share a node by turns."""
    held = Rank(3, STEPS, state="T", wchan="do_signal_stop", frames=SLEEPS).evidence()
    held = struct_replace(held, processes=tuple(_ran(one, 100) for one in held.processes))
    runs = struct_replace(held, processes=tuple(_ran(one, 100 * one.look) for one in held.processes))
    ranks = [rank.evidence() for rank in _waiting(0, 1, 2)]
    causes = [
        judge(struct_replace(evidence(world_size=4), ranks=(*ranks, last))).verdicts[0].cause for last in (held, runs)
    ]
    assert causes[0] == "process_stopped"
    assert causes[1] in ("waiting", "healthy")


def test_what_follows_from_the_first_fact_is_listed_with_the_reason() -> None:
    stopped = Rank(3, STEPS, state="T", wchan="do_signal_stop", frames=SLEEPS)
    verdict = judge(evidence(*_waiting(0, 1, 2), stopped)).verdicts[0]
    assert verdict.cause == "process_stopped"
    assert [item.why for item in verdict.rejected if item.cause == "not_entered"] == [
        "true of rank 3 as well, and follows from process_stopped"
    ]


@pytest.mark.parametrize(("code", "first"), [(137, 2), (143, 3)])
def test_a_shell_in_between_tells_a_signal_by_an_exit_code(code: int, first: int) -> None:
    """137 is a SIGKILL, which nobody dies of by consequence; 143 is the launcher's SIGTERM after another's failure."""
    live = [Rank(r, (*STEPS, STEPS[0]), len(STEPS)) for r in (0, 1)]
    dead = [Rank(2, STEPS, exit_code=code, state="Z"), Rank(3, STEPS, exit_code=1, state="Z")]
    verdict = judge(evidence(*live, *dead)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (first,))


def test_clocks_of_two_nodes_do_not_order_deaths() -> None:
    ends = [
        Rank(0, dumped=False, state="Z", exit_signal=11, ended_ns=30, host="a"),
        Rank(1, dumped=False, state="Z", exit_signal=11, ended_ns=10, host="b"),
    ]
    assert judge(evidence(*ends)).verdicts[0].culprits == (0, 1)


RAISED = ("Traceback (most recent call last):", '  File "/srv/job/train.py", line 9, in step', "ValueError: bad shard")


@pytest.mark.parametrize(
    ("dead", "confidence"),
    [
        ([Rank(3, STEPS, exit_code=1, state="Z")], "certain"),
        ([Rank(3, STEPS, exit_code=1, state="Z", log=RAISED)], "certain"),
        ([Rank(r, STEPS, exit_code=1, state="Z", log=RAISED) for r in (2, 3)], "likely"),
    ],
    ids=[
        "alone",
        "alone, with its own exception",
        "two with exceptions of their own",
    ],
)
def test_an_exit_code_alone_is_certain_of_one_rank_only(dead: list[Rank], confidence: str) -> None:
    live = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), frames=SLEEPS) for r in range(4 - len(dead))]
    verdict = judge(evidence(*live, *dead)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", tuple(rank.rank for rank in dead))
    assert verdict.confidence == confidence


@pytest.mark.parametrize(("apart_ns", "culprits"), [(None, ()), (0, ()), (SECOND_NS // 10, (2,))])
def test_of_two_that_ended_as_victims_do_and_of_which_no_log_tells_the_first_is_named(
    apart_ns: int | None, culprits: tuple[int, ...]
) -> None:
    live = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), frames=SLEEPS) for r in (0, 1)]
    times = (None, None) if apart_ns is None else (SECOND_NS, SECOND_NS + apart_ns)
    dead = [Rank(r, STEPS, exit_code=1, state="Z", ended_ns=at) for r, at in zip((2, 3), times, strict=True)]
    verdict = judge(evidence(*live, *dead)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_exited", culprits, "possible")


def unseen(rank: int) -> Rank:
    """Its folder is there; neither its process nor a stack or a dump of it could be read."""
    return Rank(rank, dumped=False, looks=0, log=("epoch 1",))


@pytest.mark.parametrize("code", [1, 134, 137])
def test_who_ended_as_a_victim_does_is_not_named_where_nobody_else_was_seen(code: int) -> None:
    gone = Rank(0, dumped=False, state="Z", exit_code=code, ended_ns=SECOND_NS)
    told = judge(evidence(gone, unseen(1), unseen(2))).verdicts[0]
    assert told.culprits == ()
    assert "rank 0" in told.summary.lower()
    seen = judge(evidence(gone, *_waiting(1, 2))).verdicts[0]
    assert (seen.cause, seen.culprits) == ("rank_exited", (0,))


def test_whose_exception_a_peer_s_end_raises_too_is_no_culprit_beside_one_who_failed_by_himself() -> None:
    """Of rank 1 the hook alone tells, and no more than the exception's name."""
    failed = Rank(2, dumped=False, state="Z", exit_code=1, log=('  File "/job/a.py", line 7, in load', "KeyError: 'x'"))
    told = evidence(Rank(0, dumped=False, state="Z", exit_code=1, log=CLOSED), unseen(1), failed)
    last = heartbeat(1, ended=True, exit_code=1, exception="RuntimeError")
    by_hook = struct_replace(told.ranks[1], log=(), log_events=(), heartbeat=(last,))
    verdict = judge(struct_replace(told, ranks=(told.ranks[0], by_hook, told.ranks[2]))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))
    silent = Rank(1, dumped=False, state="Z", exit_code=1, log=("epoch 1",))
    verdict = judge(evidence(Rank(0, dumped=False, state="Z", exit_code=1, log=CLOSED), silent, failed)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def test_ranks_that_all_ended_as_victims_do_at_times_that_nobody_knows_are_not_named() -> None:
    told = judge(evidence(*[Rank(rank, dumped=False, state="Z", exit_code=1) for rank in range(4)])).verdicts[0]
    assert (told.cause, told.culprits) == ("rank_exited", ())
    assert "ranks 0-3" in told.summary.lower()


def test_who_was_seen_before_a_rank_was_gone_is_not_known_to_live_on() -> None:
    """Each ended with exit code 0, and what told so of one, and the last look at the others, was lost."""
    others = [Rank(rank, dumped=False, state="R", looks=1) for rank in (1, 2, 3)]
    told = evidence(Rank(0, dumped=False, state="X"), *others)
    gone = struct_replace(told.ranks[0], processes=told.ranks[0].processes[1:])
    assert judge(struct_replace(told, ranks=(gone, *told.ranks[1:]))).verdicts[0].culprits == ()
