"""Recorders of other back ends and versions: how they tell that something has ended, and what follows if they do not"""

import functools
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.job.groups import GroupStream
from stallwatch.diagnosis.job.untold import untold_backends
from stallwatch.diagnosis.recorder.dumps import by_backend
from stallwatch.diagnosis.recorder.operations import completion_of
from stallwatch.diagnosis.recorder.transfer_counts import ends_in_name
from stallwatch.formats.tested import NEWEST_TESTED, newer_than_tested
from stallwatch.model.evidence import CodeFrame, Evidence, GroupStatus, Operation
from stallwatch.model.summary import ANY, RankSummary, Stream
from stallwatch.model.summary import Call as SummaryCall
from stallwatch.model.verdict import Verdict
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, from_any, loop, recorder, transfer, world
from tests.simulator.semantics import SEMANTICS, is_no_worse, rewritten

BUNDLES = sorted((Path(__file__).parents[3] / "bundles").iterdir())
W4 = world(4)
STEPS = loop(W4, 6)
SYNCHRONISES = (
    CodeFrame("synchronize", "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 1083),
    CodeFrame("step", "/srv/job/train.py", 20),
    CodeFrame("<module>", "/srv/job/train.py", 99),
)


def _first(told: Evidence) -> Verdict:
    return judge(told).verdicts[0]


def _waits(rank: int, calls: tuple[Call, ...] = STEPS) -> Rank:
    return Rank(rank, calls, len(calls) - 1, frames=SYNCHRONISES)


LOCKED = (CodeFrame("wait", "/usr/lib/python3.11/threading.py", 327), *SLEEPS[1:])
ABSENT = evidence(_waits(0), _waits(1), _waits(2), Rank(3, STEPS[:-1], frames=LOCKED, wchan="futex_do_wait"))


@functools.cache
def _loaded(bundle: Path) -> tuple[Evidence, Verdict]:
    told = load([bundle])
    return told, _first(told)


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_a_capture_as_another_recorder_would_have_written_it(bundle: Path, semantics: str) -> None:
    told, before = _loaded(bundle)
    after = _first(rewritten(told, semantics))
    assert is_no_worse(before, after, semantics), f"{before.summary} -> {after.summary}"


@pytest.mark.parametrize(
    ("semantics", "confidence"),
    [("states", "certain"), ("retired", "certain"), ("issued", "likely"), ("never", "likely")],
)
def test_who_has_not_issued_what_all_must_enter_is_absent_whatever_ends_are_told(
    semantics: str, confidence: str
) -> None:
    verdict = _first(rewritten(ABSENT, semantics))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (3,), confidence)
    assert any("have ended" in fact.fact for fact in verdict.because) == (confidence == "likely")


@pytest.mark.parametrize("semantics", ["issued", "never"])
def test_where_no_end_is_told_a_calm_job_is_neither_stuck_nor_healthy(semantics: str) -> None:
    calm = evidence(*(_waits(rank) for rank in range(4)))
    assert _first(calm).cause == "comm_stuck"
    assert _first(rewritten(calm, semantics)).cause == "undecided"


def test_who_stands_in_communication_may_wait_in_what_it_issued_and_is_not_accused() -> None:
    """Its last call lacks nobody, and whether it ended is not told: what it waits in, nothing tells."""
    inside = (CodeFrame("barrier", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9),)
    others = [_waits(rank) for rank in range(3)]
    standing = Rank(3, STEPS[:-1], frames=(*inside, *SYNCHRONISES[1:]), wchan="futex_do_wait")
    assert _first(rewritten(evidence(*others, standing), "issued")).culprits == ()
    busy = Rank(3, STEPS[:-1], frames=LOCKED, wchan="futex_do_wait")
    assert _first(rewritten(evidence(*others, busy), "issued")).culprits == (3,)


def test_of_whom_no_stack_tells_may_wait_in_what_it_issued_for_one_without_a_dump() -> None:
    """Rank 1 is seen elsewhere and left no dump; rank 3 may wait for it in the last call of all, or before that."""
    ends = {rank: (("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)) for rank in range(4)}
    hops = {rank: (*STEPS[:-1], transfer(W4, *ends[rank], batched=True, line=30)) for rank in range(4)}
    absent = Rank(1, (), frames=LOCKED, wchan="futex_do_wait", dumped=False)
    ranks = [_waits(0, (*hops[0], STEPS[-1])), absent, _waits(2, hops[2])]
    seen = Rank(3, hops[3], frames=LOCKED, wchan="futex_do_wait", looks=1)
    unseen = Rank(3, hops[3], state="R", wchan=None, looks=1)
    assert _first(rewritten(evidence(*ranks, unseen), "issued")).culprits == (1,)
    assert _first(rewritten(evidence(*ranks, seen), "issued")).culprits == (1, 3)


def test_of_whom_no_stack_tells_may_wait_in_messages_of_one_that_waits() -> None:
    """Of a ring rank 1 has not sent; rank 2 waits for it, and rank 3 for the messages of rank 2."""
    hops = [transfer(W4, ("send", (r + 1) % 4), ("recv", (r - 1) % 4), batched=True, line=30) for r in range(4)]
    calls = [(*STEPS, hop, *([STEPS[0]] if r == 0 else [])) for r, hop in enumerate(hops)]
    ranks = [Rank(r, own if r != 1 else STEPS, len(STEPS), state="R", wchan=None) for r, own in enumerate(calls)]
    verdict = _first(rewritten(evidence(*ranks), "issued"))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,)), verdict.summary


@pytest.mark.parametrize("semantics", ["issued", "never"])
@pytest.mark.parametrize("sent", [False, True])
def test_a_message_that_was_not_sent_has_not_arrived_whatever_ends_are_told(semantics: str, sent: bool) -> None:
    pair = world(2)
    steps = loop(pair, 6)
    sends = (transfer(pair, ("send", 0)),) if sent else ()
    receives = Rank(0, (*steps, transfer(pair, ("recv", 1))), len(steps), frames=IN_RECV, wchan="futex_do_wait")
    other = Rank(1, (*steps, *sends), frames=LOCKED, wchan="futex_do_wait")
    verdict = _first(rewritten(evidence(receives, other), semantics))
    expected = ("undecided", ()) if sent else ("not_entered", (1,))
    assert (verdict.cause, verdict.culprits) == expected


def test_the_first_call_of_a_job_may_hang_without_anything_ever_having_ended() -> None:
    first = evidence(*(Rank(rank, STEPS[:1], 0, frames=SYNCHRONISES) for rank in range(4)))
    assert _first(rewritten(first, "never")).cause == "comm_stuck"


def test_where_hosts_have_gone_on_to_a_message_what_nothing_says_has_ended_is_not_what_they_wait_in() -> None:
    pair = world(2)
    standing = evidence(
        *(Rank(rank, loop(pair, 1)[:1], 0, frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for rank in (0, 1))
    )
    assert _first(standing).cause == "p2p_unmatched"


def test_a_dump_taken_before_the_call_lacks_it_in_health() -> None:
    told = rewritten(ABSENT, "issued")
    ranks = tuple(msgspec.structs.replace(rank, recorders=rank.recorders[:1]) for rank in told.ranks)
    early = tuple(
        msgspec.structs.replace(rank, captured_at_ns=rank.captured_at_ns and rank.captured_at_ns - 60_000_000_000)
        for rank in ranks
    )
    assert _first(msgspec.structs.replace(told, ranks=ranks, looks=1)).culprits == (3,)
    assert _first(msgspec.structs.replace(told, ranks=early, looks=1)).culprits == ()


def test_one_retired_on_a_rank_while_another_has_not_even_issued_it_was_retired_at_issue() -> None:
    """The host of one rank is still inside a call: its entry alone is not retired, and nothing else tells of ends."""
    told = rewritten(ABSENT, "issued")
    inside = told.ranks[0]
    looks = tuple(
        msgspec.structs.replace(
            look, operations=(*look.operations[:-1], msgspec.structs.replace(look.operations[-1], retired=False))
        )
        for look in inside.recorders
    )
    ranks = (msgspec.structs.replace(inside, recorders=looks), *told.ranks[1:])
    verdict = _first(msgspec.structs.replace(told, ranks=ranks))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


def test_a_back_end_and_a_hook_on_its_group_write_one_call_twice() -> None:
    own = recorder(0, STEPS, len(STEPS) - 1, backend="gloo")
    hook = tuple(
        msgspec.structs.replace(entry, backend="c10d", name=entry.name.replace("_", ""), retired=True)
        for entry in own.operations
    )
    mixed: list[Operation] = [entry for pair in zip(hook, own.operations, strict=True) for entry in pair]
    (part,) = by_backend([msgspec.structs.replace(own, operations=tuple(mixed))])
    assert (part.backend, part.operations) == ("gloo", own.operations)
    assert completion_of([part]) == "retired"


def test_two_back_ends_may_share_a_ring() -> None:
    one, other = recorder(0, STEPS, backend="nccl2"), recorder(0, (Call(world(2), "barrier"),), backend="gloo")
    shared = msgspec.structs.replace(one, operations=(*one.operations, *other.operations))
    assert [(part.backend, len(part.operations)) for part in by_backend([shared])] == [("gloo", 1), ("nccl2", 12)]


@pytest.mark.parametrize(
    ("name", "ends"),
    [("send 0->1", (0, 1)), ("recv 2<-0", (0, 2)), ("recv 2<-?", (ANY, 2)), ("send", (ANY, ANY)), ("recv", (ANY, ANY))],
)
def test_an_end_that_is_not_told_may_be_anybody(name: str, ends: tuple[int, int]) -> None:
    assert ends_in_name(name) == ends


def test_a_receive_from_anybody_waits_for_who_does_not_wait_itself() -> None:
    """Rank 0 serves; 1 and 2 wait for its answer, 3 has never asked."""
    server = Rank(0, (Call(W4), transfer(W4, ("recv", 3))), 1, frames=SYNCHRONISES)
    clients = [Rank(r, (Call(W4), transfer(W4, ("recv", 0))), 1, frames=SYNCHRONISES) for r in (1, 2)]
    told = evidence(server, *clients, Rank(3, (Call(W4),), frames=SLEEPS))
    clients_named = evidence(server, *clients, Rank(3, (Call(W4),), frames=SLEEPS))
    assert _first(clients_named).culprits == (3,)
    verdict = _first(from_any(told))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (3,), "possible")


def test_where_all_receive_from_anybody_nobody_is_named() -> None:
    ranks = [Rank(r, (Call(W4), transfer(W4, ("recv", (r + 1) % 4))), 1, frames=SYNCHRONISES) for r in range(4)]
    verdict = _first(from_any(evidence(*ranks)))
    assert (verdict.cause, verdict.culprits) == ("undecided", ())


def test_a_circle_through_receives_from_anybody_names_nobody_where_one_outside_may_answer() -> None:
    """Ranks 0 to 2 wait for each other, if rank 3 owes nobody a message; it stands with rank 4 in a call that both
    entered and that does not end."""
    both = Group("1", "row", (3, 4), 1)
    received = transfer(W4, ("recv", 3))
    calls = [(received,), (received,), (Call(W4, "broadcast"),), (Call(both),), (Call(both),)]
    verdict = _first(from_any(evidence(*(Rank(r, own, 0, frames=SYNCHRONISES) for r, own in enumerate(calls)))))
    assert verdict.culprits == (), verdict.summary


@pytest.mark.parametrize(("version", "sure"), [("2.10", "certain"), ("2.11", "likely"), ("", "certain")])
def test_a_dump_newer_than_any_that_was_tried_is_not_believed_for_certain(version: str, sure: str) -> None:
    ranks = tuple(
        msgspec.structs.replace(
            rank, recorders=tuple(msgspec.structs.replace(look, version=version) for look in rank.recorders)
        )
        for rank in ABSENT.ranks
    )
    verdict = _first(msgspec.structs.replace(ABSENT, ranks=ranks))
    assert (verdict.cause, verdict.confidence) == ("not_entered", sure)
    assert any("newer than any" in fact.fact for fact in verdict.because) == (sure == "likely")


def test_versions_are_numbers() -> None:
    newest = NEWEST_TESTED["torch"]
    assert newer_than_tested("torch", f"{newest[0]}.{newest[1] + 1}.0a0+git")
    assert not newer_than_tested("torch", f"{newest[0]}.{newest[1]}.9+cu130")
    assert not newer_than_tested("NCCL", "2.9.1"), "9 is less than 28"
    assert not newer_than_tested("NCCL", "unknown")


def test_a_group_status_that_moved_tells_of_ends() -> None:
    entries = tuple(msgspec.structs.replace(e, retired=False) for e in recorder(0, STEPS, 0, backend="gloo").operations)
    silent = msgspec.structs.replace(recorder(0, STEPS, 0, backend="gloo"), operations=entries)
    assert completion_of([silent]) == "none_retired"
    told = msgspec.structs.replace(silent, status=(GroupStatus(0, 12, -1, 11),))
    assert completion_of([told]) == "retired"


def test_a_rank_that_has_called_little_does_not_show_that_a_recorder_tells() -> None:
    """It left the loop after two steps, for the barrier at the end; of the others each has begun its third."""
    rows = [Group(f"r{row}", f"tp{row}", (2 * row, 2 * row + 1), 1) for row in range(2)]
    columns = [Group(f"c{column}", f"dp{column}", (column, column + 2), 2) for column in range(2)]

    def calls(rank: int) -> tuple[Call, ...]:
        return Call(rows[rank // 2], line=10), Call(columns[rank % 2], line=11), Call(W4, line=12)

    ranks = [
        Rank(rank, (*calls(rank) * 2, *calls(rank)[:rows_entered]), 6 + entered_alone, frames=SYNCHRONISES, looks=1)
        for rank, rows_entered, entered_alone in ((0, 1, 0), (2, 2, 1), (3, 2, 1))
    ]
    left = Rank(1, (*calls(1) * 2, Call(W4, "barrier", line=200)), 6, frames=SYNCHRONISES, looks=1)
    told = evidence(*ranks, left, looks=1)
    never = rewritten(told, "never")
    assert {r.rank: completion_of(r.recorders) for r in never.ranks if r.rank < 2} == {0: "none_retired", 1: "none_yet"}
    assert is_no_worse(_first(told), _first(never), "never"), _first(never).summary


@pytest.mark.parametrize(("moves", "silent"), [((), True), ((1,), False)])
def test_a_side_thread_s_group_goes_on_between_two_dumps_of_a_look(moves: tuple[int, ...], silent: bool) -> None:
    """Ranks dump in turns: beside a training that stands, a keep-alive's next call was over on one rank and not yet in
    the dump of another, and a circle of groups was undecided for ever, since gloo was taken to tell of no end."""
    summaries, members = {}, {}
    for rank, calls in ((0, 36), (1, 37)):
        call = SummaryCall(0, "all_reduce", 1, "Float", "beside.py:19 keep_busy")
        stream = Stream("", "1", "gloo", (0, 1), 1, bytes(2 * calls), completed=calls, lane=1)
        summaries[rank] = RankSummary(
            rank, 2, ("gloo",), (call,), (stream,), advanced=False, advanced_lanes=moves, completion=("retired",)
        )
        members[rank] = GroupStream(summaries[rank], stream)
    assert (untold_backends(summaries, [members]) == {"gloo"}) is silent
