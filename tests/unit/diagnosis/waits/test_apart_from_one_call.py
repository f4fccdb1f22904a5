"""Nothing is recorded: one rank stands in a native call of the job's own, all others in one call of torch's."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence, RankEvidence, SourceLine
from tests.builders.job import IN_RECV, SLEEPS, Rank

_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
Frames = tuple[CodeFrame, ...]
IN_C = (CodeFrame("decode", "/srv/job/codec.py", 31), *SLEEPS[-1:])


def in_call(function: str = "all_reduce", line: int = 10) -> Frames:
    return (CodeFrame(function, _TORCH, 3252), CodeFrame("step", "/srv/job/train.py", line), *SLEEPS[-1:])


def _rank(number: int, frames: Frames, text: str | None = None) -> RankEvidence:
    rank = Rank(number, frames=frames, backend="gloo", dumped=False, wchan="futex_do_wait").evidence()
    sources = () if text is None else (SourceLine(frames[0].filename, frames[0].line, text),)
    return replace(rank, sources=sources)


def _judged(*ranks: RankEvidence, world_size: int = 4) -> tuple[str, list[int], str]:
    told = Evidence(world_size=world_size, backend="gloo", ranks=ranks, nodes=(), caveats=(), looks=2)
    verdict = judge(told).verdicts[0]
    return verdict.cause, list(verdict.culprits), verdict.confidence


def test_one_in_a_native_call_has_not_entered_the_call_of_all_others() -> None:
    apart = _rank(2, IN_C, "codec.decode(frame)")
    assert _judged(*(_rank(r, in_call()) for r in (0, 1, 3)), apart) == ("not_entered", [2], "possible")


@pytest.mark.parametrize("text", ["work.wait()", None])
def test_who_may_wait_for_the_others_last_call_is_not_accused(text: str | None) -> None:
    apart = _rank(2, IN_C, text)
    assert _judged(*(_rank(r, in_call()) for r in (0, 1, 3)), apart)[1] == []


@pytest.mark.parametrize(
    "other", [in_call("all_gather"), in_call(line=50), IN_RECV], ids=["another call", "another line", "a transfer"]
)
def test_nobody_is_accused_where_the_others_are_not_in_one_call(other: Frames) -> None:
    apart = _rank(2, IN_C, "codec.decode(frame)")
    assert _judged(_rank(0, in_call()), _rank(1, in_call()), _rank(3, other), apart)[1] == []


def test_nobody_is_accused_where_a_rank_is_not_seen() -> None:
    apart = _rank(2, IN_C, "codec.decode(frame)")
    assert _judged(*(_rank(r, in_call()) for r in (0, 1, 3)), apart, world_size=5)[1] == []


def test_two_in_native_calls_may_wait_for_each_other() -> None:
    apart = (_rank(r, IN_C, "codec.decode(frame)") for r in (2, 3))
    assert _judged(_rank(0, in_call()), _rank(1, in_call()), *apart)[1] == []
