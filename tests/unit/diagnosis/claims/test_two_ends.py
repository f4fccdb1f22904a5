"""A message that one end waits for and the other has not posted: who of the two differs from its mates, at its place of
the other pipelines, is named; where nothing tells them apart, no innocent is."""

import random
from dataclasses import replace

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.simulator.engine import Engine
from tests.simulator.evidence import gather
from tests.simulator.faults import Case, Truth
from tests.simulator.mesh import Group, Mesh
from tests.simulator.program import RING, Call, Program, Site
from tests.simulator.recording import Style

_STAGES, _LINES = 4, 2
_WORLD = Group("0", "default_pg", tuple(range(_STAGES * _LINES)))
_LANES = [Group(f"{1 + n}", f"pp{n}", tuple(range(n, _STAGES * _LINES, _LINES))) for n in range(_LINES)]
_TIES = [Group(f"{9 + n}", f"cp{n}", tuple(range(n * _LINES, (n + 1) * _LINES))) for n in range(_STAGES)]
_STEPS = 3


def _exchange(rank: int, function: str, line: int, *ways: tuple[str, int]) -> list[Call]:
    there = tuple((way, rank + on * _LINES) for way, on in ways if 0 <= rank + on * _LINES < _STAGES * _LINES)
    site = Site(function, line, "/app/p2p_communication.py")
    return [Call("p2p", site, _LANES[rank % _LINES], RING, 2048, batched=True, peers=there)] if there else []


def _collective(group: Group, line: int) -> Call:
    return Call("collective", Site("reduce", line), group, "all_reduce", 4096)


def _step(rank: int) -> list[Call]:
    """One forward, a batch of both ways between stages, one backward; and what all share at its end."""
    tie = _TIES[rank // _LINES]
    calls = _exchange(rank, "recv_forward", 10, ("recv", -1))
    calls += [_collective(tie, 60)]
    calls += _exchange(rank, "send_forward_recv_backward", 50, ("send", 1), ("recv", 1))
    calls += [_collective(tie, 63)]
    calls += _exchange(rank, "send_backward", 40, ("send", -1))
    calls += [_collective(_WORLD, 90), Call("sync", Site("train_step", 130)), Call("step", Site("train_step", 131))]
    return calls


def _told(rank: int, step: int, lacks: str, style: Style | None = None) -> Verdict:
    """The verdict where in one step a rank's first batch that has such a member lacks it."""
    sizes = {"pp": _STAGES, "cp": _LINES, "dp": 1, "ep": 1, "tp": 1}
    ranks = range(_STAGES * _LINES)
    of = {("pp", r): _LANES[r % _LINES] for r in ranks} | {("cp", r): _TIES[r // _LINES] for r in ranks}
    mesh = Mesh(sizes, len(ranks), (_WORLD, *_LANES, *_TIES), of, {r: r // _LINES for r in ranks})
    program = Program("nccl", mesh, {r: tuple(_step(r) * _STEPS) for r in ranks}, _STEPS)
    calls = list(program.calls[rank])
    steps = len(calls) // _STEPS
    at = next(n for n in range(step * steps, len(calls)) if any(way == lacks for way, _ in calls[n].peers))
    kept = tuple(peer for peer in calls[at].peers if peer[0] != lacks)
    calls[at : at + 1] = [replace(calls[at], peers=kept)] if kept else []
    odd = replace(program, calls={**program.calls, rank: tuple(calls)})
    engine = Engine(odd)
    engine.run()
    assert engine.hung()
    case = Case(odd, Truth("", (), step=step), "")
    seeds = (gather(random.Random(seed), case, engine, style or Style()) for seed in range(99))
    whole = next(seen for seen in seeds if len(seen.dumps) == len(seen.stacks) == len(ranks))
    return judge(whole.evidence).verdicts[0]


@pytest.mark.parametrize("lacks", ["send", "recv"])
@pytest.mark.parametrize("rank", [1, 2, 5, 7])
@pytest.mark.parametrize("step", [0, 2])
def test_the_end_that_differs_from_its_mate_of_the_other_pipeline_is_named(rank: int, step: int, lacks: str) -> None:
    if (rank < _LINES) and lacks == "recv":
        rank += _LINES  # a first stage's batch lacks it the same way
    verdict = _told(rank, step, lacks)
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (rank,)), verdict.summary
    assert verdict.confidence in ("likely", "possible")


@pytest.mark.parametrize("lacks", ["send", "recv"])
def test_where_the_rings_have_lost_what_tells_them_apart_neither_is_named(lacks: str) -> None:
    rings = dict.fromkeys(range(_STAGES * _LINES), 6)
    verdict = _told(3, 0, lacks, Style(rings=rings))
    assert set(verdict.culprits) <= {3}, verdict.summary
