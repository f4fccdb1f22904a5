"""Where ranks spend time that their peers do not: profiles of several ranks, compared by share."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis.activity.blocking_location import Circumstances, locate
from stallwatch.diagnosis.frames.code_origin import job_frame_index
from stallwatch.model.evidence import CodeFrame, SampledStack
from stallwatch.model.verdict import Where

LEAST_SAMPLES = 20  # of the slow ranks, and of their peers
_LEAST_SHARE = 0.04  # of the time: less is no reason to be slow
_SPENT_ERRORS = 3.5  # standard errors: some hundred lines are compared
_WAITS = ("collective", "store", "init")  # for others
_NEXT_TO_NONE = 0.1  # of what the slow ones spend there
_SAME = 0.5  # of that: who spends as much does the same
_MOST_OF_IT = 0.75  # of the greatest difference: so much of it a line has that explains it

_Key = tuple[str, str] | int  # a function with its file, or a line in it


class Spent(NamedTuple):
    """A place where slow ranks spend more of their time than their peers."""

    share: float
    peers_share: float
    frames: tuple[CodeFrame, ...]  # innermost first, down to the place that explains the difference
    samples: int  # of the slow ranks
    where: Where
    greatest_share: float = 0.0  # of the peer that spends most there

    @property
    def frame(self) -> CodeFrame:
        """The job's own line, from which the place is called where it is a library's."""
        index = job_frame_index(self.frames)
        return self.frames[index or 0]

    @property
    def line(self) -> str:
        """ "train.py:120"."""
        return f"{self.frame.filename.rpartition('/')[2]}:{self.frame.line}"

    @property
    def is_shared(self) -> bool:
        """Whether its peers do the same there, for less long."""
        return self.peers_share >= _SAME * self.share

    @property
    def is_alone(self) -> bool:
        """Whether next to none of its peers' time goes there, and of none about as much: of two ranks that have got the
        work of six others, one is no culprit."""
        return self.peers_share <= _NEXT_TO_NONE * self.share and self.greatest_share < _SAME * self.share


def compared(slow: Sequence[Sequence[SampledStack]], peers: Sequence[Sequence[SampledStack]]) -> Spent | None:
    """Given the stacks of each slow rank and of each of its peers, return where the slow ones spend time that the
    others do not; None when they are too few to tell, it is spread over many places, or they wait there themselves."""
    spent = _most(slow, peers)
    return spent if spent is not None and spent.where not in _WAITS else None


def waited(slow: Sequence[Sequence[SampledStack]], peers: Sequence[Sequence[SampledStack]]) -> Spent | None:
    """Of the same stacks, where ranks that are said to be slow wait for others, more than their peers do; None where
    they spend their time elsewhere."""
    spent = _most(slow, peers)
    return spent if spent is not None and spent.where in _WAITS else None


def _most(slow: Sequence[Sequence[SampledStack]], peers: Sequence[Sequence[SampledStack]]) -> Spent | None:
    tree = _Tree()
    mine = [shares for shares in map(tree.shares, slow) if shares]
    others = [shares for shares in map(tree.shares, peers) if shares]
    samples = sum(stack.count for stacks in slow for stack in stacks)
    of_peers = sum(stack.count for stacks in peers for stack in stacks)
    if not mine or not others or min(samples, of_peers) < LEAST_SAMPLES:
        return None
    share = {node: sum(shares.get(node, 0.0) for shares in mine) / len(mine) for node in range(len(tree))}
    usual = {node: median(shares.get(node, 0.0) for shares in others) for node in range(len(tree))}
    more = {node: share[node] - usual[node] for node in share}
    place = max(more, key=lambda node: (more[node], -node))
    most = more[place]
    if most < max(_LEAST_SHARE, _SPENT_ERRORS * _error(share[place], usual[place], samples, of_peers)):
        return None
    while deeper := [child for child in tree.children[place] if more[child] >= _MOST_OF_IT * most]:
        place = max(deeper, key=lambda node: (more[node], -node))
    frames = tree.frames(place, share)
    where = locate(frames, Circumstances(wait=None, on_cpu=None, gpu=False)).where
    greatest = max(shares.get(place, 0.0) for shares in others)
    return Spent(share[place], usual[place], frames, samples, where, greatest) if frames else None


def would_show(share: float, samples: int, of_peers: int) -> bool:
    """Whether a place that takes this share of a slow rank's time, and none of its peers', stands out of so many
    samples."""
    return share >= max(_LEAST_SHARE, _SPENT_ERRORS * _error(share, 0.0, samples, of_peers))


def _error(p: float, q: float, samples: int, of_peers: int) -> float:
    """Standard error of a difference of two shares; none seen of many is still a share."""
    p, q = (p * samples + 1) / (samples + 2), (q * of_peers + 1) / (of_peers + 2)
    return sqrt(p * (1 - p) / samples + q * (1 - q) / of_peers)


class _Tree:
    """All stacks as one tree from the outermost function inwards, a line of a function beneath the function."""

    def __init__(self) -> None:
        self.children: list[list[int]] = [[]]
        self._known: dict[tuple[int, _Key], int] = {}
        self._key: list[_Key] = [("", "")]
        self._parent = [0]

    def __len__(self) -> int:
        return len(self._key)

    def shares(self, stacks: Sequence[SampledStack]) -> Mapping[int, float]:
        """By place: the part of the samples that saw it, or what it called."""
        total = sum(stack.count for stack in stacks)
        found: dict[int, float] = defaultdict(float)
        for stack in stacks:
            node = 0
            for frame in reversed(stack.frames):
                for key in ((frame.name, frame.filename), frame.line):
                    node = self._child(node, key)
                    found[node] += stack.count / total
        return found

    def frames(self, node: int, share: Mapping[int, float]) -> tuple[CodeFrame, ...]:
        """The way to a place, innermost first; where it is a whole function, with the line that took most."""
        if not isinstance(self._key[node], int) and (lines := self.children[node]):
            node = max(lines, key=lambda line: (share[line], -line))
        found: list[CodeFrame] = []
        while node:
            line, function = self._key[node], self._key[self._parent[node]]
            assert isinstance(line, int)
            assert isinstance(function, tuple)
            found.append(CodeFrame(*function, line))
            node = self._parent[self._parent[node]]
        return tuple(found)

    def _child(self, node: int, key: _Key) -> int:
        child = self._known.get((node, key))
        if child is None:
            child = self._known[node, key] = len(self._key)
            self._key.append(key)
            self._parent.append(node)
            self.children.append([])
            self.children[node].append(child)
        return child
