"""One rank dies; its peers die of that, or are ended by their launcher, in the second after it. Whoever looks sees some
of it: who was reaped before he came, of whom he is late, whose log is anybody's. Whatever he saw, no innocent is named,
and who died is where the evidence allows it."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import SHARED_LOG, Attempt, Evidence, RankEvidence
from stallwatch.model.verdict import Verdict
from tests.builders.clock import SECOND_NS
from tests.builders.job import Rank, evidence

DIED_AT = 5.0
CLOSED = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 94, in step',
    "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:18849. A remote worker crashed.",
)
RAISED = ("Traceback (most recent call last):", '  File "/srv/job/train.py", line 9, in load', "ValueError: bad shard")
DEATHS: dict[str, dict[str, int]] = {
    "killed": {"exit_signal": 9},
    "killed for memory": {"exit_signal": 9},
    "crashed": {"exit_signal": 11},
    "read what is not there": {"exit_signal": 7},
    "aborted": {"exit_signal": 6},
    "raised": {"exit_code": 1},
    "left": {"exit_code": 1},  # os._exit, sys.exit: without a word
    "left with a code of its own": {"exit_code": 3},
}
ITS_OWN = ("killed", "killed for memory", "crashed", "read what is not there", "left with a code of its own")
SLOWLY = ("killed", "killed for memory", "crashed", "read what is not there")


class Peer(NamedTuple):
    """What becomes of who loses its peer: after so many seconds it writes that it did, and ends of it; None: it waits
    on for others."""

    notices: float | None
    aborts: bool = False  # std::terminate; else by Python, with exit code 1
    teardown: float = 0.02


class Seen(NamedTuple):
    """What is known of one rank's end."""

    at_all: bool = True
    how: bool = True
    when: bool = True


class Scene(NamedTuple):
    died: str
    victim: int
    peers: tuple[Peer, ...]  # one of them stands for the victim, and is not used
    swept: float | None  # the launcher ends who is left
    sweeps_by: int
    looked: float
    late: float  # ends that come within so many seconds are seen at one moment
    seen: tuple[Seen, ...]
    logs: str
    slow: float = 0.0  # so long it frees what it held, its connections closed, before it is gone

    def ends(self, rank: int) -> tuple[float, dict[str, int], tuple[str, ...]]:
        """When it ends, after the death, how, and with which words."""
        if rank == self.victim:
            return self.slow, DEATHS[self.died], RAISED if self.died == "raised" else ()
        peer, own, sweep = self.peers[rank], self._own(rank), self._sweep()
        if sweep < own:
            said = peer.notices is not None and peer.notices <= sweep
            return sweep + rank / 1000, {"exit_signal": self.sweeps_by}, CLOSED if said else ()
        words = CLOSED if peer.notices is not None and peer.notices <= self.looked else ()
        return own, {"exit_signal": 6} if peer.aborts else {"exit_code": 1}, words

    def _own(self, rank: int) -> float:
        """When it ends by itself."""
        if rank == self.victim:
            return self.slow
        peer = self.peers[rank]
        return float("inf") if peer.notices is None else peer.notices + peer.teardown

    def _sweep(self) -> float:
        """The launcher sees the first end of all, which may be a peer's."""
        first = min(self._own(rank) for rank in range(len(self.peers)))
        return float("inf") if self.swept is None else first + self.swept

    def evidence(self) -> Evidence:
        ranks = [self._rank(rank) for rank in range(len(self.peers))]
        told = evidence(*ranks, looks=1)
        shared = (Attempt("log", 1, 0, True, SHARED_LOG),) if self.logs in ("anybody's", "marked") else ()
        return replace(told, ranks=tuple(self._known(replace(rank, attempts=shared)) for rank in told.ranks))

    def _rank(self, rank: int) -> Rank:
        after, how, words = self.ends(rank)
        log = ("epoch 1", *self._lines(rank, words)) if self.logs != "none" else ()
        if self.logs in ("anybody's", "marked"):
            of_all = [line for other in range(len(self.peers)) for line in self._lines(other, self.ends(other)[2])]
            log = ("epoch 1", *of_all)
        seen = self.seen[rank]
        if not seen.at_all:
            return Rank(rank, dumped=False, looks=0, log=log)
        if after > self.looked:
            return Rank(rank, dumped=False, looks=1, state="S", log=log)
        at = after if not self.late else -(-after // self.late) * self.late
        how = how if seen.how else {}
        known: dict[str, Any] = {"ended_ns": int((DIED_AT + at) * SECOND_NS) if seen.when else None, **how}
        return Rank(rank, dumped=False, looks=1, state="X", log=log, **known)

    def _lines(self, rank: int, words: tuple[str, ...]) -> list[str]:
        return [f"[rank{rank}]: {line}" if self.logs == "marked" else line for line in words]

    def _known(self, rank: RankEvidence) -> RankEvidence:
        kills = self.died == "killed for memory" and rank.rank == self.victim
        looks = tuple(replace(look, out_of_memory=kills) if look.exit_signal == 9 else look for look in rank.processes)
        return replace(rank, processes=looks)

    def verdict(self) -> Verdict:
        return judge(self.evidence()).verdicts[0]

    @property
    def is_told(self) -> bool:
        """Whether what was seen of the first death is that of nobody who dies of a peer, or is ended by a launcher."""
        if not self.seen[self.victim].how or not all(seen.at_all for seen in self.seen):
            return False
        if self.sweeps_by == 9:
            return False  # nor are others known not to have been killed before
        if self.slow and self.swept is not None and self.died == "killed":
            return False  # it may have been swept as the others were
        if self.died == "raised":
            return self.logs in ("own", "marked")
        others = [rank for rank in range(len(self.peers)) if rank != self.victim and self.ends(rank)[0] <= self.looked]
        if self.died == "killed" and others and not any(self.seen[rank].how for rank in others):
            # So looks a job that somebody killed as a whole, unless its ends lie apart.
            return len(others) < len(self.peers) - 1
        return self.died in ITS_OWN

    @property
    def may_be_slow(self) -> bool:
        """Whether one rank alone was killed by its launcher, after ends as victims have: so looks, without a word of
        theirs, one who was killed first and was long in coming down."""
        killed = [rank for rank in range(len(self.peers)) if self.ends(rank)[1] == {"exit_signal": 9}]
        return self.sweeps_by == 9 and len([rank for rank in killed if self.seen[rank].how]) == 1


PEERS = st.one_of(
    st.just(Peer(None)),
    st.builds(Peer, st.sampled_from([0.03, 0.09, 0.3, 0.9]), st.booleans(), st.sampled_from([0.01, 0.3])),
)
SEEN = st.sampled_from(
    [Seen(), Seen(), Seen(how=False), Seen(how=False, when=False), Seen(when=False), Seen(at_all=False)]
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    size = draw(st.sampled_from([2, 3, 4]))
    swept = draw(st.sampled_from([None, 0.1, 0.2, 0.5]))
    by = draw(st.sampled_from([15, 15, 9])) if swept == 0.5 else 15
    seen = st.sampled_from([Seen(), Seen(how=False), Seen(at_all=False)]) if by == 9 else SEEN
    died = draw(st.sampled_from(list(DEATHS)))
    slow = draw(st.sampled_from([0.0, 0.0, 0.5, 1.5])) if died in SLOWLY else 0.0
    victim = draw(st.integers(0, size - 1))
    ends = [draw(seen) for _ in range(size)]
    if slow:  # of an end of which only the late moment was seen nothing tells that it was the first
        ends[victim] = ends[victim]._replace(how=True)
    return Scene(
        died,
        victim,
        tuple(draw(PEERS) for _ in range(size)),
        swept,
        by,  # who was killed first only the times can tell
        draw(st.sampled_from([0.25, 0.6, 2.0])) if not slow else 4.0,
        draw(st.sampled_from([0.0, 0.05, 0.5, 2.0])) if not (slow and by == 9) else 0.0,  # killed alike at one moment
        tuple(ends),
        draw(st.sampled_from(["own", "marked", "anybody's", "none"])),
        slow,
    )


@settings(max_examples=400, deadline=None)
@given(scenes())
def test_who_died_first_is_named_or_nobody(scene: Scene) -> None:
    verdict = scene.verdict()
    if scene.may_be_slow and verdict.confidence != "certain":
        return
    assert set(verdict.culprits) <= {scene.victim}, (verdict.cause, verdict.summary)
    if scene.is_told:
        assert (verdict.cause, verdict.culprits) == ("rank_exited", (scene.victim,)), verdict.summary


@pytest.mark.parametrize(
    ("ends", "culprits"),
    [
        ({0: (10.0, 6), 1: (10.05, 6), 3: (10.1, 6), 2: (12.0, 9)}, (2,)),
        ({0: (10.0, None), 2: (10.5, 9)}, (2,)),
        ({0: (10.0, None), 1: (10.5, 9), 2: (10.5, 9)}, ()),  # swept, or one of them was the first
        ({0: (10.0, None), 1: (10.1, 15), 2: (40.1, 9)}, ()),  # torchrun kills half a minute after SIGTERM
        ({0: (10.0, None), 1: (9.9, 9), 2: (10.5, 9)}, (1,)),
    ],
)
def test_who_was_killed_and_comes_down_slowly_is_not_cleared_by_who_died_of_it(
    ends: dict[int, tuple[float, int | None]], culprits: tuple[int, ...]
) -> None:
    """A GPU's contexts and much memory take seconds to be freed after the connections are closed."""
    ranks = [
        Rank(rank, dumped=False, state="X", ended_ns=int(at * SECOND_NS), exit_signal=by, exit_code=None if by else 1)
        for rank, (at, by) in ends.items()
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", culprits), verdict.summary
