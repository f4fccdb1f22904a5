"""torch's RPC: who waits for an answer of another worker is not accused of staying away."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, ThreadStack
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Call, Rank, evidence, loop, world

_RPC = "/opt/venv/lib/python3.11/site-packages/torch/distributed/rpc/api.py"
_MODULE = CodeFrame("<module>", "/srv/job/train.py", 99)
_ASKS = (CodeFrame("rpc_sync", _RPC, 792), CodeFrame("run_trainer", "/srv/job/train.py", 27), _MODULE)
_SHUTS_DOWN = (CodeFrame("shutdown", _RPC, 382), CodeFrame("main", "/srv/job/train.py", 35), _MODULE)
# A worker runs what another one asked for: the frames of RPC are around it.
_RUNS = (CodeFrame("load", "/srv/job/train.py", 40), CodeFrame("_run_function", _RPC.replace("api", "internal"), 200))


def _judged(*frames: tuple[CodeFrame, ...]) -> Verdict:
    ranks = (
        Rank(rank, frames=stack, wchan="futex_do_wait" if stack in (_ASKS, _SHUTS_DOWN) else "hrtimer_nanosleep")
        for rank, stack in enumerate(frames)
    )
    return judge(evidence(*ranks)).verdicts[0]


def test_trainers_that_wait_for_their_server_are_not_named() -> None:
    """A batch-updating server answers all of them once each has asked; rank 3 has had fewer batches, and shuts down."""
    verdict = _judged(_SHUTS_DOWN, _ASKS, _ASKS, _SHUTS_DOWN)
    assert (verdict.cause, verdict.culprits, verdict.waiting) == ("undecided", (), "0,3")
    assert "ranks 1-2 wait for the answer of another worker (RPC) at /srv/job/train.py:27" in verdict.summary


def test_who_stands_in_what_another_worker_asked_for_is_named() -> None:
    verdict = _judged(_SHUTS_DOWN, _RUNS, _SHUTS_DOWN, _SHUTS_DOWN)
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_where_recorders_show_the_wait_who_asks_is_the_one_that_has_not_entered() -> None:
    steps = loop(world(4), 6)
    waits = [Rank(rank, (*steps, Call(world(4))), len(steps)) for rank in (0, 2, 3)]
    verdict = judge(evidence(*waits, Rank(1, steps, frames=_ASKS, wchan="futex_do_wait"))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_beside_one_that_stands_elsewhere_all_are_named() -> None:
    verdict = _judged(_SHUTS_DOWN, _ASKS, SLEEPS, _SHUTS_DOWN)
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1, 2))


_ASKS_ON = (_ASKS[0], CodeFrame("relay", "/srv/job/train.py", 50), _RUNS[1])


def _all_ask(*answering: tuple[CodeFrame, ...]) -> Verdict:
    """Four ranks whose first calls have not returned; the first of them carry out calls, too."""
    ranks = []
    for number in range(4):
        seen = Rank(number, frames=_ASKS, wchan="futex_do_wait").evidence()
        pool = [ThreadStack("", 50, False, False, frames, 50) for frames in answering[number : number + 1]]
        stacks = tuple(replace(one, threads=(*one.threads, *pool)) for one in seen.stacks)
        ranks.append(replace(seen, stacks=stacks))
    return judge(replace(evidence(), ranks=tuple(ranks), world_size=4)).verdicts[0]


def test_where_all_ask_and_who_carries_out_a_call_asks_on_all_wait_and_nobody_is_named() -> None:
    """Calls in a circle, one thread to answer with each; it stood for ever, told to nobody."""
    verdict = _all_ask(_ASKS_ON, _ASKS_ON, _ASKS_ON, _ASKS_ON)
    assert (verdict.cause, verdict.culprits, verdict.waiting) == ("undecided", (), "0-3")
    assert "no Python thread of theirs is seen at work on what was asked" in verdict.summary
    assert _all_ask().waiting == "0-3", "of workers that answer in C++, or not at all, nothing is seen"


def test_where_all_ask_and_a_thread_carries_out_a_call_no_rank_is_said_to_wait_in_vain() -> None:
    verdict = _all_ask(_ASKS_ON, _RUNS)
    assert (verdict.cause, verdict.waiting) == ("undecided", "")


_OF_A_THREAD = (CodeFrame("run", "/usr/lib/python3.11/threading.py", 982),)
_QUEUE = (
    CodeFrame("wait", "/usr/lib/python3.11/threading.py", 327),
    CodeFrame("get", "/usr/lib/python3.11/queue.py", 171),
)


@pytest.mark.parametrize(("inner", "waiting"), [((), ""), (_QUEUE, "0-3")])
def test_a_thread_of_the_job_at_work_may_answer_what_was_asked(inner: tuple[CodeFrame, ...], waiting: str) -> None:
    """`async_execution`: the call returns a future at once, and a thread of the job's own sets it. One without work
    answers nobody."""
    solves = (*inner, CodeFrame("solve", "/srv/job/train.py", 80), *_OF_A_THREAD)
    verdict = _all_ask(_ASKS_ON, solves)
    assert (verdict.cause, verdict.waiting) == ("undecided", waiting)


def test_who_asks_beside_one_that_does_not_is_no_circle() -> None:
    verdict = _judged(_ASKS, _ASKS, SLEEPS, _ASKS)
    assert (verdict.cause, verdict.waiting) == ("undecided", "")
