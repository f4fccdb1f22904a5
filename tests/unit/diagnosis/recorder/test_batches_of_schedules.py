"""Batches of sends and receives in whole schedules: one-forward-one-backward pipelines and rings, in which one member
brings another batch than all others, plays out under NCCL's rules, and is named."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.simulator.engine import Engine
from tests.simulator.evidence import gather
from tests.simulator.faults import Case, Truth
from tests.simulator.mesh import Group, Mesh
from tests.simulator.program import RING, Call, Program, Site

Peers = tuple[tuple[str, int], ...]
_P2P = "/app/p2p_communication.py"
_STEPS = 4


def _mesh(size: int) -> Mesh:
    group = Group("0", "default_pg", tuple(range(size)))
    sizes = {"pp": size, "dp": 1, "cp": 1, "ep": 1, "tp": 1}
    return Mesh(sizes, size, (group,), {("pp", rank): group for rank in range(size)}, {r: r for r in range(size)})


def _batch(mesh: Mesh, function: str, line: int, *peers: tuple[str, int]) -> Call:
    site = Site(function, line, _P2P)
    return Call("p2p", site, mesh.groups[0], RING, 2048, batched=True, peers=peers)


def _stage(mesh: Mesh, stage: int) -> list[Call]:
    """One step of a stage: warm-up, one forward one backward, cool-down."""
    before, after, last = stage - 1, stage + 1, mesh.world - 1
    micro = 2 * mesh.world
    warm = min(last - stage, micro)
    calls = []

    def exchange(function: str, line: int, *peers: tuple[str, int]) -> None:
        there = tuple(peer for peer in peers if 0 <= peer[1] <= last)
        if there:
            calls.append(_batch(mesh, function, line, *there))

    for _ in range(warm):
        exchange("recv_forward", 10, ("recv", before))
        exchange("send_forward", 20, ("send", after))
    exchange("recv_forward", 10, ("recv", before))
    for left in range(micro - warm, 0, -1):
        exchange("send_forward_recv_backward", 50, ("send", after), ("recv", after))
        if left > 1:
            exchange("send_backward_recv_forward", 60, ("send", before), ("recv", before))
        else:
            exchange("send_backward", 40, ("send", before))
    for _ in range(warm):
        exchange("recv_backward", 30, ("recv", after))
        exchange("send_backward", 40, ("send", before))
    return calls


def _hops(mesh: Mesh, rank: int) -> list[Call]:
    size = mesh.world
    ends = ("send", (rank + 1) % size), ("recv", (rank - 1) % size)
    return [_batch(mesh, "ring_exchange", 70, *ends)] * (size - 1)


def _pairs(mesh: Mesh, rank: int) -> list[Call]:
    """As `_hops`, of two tensors of different sizes."""
    size = mesh.world
    ends = ("send", (rank + 1) % size), ("send", (rank + 1) % size), ("recv", rank - 1), ("recv", rank - 1)
    peers = tuple((way, peer % size) for way, peer in ends)
    return [replace(_batch(mesh, "ring_exchange", 70, *peers), sizes=(2048, 512, 2048, 512))] * (size - 1)


def _program(shape: str, size: int, backend: str = "nccl") -> Program:
    mesh = _mesh(size)
    calls = {}
    for rank in range(size):
        step = {"pipeline": _stage, "ring": _hops, "ring of pairs": _pairs}[shape](mesh, rank)
        step.append(Call("collective", Site("reduce_gradients", 90), mesh.groups[0], "all_reduce", 4096))
        step += [Call("sync", Site("train_step", 130)), Call("step", Site("train_step", 131))]
        calls[rank] = tuple(step * _STEPS)
    return Program(backend, mesh, calls, _STEPS)


def _deviates(call: Call, how: str, rank: int, size: int) -> Sequence[Call]:
    """What the rank does in this place instead; the same again where its batch has no such member."""
    way = how.rpartition(" ")[2]
    mine = tuple(peer for peer in call.peers if peer[0] == way)
    others = tuple(peer for peer in call.peers if peer[0] != way)
    if how == "leaves it out":
        return []
    if how == "does it twice":
        return [call, call]
    if how.startswith("another order"):
        sizes = {"send": (512, 2048, 2048, 512), "recv": (2048, 512, 512, 2048)}.get(way)
        if sizes:
            return [replace(call, sizes=sizes)]
        return [replace(call, peers=call.peers[::-1], sizes=(2048, 512, 2048, 512))]  # receives first: as good
    if how == "brings another size":
        return [replace(call, numel=2 * call.numel)]
    if not mine:
        return [call]
    if how.startswith("lacks"):
        return [replace(call, peers=others)] if others else []
    if how.startswith("one more"):
        return [replace(call, peers=(*call.peers, *mine))]
    strangers = [r for r in range(size) if r != rank and (way, r) not in call.peers]
    return [replace(call, peers=((way, strangers[0]), *others))] if strangers else [call]


def _told(shape: str, size: int, how: str, rank: int, step: int, backend: str = "nccl") -> Verdict | None:
    """The verdict; None where the deviation is none, or stops nobody."""
    program = _program(shape, size, backend)
    calls = program.calls[rank]
    per_step = len(calls) // _STEPS
    batches = [at for at in range(step * per_step, (step + 1) * per_step) if calls[at].kind == "p2p"]
    at = batches[len(batches) // 2]
    changed = (*calls[:at], *_deviates(calls[at], how, rank, size), *calls[at + 1 :])
    odd = replace(program, calls={**program.calls, rank: changed})
    engine = Engine(odd)
    engine.run()
    if not engine.hung():
        return None
    seeds = (gather(random.Random(seed), Case(odd, Truth("", ()), ""), engine) for seed in range(99))
    whole = next(seen for seen in seeds if len(seen.dumps) == len(seen.stacks) == size)
    return judge(whole.evidence).verdicts[0]


_DEVIATIONS = (
    "leaves it out", "does it twice", "brings another size", "lacks its send", "lacks its recv", "one more send",
    "one more recv", "another peer to send", "another peer to recv",
)  # fmt: skip


@pytest.mark.parametrize("how", _DEVIATIONS)
@pytest.mark.parametrize(
    ("shape", "size"), [(s, n) for s, sizes in (("pipeline", (2, 4, 8)), ("ring", (3, 4, 8))) for n in sizes]
)
def test_the_member_whose_batch_is_another_is_named(shape: str, size: int, how: str) -> None:
    for rank in sorted({0, size // 2}):
        verdict = _told(shape, size, how, rank, step=2)
        if verdict is not None:
            assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (rank,)), f"rank {rank}: {verdict.summary}"


@pytest.mark.parametrize("how", ["leaves it out", "does it twice", "lacks its send", "one more recv"])
def test_in_a_rings_first_step_the_others_of_its_kind_tell(how: str) -> None:
    verdict = _told("ring", 4, how, 1, step=0)
    assert verdict is not None
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (1,)), verdict.summary


@pytest.mark.parametrize("how", ["leaves it out", "lacks its send", "one more recv", "another peer to recv"])
@pytest.mark.parametrize("shape", ["pipeline", "ring"])
def test_where_gloo_records_no_transfers_the_one_that_waits_is_not_named(shape: str, how: str) -> None:
    """Whose message has not come, its line does not tell. Two that alone stand in transfers may be a message's ends."""
    verdict = _told(shape, 4, how, 1, step=2, backend="gloo")
    if verdict is not None:
        assert verdict.cause == "p2p_unmatched", verdict.summary
        assert not verdict.culprits or (1 in verdict.culprits and len(verdict.culprits) <= 2), verdict.summary
        assert verdict.confidence == "possible"


@pytest.mark.parametrize("how", ["another order of send", "another order of recv"])
@pytest.mark.parametrize("size", [3, 4, 8])
@pytest.mark.parametrize("step", [0, 2])
def test_the_member_whose_batch_has_another_order_is_named(size: int, how: str, step: int) -> None:
    for rank in sorted({0, size // 2}):
        verdict = _told("ring of pairs", size, how, rank, step)
        assert verdict is not None
        assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (rank,)), f"rank {rank}: {verdict.summary}"


def test_whether_a_batch_sends_or_receives_first_is_no_matter() -> None:
    assert _told("ring of pairs", 4, "another order of both", 1, step=2) is None


def test_the_schedules_themselves_end() -> None:
    for shape, size in (("pipeline", 4), ("ring", 4), ("ring of pairs", 4)):
        engine = Engine(_program(shape, size))
        engine.run()
        assert not engine.hung()
