"""A job that is ended as it stands and started anew at the same address has the same name on all nodes: nothing of the
job before is joined, told again or taken for its own."""

import pytest

from stallwatch.detectors.node_pace import NodePace, RankPace
from stallwatch.encoding import json_of
from stallwatch.fleet.exchange import Wish, exchange
from stallwatch.fleet.judge_child import JudgeQuestion, answer_to
from stallwatch.fleet.node_word import encode_word
from stallwatch.fleet.pace_seat import ORDINAL, PaceWish, exchange_pace
from stallwatch.fleet.pace_verdict import PaceVerdict, encode_pace
from stallwatch.fleet.place import DESERTED_SECONDS, LEFT_SECONDS, Key, Life
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.seal import seal
from stallwatch.fleet.verdict import JobVerdict
from stallwatch.model.incident import OutputTold, Told
from tests.chaos.fleet_story import word_of
from tests.unit.fleet.memory_place import MemoryPlace
from tests.unit.fleet.test_place import Hand

JOB = "127.0.0.1_29511-0229dddb"
SECRET = b"sixteen bytes or more"
SECOND_NS = 10**9


def test_where_nobody_waits_any_more_it_is_another() -> None:
    hand = Hand()
    memory = MemoryPlace(hand)
    memory.join(JOB, "node0", life=Life(60.0, begun=False))
    hand.seconds += LEFT_SECONDS + 1
    assert memory.join(JOB, "node0", life=Life(5.0, begun=False)) == 2


class _Nodes:
    """Nodes of a fleet whose place's clock, and whose own, are the test's."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.place = MemoryPlace(self.hand)

    def says(self, node: str, began: float, **more: object) -> object:
        """`began`: by the place's clock; each node's own is elsewhere."""
        up = 1e6 if node == "node0" else 5.0
        boot_ns = int((self.hand.seconds + up) * SECOND_NS)
        wish = Wish(JOB, node, began_ns=int((began + up) * SECOND_NS), begun=True, **more)  # type: ignore[arg-type]
        return exchange(self.place, SECRET, wish, since_boot_ns=lambda: boot_ns)


@pytest.mark.parametrize("after", [3.0, 40.0, DESERTED_SECONDS - 1.0, 3500.0])
@pytest.mark.parametrize("pasts", [(1, 1), (1, 0), (0, 0), (0, 1)])
@pytest.mark.parametrize("steps", [("told",), ("told", "ended"), ()])
def test_what_was_told_of_the_job_before_is_not_of_the_next(
    steps: tuple[str, ...], pasts: tuple[int, int], after: float
) -> None:
    """Whichever nodes remember it, whose daemons were started anew between, and whether its end was told."""
    nodes = _Nodes()
    first = nodes.says("node0", 500.0, claims=True)
    told = Told({"slack": OutputTold(steps, "not_entered 3", "7")}, f"{JOB}-1") if steps else None  # type: ignore[arg-type]
    nodes.says("node0", 500.0, ordinal=1, generation=1, told=told)
    nodes.says("node1", 503.0)
    nodes.hand.seconds += after  # ranks are killed, and others started at once
    began = nodes.hand.seconds - 1.5
    seen = [nodes.says(f"node{n}", began + n, past=pasts[n]) for n in (0, 1)]
    assert first.ordinal == 1  # type: ignore[attr-defined]
    assert [(one.ordinal, one.told) for one in seen] == [(2, None), (2, None)]  # type: ignore[attr-defined]


def test_who_is_slow_in_the_job_before_is_not_in_the_next() -> None:
    nodes = _Nodes()
    place, key = nodes.place, Key(JOB, ORDINAL)
    slow = seal(json_of(PaceVerdict((3,), stage="confirmed")), SECRET, "pace verdict", key, "")
    assert place.mark(key, place.claim(key, "node0"), "report", slow)
    nodes.hand.seconds += 60.0
    wish, now_ns = PaceWish(JOB, "node1", began_ns=SECOND_NS), 21 * SECOND_NS
    assert exchange_pace(place, SECRET, wish, lambda: now_ns).verdict == b""
    assert exchange_pace(place, SECRET, wish, lambda: now_ns + 60 * SECOND_NS).verdict, "of a job that began before it"


@pytest.mark.parametrize(("life_seconds", "silent"), [(20.0, ()), (500.0, ("node9",))])
def test_where_ranks_of_the_job_before_ran_nobody_is_missing(life_seconds: float, silent: tuple[str, ...]) -> None:
    """node9 had ranks 2 and 3 in the job before; it put its pace 60 s ago, and nothing since."""
    nodes = _Nodes()
    place, key = nodes.place, Key(JOB, 1)
    paced = encode_pace(NodePace(2, 0, (1,), tuple(RankPace(rank, (), (0,)) for rank in (2, 3)), 0.1, False, 0))
    place.put(Key(JOB, ORDINAL), "node9", seal(paced, SECRET, "pace", Key(JOB, ORDINAL), "node9"))
    nodes.hand.seconds += 60.0
    place.put(key, "node0", seal(encode_word(word_of(2, 1, "all_wait", 0)), SECRET, "summary", key, "node0"))
    question = JudgeQuestion(Settings("redis://h"), key, 4, began_ns=SECOND_NS)
    verdict = answer_to(question, place, SECRET, lambda: int((1 + life_seconds) * SECOND_NS))
    assert isinstance(verdict, JobVerdict)
    assert verdict.silent == silent
