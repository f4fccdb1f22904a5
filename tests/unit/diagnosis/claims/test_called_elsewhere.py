"""Stacks alone: who stands in another collective than most."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, SourceBlock, SourceLine
from stallwatch.model.verdict import Verdict
from tests.builders.job import IN_RECV, SLEEPS, Rank, evidence

_C10D = IN_RECV[0].filename


def _inside(call: str, line: int) -> tuple[CodeFrame, ...]:
    return (CodeFrame(call, _C10D, 3000), CodeFrame("step", "/srv/job/train.py", line), SLEEPS[-1])


def _judged(*stacks: tuple[CodeFrame, ...], looks: int = 2, sources: tuple[SourceLine, ...] = ()) -> Verdict:
    ranks = [
        Rank(rank, dumped=False, frames=frames, wchan="futex_do_wait", backend="gloo", looks=looks)
        for rank, frames in enumerate(stacks)
    ]
    seen = evidence(*ranks)
    seen = replace(seen, looks=looks, ranks=tuple(replace(rank, sources=sources) for rank in seen.ranks))
    return judge(seen).verdicts[0]


REDUCES, GATHERS, REDUCES_LATER = _inside("all_reduce", 10), _inside("all_gather", 12), _inside("all_reduce", 20)


def test_who_stands_in_another_collective_is_named_as_a_guess() -> None:
    verdict = _judged(REDUCES, GATHERS, REDUCES, REDUCES)
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (1,), "possible")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.expected, verdict.mismatch.found) == ("all_reduce", "all_gather")
    assert verdict.waiting == "0,2-3"
    assert verdict.ends_by_itself == "first_use", "nobody is told at once"


def test_who_stands_at_another_line_is_named_too() -> None:
    verdict = _judged(REDUCES, REDUCES, REDUCES, REDUCES_LATER)
    assert (verdict.cause, verdict.culprits, verdict.mismatch) == ("collective_mismatch", (3,), None)
    assert "another operation" in verdict.summary


@pytest.mark.parametrize(
    "stacks",
    [
        (REDUCES, REDUCES, REDUCES, REDUCES),
        (REDUCES, REDUCES, GATHERS, GATHERS),
        (REDUCES, REDUCES, REDUCES, GATHERS, REDUCES_LATER),
        (_inside("recv", 10), _inside("recv", 10), _inside("send", 12)),
        (_inside("barrier", 10), _inside("barrier", 10), _inside("new_group", 12)),
    ],
)
def test_nobody_is_named_where_there_is_no_one_other_place(stacks: tuple[tuple[CodeFrame, ...], ...]) -> None:
    assert _judged(*stacks).culprits == ()


def test_in_what_others_wait_for_one_that_moves_is_told_by_their_stacks() -> None:
    """An engine that polls for requests, whose workers are in a broadcast: patience asks what it is."""
    waits = [
        Rank(rank, dumped=False, frames=_inside("broadcast", 10), wchan="futex_do_wait", backend="gloo").evidence()
        for rank in (1, 2, 3)
    ]
    polls = Rank(0, dumped=False, frames=SLEEPS, state="R", wchan="", backend="gloo").evidence()
    first, last = polls.stacks
    elsewhere = tuple(
        replace(thread, frames=(CodeFrame("next_request", "/srv/job/engine.py", 40), *thread.frames[1:]))
        for thread in last.threads
    )
    polls = replace(polls, stacks=(first, replace(last, threads=elsewhere)))
    verdict = judge(replace(evidence(world_size=4), looks=2, ranks=(polls, *waits))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.operation) == ("waiting", (0,), "broadcast")
    assert "ranks 1-3 wait in broadcast" in verdict.summary


def test_one_look_shows_no_standstill() -> None:
    assert _judged(REDUCES, GATHERS, REDUCES, REDUCES, looks=1).culprits == ()


_WAIT = (CodeFrame("exchange", "/srv/job/halo.py", 18), CodeFrame("train", "/srv/job/train.py", 25), SLEEPS[-1])
_LINE = SourceLine("/srv/job/halo.py", 18, "work.wait()", ())
_LOOP = SourceBlock("for", 17, "for work in dist.batch_isend_irecv(batch):")


@pytest.mark.parametrize(
    "line",
    [
        replace(_LINE, blocks=(_LOOP,)),
        replace(_LINE, text="dist.irecv(halo, behind).wait()"),
        replace(_LINE, given=("for work in works:", "works = [dist.isend(edge, 1), dist.irecv(halo, 1)]")),
    ],
    ids=["loop", "line", "given"],
)
@pytest.mark.parametrize("others", [REDUCES, _inside("broadcast", 10)])
def test_whom_all_others_wait_for_stands_in_a_message(line: SourceLine, others: tuple[CodeFrame, ...]) -> None:
    """One rank has a receive too many in a batch, or its peer has left a send out: who, the stacks do not tell."""
    verdict = _judged(others, others, others, _WAIT, sources=(line,))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (), "possible")
    assert "Look at rank 3's sends and receives at /srv/job/halo.py:18" in verdict.next_steps[0]
    assert verdict.ends_by_itself == "first_use", "under NCCL a pair connects at its first message"


def test_two_that_stand_in_messages_while_all_others_wait_for_both_may_be_its_two_ends() -> None:
    receives, sends = _inside("recv", 30), _inside("recv", 34)
    assert _judged(receives, sends, REDUCES, REDUCES).culprits == (0, 1)
    assert _judged(receives, sends, GATHERS, REDUCES).culprits == ()
    assert _judged(receives, sends, sends, REDUCES).culprits == ()


def test_two_that_wait_for_requests_of_a_ring_may_each_wait_for_one_that_has_gone_on() -> None:
    """Rank 2's ring makes a hop less: its neighbours stand in their requests, and neither's is the other's."""
    line = replace(_LINE, text="for work in dist.batch_isend_irecv(both): work.wait()")
    verdict = _judged(REDUCES, _WAIT, REDUCES, _WAIT, sources=(line,))
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ()), verdict.summary
    assert _judged(_WAIT, _WAIT, sources=(line,)).culprits == (0, 1), "of two each has the other alone"


@pytest.mark.parametrize(
    ("stacks", "given"),
    [
        ((REDUCES, REDUCES, REDUCES, _WAIT), ()),  # the line does not tell
        ((REDUCES, REDUCES, REDUCES, _WAIT), ("work = dist.all_reduce(loss, async_op=True)",)),
        ((REDUCES, REDUCES, REDUCES, _WAIT), ("work = dist.irecv(halo, 1)", "work = dist.broadcast(halo)")),
        ((REDUCES, REDUCES, GATHERS, _WAIT), ("work = dist.irecv(halo, 1)",)),  # and who differs besides
        ((_inside("barrier", 9), _inside("new_group", 9), REDUCES, _WAIT), ("work = dist.irecv(halo, 1)",)),
    ],
)
def test_a_message_is_told_only_where_it_is_known_and_all_others_stand_at_one_call(
    stacks: tuple[tuple[CodeFrame, ...], ...], given: tuple[str, ...]
) -> None:
    assert _judged(*stacks, sources=(replace(_LINE, given=given),)).cause != "p2p_unmatched"


_KEY = SourceLine("/srv/job/halo.py", 18, 'store.wait(["evaluated"], timedelta(hours=1))', ())


def test_who_waits_for_a_key_while_all_others_stand_in_one_collective_has_not_entered_it() -> None:
    verdict = _judged(REDUCES, REDUCES, REDUCES, _WAIT, sources=(_KEY,))
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (3,), "store")
    assert (verdict.confidence, verdict.waiting) == ("possible", "0-2")


@pytest.mark.parametrize(
    "stacks",
    [
        (REDUCES, REDUCES, _WAIT, _WAIT),  # as many wait for a key, perhaps of each other
        (REDUCES, GATHERS, REDUCES, _WAIT),
        (_inside("recv", 10), _inside("recv", 10), _inside("recv", 10), _WAIT),
        (_WAIT, _WAIT, _WAIT, REDUCES),
    ],
)
def test_who_waits_for_a_key_is_named_only_where_all_others_stand_in_one_collective(
    stacks: tuple[tuple[CodeFrame, ...], ...],
) -> None:
    assert _judged(*stacks, sources=(_KEY,)).culprits == ()


def _texts(mine: str, theirs: str) -> tuple[SourceLine, ...]:
    return (SourceLine("/srv/job/train.py", 20, mine, ()), SourceLine("/srv/job/train.py", 10, theirs, ()))


def test_one_operation_at_two_lines_with_other_groups_is_an_order_of_groups() -> None:
    texts = _texts("dist.all_reduce(counts, group=count_group)", "dist.all_reduce(losses, group=loss_group)")
    verdict = _judged(REDUCES, REDUCES, REDUCES, REDUCES_LATER, sources=texts)
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("group_order", (3,), "possible")
    assert "count_group" in verdict.because[0].fact
    assert "loss_group" in verdict.because[0].fact


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("dist.all_reduce(counts, group=self.group)", "dist.all_reduce(losses, group=self.group)"),
        ("dist.all_reduce(counts)", "dist.all_reduce(losses)"),
        ("dist.all_reduce(counts)", "dist.all_reduce("),
    ],
)
def test_where_the_lines_name_no_other_group_it_is_another_operation(mine: str, theirs: str) -> None:
    verdict = _judged(REDUCES, REDUCES, REDUCES, REDUCES_LATER, sources=_texts(mine, theirs))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (3,))
