"""A node that has the fleet's key and is broken, of a later version or taken over costs the others nothing."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.node_summary import NodeSummary, RankDigest, Run, judge_nodes
from stallwatch.diagnosis.verdicts import Judgement
from stallwatch.fleet.exchange import Seen, Wish, exchange
from stallwatch.fleet.member import Member
from stallwatch.fleet.node_word import NodeWord, believed, encode_word
from stallwatch.fleet.place import Board, Key
from stallwatch.fleet.position import Local
from stallwatch.fleet.seal import seal
from stallwatch.fleet.verdict import judge_job
from stallwatch.model.incident import OutputTold, Told
from stallwatch.model.summary import Pending, RankSummary
from tests.chaos.fleet import SECRET
from tests.chaos.fleet_story import scene, word_of
from tests.unit.fleet.memory_place import MemoryPlace

KEY = Key("train-0a1b2c3d", 1)
NODES, CULPRIT = 3, 3  # two ranks a node


def fleet(*words: NodeWord) -> dict[str, bytes]:
    return {one.node: seal(encode_word(one), SECRET, "summary", KEY, one.node) for one in words}


def _with_summaries(word: NodeWord, change: Callable[[RankSummary], RankSummary]) -> NodeWord:
    ranks = tuple(replace(one, summary=change(one.summary)) for one in word.summary.ranks)
    return replace(word, summary=replace(word.summary, ranks=ranks))


def _streams(**changes: Any) -> Callable[[RankSummary], RankSummary]:
    return lambda one: replace(one, streams=tuple(replace(stream, **changes) for stream in one.streams))


def _pending(**changes: Any) -> Callable[[RankSummary], RankSummary]:
    return lambda one: replace(one, pending=(replace(Pending(1, 0, 0, 0, 9), **changes),))


BROKEN: dict[str, Callable[[NodeWord], NodeWord]] = {
    "members without end": lambda w: replace(w, summary=replace(w.summary, members=((Run(0, 10**12, 1),),) * 8)),
    "members that do not go on": lambda w: replace(w, summary=replace(w.summary, members=((Run(0, 8, 0),),) * 8)),
    "members of another table": lambda w: _with_summaries(w, _streams(ranks=(-99,))),
    "a world of any size": lambda w: replace(w, summary=replace(w.summary, world_size=10**12)),
    "a stream that is none": lambda w: _with_summaries(w, _pending(stream=77)),
    "a call that is none": lambda w: _with_summaries(w, _streams(calls=b"\x07\x01" * 9, first_seq=1)),
    "half a number": lambda w: _with_summaries(w, _streams(calls=b"\x00\x00\x00", first_seq=9)),
    "a number before all": lambda w: _with_summaries(w, _streams(first_seq=-(10**9), completed=10**18)),
    "a time before all": lambda w: _with_summaries(w, lambda one: replace(one, captured_at_ns=-(2**62))),
    "ranks of no job": lambda w: replace(
        w, ranks=(-1, 10**9), summary=replace(w.summary, ranks=tuple(_moved(one, -1) for one in w.summary.ranks))
    ),
}


def _moved(digest: RankDigest, rank: int) -> RankDigest:
    return replace(digest, summary=replace(digest.summary, rank=rank), activity=replace(digest.activity, rank=rank))


@pytest.mark.parametrize("how", BROKEN)
def test_what_one_node_says_and_cannot_be_costs_no_other_nodes_word(how: str) -> None:
    words = [word_of(NODES, CULPRIT, "sleeps", node) for node in range(NODES)]
    broken = BROKEN[how](words[2])
    job = judge_job(believed(fleet(*words[:2], broken), SECRET, KEY), 6)
    assert job is not None and job.nodes >= 2
    verdict = job.report.verdicts[0]
    assert set(verdict.culprits) <= {CULPRIT}
    assert all(rank in range(6) for rank in verdict.culprits)


def test_a_name_of_a_node_that_somebody_made_up_fills_no_verdict() -> None:
    words = [word_of(NODES, CULPRIT, "sleeps", node) for node in range(NODES)]
    there = fleet(*words) | {f"{number}" + "x" * 100_000: b"rubbish" for number in range(20)}
    job = judge_job(believed(there, SECRET, KEY), 6)
    assert job is not None and job.nodes == NODES
    assert sum(map(len, job.report.caveats)) < 4_000


def test_what_cannot_be_judged_beside_the_others_is_left_out_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(summaries: list[NodeSummary]) -> Judgement:
        if len(summaries) > 1 and any(one.ranks[0].summary.rank == 4 for one in summaries):
            raise ZeroDivisionError
        return judge_nodes(summaries)

    monkeypatch.setattr("stallwatch.fleet.verdict.judge_nodes", picky)
    words = (word_of(NODES, CULPRIT, "sleeps", node) for node in range(NODES))
    job = judge_job(believed(fleet(*words), SECRET, KEY), 6)
    assert job is not None and job.nodes == NODES - 1
    assert "what node2 says is not used: it cannot be judged" in job.report.caveats
    assert job.report.verdicts[0].culprits == (CULPRIT,)


def test_what_a_later_version_has_told_is_told_though_it_knows_more_steps() -> None:
    place, steps = MemoryPlace(lambda: 0.0), ("told", "reminded")
    later = {"outputs": {"slack": {"steps": steps, "verdict": "not_entered 3", "thread": "7", "more": 1}}, "more": 2}
    key = Key("train-0a1b2c3d", place.join("train-0a1b2c3d", "node0"))
    place.claim(key, "node0")
    place.mark(key, 1, "told", seal(msgspec.msgpack.encode(later), SECRET, "told", key, ""))
    seen = exchange(place, SECRET, Wish(key.job, "node1", key.ordinal))
    assert seen.told == Told({"slack": OutputTold(("told",), "not_entered 3", "7")})


@pytest.mark.parametrize("rubbish", [b"\xc1", msgspec.msgpack.encode({"outputs": {"slack": {"steps": 3}}})])
def test_what_was_told_and_cannot_be_read_is_said(rubbish: bytes) -> None:
    place = MemoryPlace(lambda: 0.0)
    key = Key("train-0a1b2c3d", place.join("train-0a1b2c3d", "node0"))
    place.claim(key, "node0")
    place.mark(key, 1, "told", seal(rubbish, SECRET, "told", key, ""))
    seen = exchange(place, SECRET, Wish(key.job, "node1", key.ordinal))
    assert seen.told is None and "another form" in seen.caveat


def test_a_verdict_that_a_later_version_put_and_this_one_cannot_read_is_asked_for_once() -> None:
    report, summary = scene(NODES, CULPRIT, "sleeps")[0]
    local = Local("a-1", KEY.job, 6, (0, 1), 1, report, summary, False, Told())
    member, second = Member("node0", 0), 1_000_000_000
    seen = Seen(1, Board(holder="node1", generation=1, report_revision=7), report=b'{"of": "another form"}')
    wish = member.wish(second, local)
    assert wish is not None and wish.known_report == 0
    member.heard(second, second, wish, seen, None, 1)
    again = member.wish(3 * second, local)
    assert again is not None and again.known_report == 7
