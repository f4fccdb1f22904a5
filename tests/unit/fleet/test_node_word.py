"""Of what nodes say, what is signed, readable and about their own ranks is believed."""

import msgspec

from stallwatch.fleet.node_word import NodeWord, believed, encode_word
from stallwatch.fleet.place import Key
from stallwatch.fleet.seal import seal
from stallwatch.fleet.verdict import Home, judge_job
from stallwatch.model.summary import SCHEMA_VERSION
from tests.chaos.fleet import SECRET
from tests.chaos.fleet_story import Fault, word_of

KEY = Key("train-0a1b2c3d", 1)
NODES, CULPRIT = 3, 3  # two ranks a node


def word(node: int, fault: Fault = "sleeps") -> NodeWord:
    return word_of(NODES, CULPRIT, fault, node)


def sealed(said: NodeWord, name: str | None = None) -> bytes:
    return seal(encode_word(said), SECRET, "summary", KEY, name or said.node)


def fleet(*words: NodeWord) -> dict[str, bytes]:
    return {said.node: sealed(said) for said in words}


def test_all_nodes_together_name_the_culprit_and_its_node() -> None:
    job = judge_job(believed(fleet(*map(word, range(NODES))), SECRET, KEY), 6)
    assert job is not None
    verdict = job.report.verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (3,), "likely")
    assert verdict.culprit_processes[0].host == "node1"
    assert (job.nodes, job.ranks) == (3, 6)


def test_the_order_of_nodes_says_nothing() -> None:
    words = [word(node) for node in range(NODES)]
    one = judge_job(believed(fleet(*words), SECRET, KEY), 6)
    other = judge_job(believed(fleet(*words[::-1]), SECRET, KEY), 6)
    assert one == other


def test_a_node_that_has_said_nothing_is_named_by_its_ranks_and_not_accused() -> None:
    job = judge_job(believed(fleet(word(0), word(2)), SECRET, KEY), 6)
    assert job is not None
    verdict = job.report.verdicts[0]
    assert not set(verdict.culprits) & {2, 3}
    assert "ranks 2-3" in verdict.missing[0]
    assert not job.report.evidence_complete


def test_a_node_from_which_nothing_comes_any_more_is_named_and_where_nothing_is_proved_looked_at() -> None:
    others = fleet(*(word(node, "killed") for node in (0, 2)))
    homes = {rank: Home(f"node{rank // 2}", is_silent=True) for rank in range(6)}
    job = judge_job(believed(others, SECRET, KEY), 6, lambda: homes)
    assert job is not None
    verdict = job.report.verdicts[0]
    assert verdict.missing[0].startswith("what node1 (ranks 2-3) sees: nothing comes from there any more")
    assert (not verdict.traits.accuses) == ("Look at node1" in verdict.next_steps[0])
    assert (not verdict.traits.accuses) == ("Nothing comes any more from node1" in verdict.summary)
    assert not set(verdict.culprits) & {0, 1, 4, 5}
    assert job.silent == (() if verdict.traits.accuses else ("node1",))
    assert not job.is_whole
    unknown = judge_job(believed(others, SECRET, KEY), 8, lambda: homes)
    assert unknown is not None
    assert "ranks 6-7" in unknown.report.verdicts[0].missing[1]


def test_a_node_whose_daemon_is_there_and_finds_nothing_is_not_said_to_be_silent() -> None:
    homes = {rank: Home(f"node{rank // 2}", is_silent=False) for rank in range(6)}
    job = judge_job(believed(fleet(word(0), word(2)), SECRET, KEY), 6, lambda: homes)
    assert job is not None
    assert job.silent == ()
    assert "its daemon is there" in job.report.verdicts[0].missing[0]
    assert "Nothing comes" not in job.report.verdicts[0].summary


def test_the_job_is_safe_to_kill_when_every_node_has_said_that_nothing_more_comes() -> None:
    words = [msgspec.structs.replace(word(node), complete=True) for node in range(NODES)]
    whole = judge_job(believed(fleet(*words), SECRET, KEY), 6)
    assert whole is not None and whole.report.evidence_complete
    part = judge_job(believed(fleet(*words[:2], word(2)), SECRET, KEY), 6)
    assert part is not None and not part.report.evidence_complete


def test_a_rank_that_two_nodes_claim_is_unknown() -> None:
    liar = msgspec.structs.replace(word(2), ranks=(3, 4, 5))
    found = believed(fleet(word(0), word(1), liar), SECRET, KEY)
    assert found.unknown == (3,)
    assert all(3 not in said.ranks for said in found.words)
    assert all(digest.summary.rank != 3 for said in found.words for digest in said.summary.ranks)
    assert "rank 3" in found.caveats[0]
    job = judge_job(found, 6)
    assert job is not None and 3 not in job.report.verdicts[0].culprits


def test_what_a_node_says_of_ranks_that_are_not_its_own_is_dropped() -> None:
    theirs = word(1).summary.ranks
    meddler = msgspec.structs.replace(
        word(0), summary=msgspec.structs.replace(word(0).summary, ranks=(*word(0).summary.ranks, *theirs))
    )
    found = believed(fleet(meddler), SECRET, KEY)
    assert [digest.summary.rank for digest in found.words[0].summary.ranks] == [0, 1]


def test_what_stands_under_another_name_is_not_used() -> None:
    found = believed({"node2": sealed(word(1))}, SECRET, KEY)
    assert not found.words
    assert "node node2" in found.caveats[0] and "signature" in found.caveats[0]


def test_a_summary_of_a_later_version_says_what_to_update() -> None:
    later = msgspec.structs.replace(
        word(0), summary=msgspec.structs.replace(word(0).summary, schema_version=SCHEMA_VERSION + 1)
    )
    found = believed(fleet(later, word(1)), SECRET, KEY)
    assert [said.node for said in found.words] == ["node1"]
    assert "update" in found.caveats[0]


def test_nodes_of_another_release_are_named() -> None:
    words = [msgspec.structs.replace(word(node), tool_version="0.0.9") for node in range(NODES)]
    job = judge_job(believed(fleet(*words), SECRET, KEY), 6)
    assert job is not None and any("0.0.9" in caveat for caveat in job.report.caveats)


def test_where_nobody_said_anything_there_is_no_verdict() -> None:
    assert judge_job(believed({}, SECRET, KEY), 6) is None
