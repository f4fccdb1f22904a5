"""Programs: what each rank's host issues, in order. SPMD with pipeline roles; every call has a call site of its own."""

import random
from dataclasses import dataclass, field, replace

from tests.simulator.mesh import Group, Mesh

REDUCING = ("all_reduce", "reduce_scatter_base", "all_gather_base")
OPERATIONS = (*REDUCING, "broadcast", "alltoall_base", "all_gather")
RING = "batch_isend_irecv"
UNEVEN = "all_gather_uneven"  # of parts of several sizes, which NCCL launches as a batch of broadcasts
WIDTH = {"Float": 4, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4}


@dataclass(frozen=True)
class Site:
    """A call site in the job's own code."""

    function: str
    line: int
    file: str = "/app/model/layers.py"


@dataclass(frozen=True)
class Call:
    """One item of a rank's program."""

    kind: str  # "collective", "p2p", "wait", "sync", "step", "fault"
    site: Site
    group: Group | None = None
    operation: str = ""
    numel: int = 0
    dtype: str = "Float"
    asynchronous: bool = False
    batched: bool = False
    coalesced: bool = False  # several calls that are launched and end as one
    members: str = ""  # of a coalesced one, other than usual: "swapped", or "odd" of another size
    peers: tuple[tuple[str, int], ...] = ()  # p2p: ("send" | "recv", peer's global rank)
    sizes: tuple[int, ...] = ()  # of a batch whose messages are of several sizes: by place in `peers`
    where: str = ""  # fault: what the host does instead
    tags: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Program:
    backend: str
    mesh: Mesh
    calls: dict[int, tuple[Call, ...]]
    steps: int


@dataclass(frozen=True)
class _Slot:
    dimension: str  # "" is the default group
    operation: str
    numel: int
    dtype: str
    site: Site
    asynchronous: bool
    coalesced: bool = False


def random_program(rng: random.Random, mesh: Mesh, backend: str, harder: random.Random | None = None) -> Program:
    """`harder`: draws what came later, so that the same seed draws the same of all else."""
    dimensions = [d for d in ("tp", "cp", "ep", "dp") if mesh.sizes[d] > 1]
    if not dimensions and mesh.sizes["pp"] == 1:
        dimensions = [""]  # in a pipeline a collective over all stages inside the forward pass would deadlock by itself
    forward = [
        _slot(rng, rng.choice(dimensions), 10 + 3 * i, "forward") for i in range(rng.randint(1, 4)) if dimensions
    ]
    backward = [_slot(rng, s.dimension, 60 + 3 * i, "backward") for i, s in enumerate(reversed(forward))]
    reduce = [
        replace(_slot(rng, "dp" if mesh.sizes["dp"] > 1 else "", 90 + 3 * i, "reduce_gradients"), asynchronous=True)
        for i in range(rng.randint(1, 3))
    ]
    if mesh.sizes["pp"] > 1 and rng.random() < 0.5:
        # Tied embeddings: the first and the last stage share gradients, in groups that leave the stages between out.
        reduce.append(_Slot("embedding", "all_reduce", 8192, "Float", Site("reduce_embedding", 102), True))
    tail = [_Slot("", "all_reduce", 1, "Float", Site("log_metrics", 120), False)] if rng.random() < 0.7 else []
    objects = rng.random() < 0.2
    steps, micro = rng.randint(2, 6), rng.choice([1, 1, 2, 4])
    batched = rng.random() < 0.5
    rings = [d for d in ("cp", "dp", "ep") if mesh.sizes[d] > 1]
    ring = rng.choice(rings) if rings and rng.random() < 0.25 else ""
    alternates = harder is not None and mesh.sizes["pp"] > 1 and harder.random() < 0.4
    if harder is not None and backend == "nccl" and forward and harder.random() < 0.1:
        forward[0] = replace(forward[0], operation=UNEVEN, coalesced=True)
    calls: dict[int, list[Call]] = {rank: [] for rank in range(mesh.world)}
    for rank, mine in calls.items():
        for _ in range(steps):
            if alternates:
                ahead, back = [*_slots(mesh, rank, forward), *_ring(mesh, rank, ring)], _slots(mesh, rank, backward)
                mine += _alternating(mesh, rank, 2 * micro, ahead, back)
            for _ in range(0 if alternates else micro):
                mine += _pipeline(mesh, rank, -1, "recv", batched, 30)
                mine += _slots(mesh, rank, forward)
                mine += _ring(mesh, rank, ring)
                mine += _pipeline(mesh, rank, +1, "send", batched, 33)
            for _ in range(0 if alternates else micro):
                mine += _pipeline(mesh, rank, +1, "recv", batched, 50)
                mine += _slots(mesh, rank, backward)
                mine += _pipeline(mesh, rank, -1, "send", batched, 53)
            mine += _slots(mesh, rank, reduce)
            mine.append(Call("wait", Site("finish_reduce", 99)))
            if objects:  # an object collective is two collectives: sizes, then bytes
                world = mesh.groups[0]
                mine.append(Call("collective", Site("gather_metrics", 110), world, "all_gather", 1, "Long"))
                mine.append(Call("collective", Site("gather_metrics", 110), world, "all_gather", 512, "Byte"))
            mine += _slots(mesh, rank, tail)
            mine.append(Call("sync", Site("train_step", 130)))
            mine.append(Call("step", Site("train_step", 131)))
        mine.append(Call("collective", Site("main", 200), mesh.groups[0], "barrier", 1, "Byte"))
        mine.append(Call("sync", Site("main", 201)))
    return Program(backend, mesh, {r: tuple(c) for r, c in calls.items()}, steps)


def _slot(rng: random.Random, dimension: str, line: int, function: str) -> _Slot:
    operation = rng.choice(OPERATIONS if rng.random() < 0.5 else REDUCING)
    numel = rng.choice([256, 1024, 4096, 65536])
    return _Slot(dimension, operation, numel, "Float", Site(function, line), False, rng.random() < 0.1)


def _slots(mesh: Mesh, rank: int, slots: list[_Slot]) -> list[Call]:
    calls = []
    for slot in slots:
        group = mesh.of.get((slot.dimension, rank)) if slot.dimension else mesh.groups[0]
        if group is not None:
            calls.append(
                Call(
                    "collective",
                    slot.site,
                    group,
                    slot.operation,
                    slot.numel,
                    slot.dtype,
                    slot.asynchronous,
                    coalesced=slot.coalesced,
                )
            )
    return calls


def _ring(mesh: Mesh, rank: int, dimension: str) -> list[Call]:
    """What ring attention does: a batch of a send to the next member and a receive from the one before."""
    if not dimension:
        return []
    group = mesh.of[dimension, rank]
    place = group.ranks.index(rank)
    after, before = group.ranks[(place + 1) % len(group.ranks)], group.ranks[place - 1]
    peers = (("send", after), ("recv", before))
    return [Call("p2p", Site("ring_exchange", 40), group, RING, 2048, batched=True, peers=peers)]


def _alternating(mesh: Mesh, rank: int, micro: int, forward: list[Call], backward: list[Call]) -> list[Call]:
    """One forward one backward: warm-up, batches of a send and a receive in both directions, cool-down."""
    stages = len(mesh.of["pp", rank].ranks)
    warm = min(stages - mesh.stage[rank] - 1, micro)
    calls: list[Call] = []

    def exchange(function: str, line: int, *ways: tuple[str, int]) -> None:
        ends = ((way, mesh.pipeline_neighbour(rank, offset)) for way, offset in ways)
        peers = tuple((way, peer) for way, peer in ends if peer is not None)
        if peers:
            site = Site(function, line, "/app/p2p_communication.py")
            calls.append(Call("p2p", site, mesh.of["pp", rank], RING, 2048, batched=True, peers=peers))

    for _ in range(warm):
        exchange("recv_forward", 10, ("recv", -1))
        calls.extend(forward)
        exchange("send_forward", 20, ("send", +1))
    if micro > warm:
        exchange("recv_forward", 10, ("recv", -1))
    for left in range(micro - warm, 0, -1):
        calls.extend(forward)
        exchange("send_forward_recv_backward", 50, ("send", +1), ("recv", +1))
        calls.extend(backward)
        if left > 1:
            exchange("send_backward_recv_forward", 60, ("send", -1), ("recv", -1))
        else:
            exchange("send_backward", 40, ("send", -1))
    for _ in range(warm):
        exchange("recv_backward", 30, ("recv", +1))
        calls.extend(backward)
        exchange("send_backward", 40, ("send", -1))
    return calls


def _pipeline(mesh: Mesh, rank: int, offset: int, direction: str, batched: bool, line: int) -> list[Call]:
    peer = mesh.pipeline_neighbour(rank, offset)
    if peer is None:
        return []
    group = mesh.of["pp", rank]
    return [Call("p2p", Site("exchange", line), group, direction, 2048, batched=batched, peers=((direction, peer),))]
