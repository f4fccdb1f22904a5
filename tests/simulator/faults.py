"""One injected fault per case, and what is true about it. Only this module and the oracle know the truth."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulator.program import REDUCING, RING, UNEVEN, Call, Program, Site

EXTRA = Site("log_on_rank_zero", 140)  # of a call that one rank alone makes
STALLS = ("user_code", "lock", "dataloader", "busy_loop", "checkpoint", "filesystem", "socket", "gil")


@dataclass(frozen=True)
class Truth:
    cause: str
    culprits: tuple[int, ...]
    accept: tuple[tuple[str, tuple[int, ...]], ...] = ()
    needs_history: bool = False  # only earlier steps or a third member tell who differs
    culprit_group: int = 0  # members of the group in which it happened
    step: int = 0  # in which it happened
    group: str = ""  # of the call that was left out, added or moved
    only_where_all_entered: tuple[str, int] | None = None  # comm_stuck: group and number


@dataclass(frozen=True)
class Case:
    program: Program
    truth: Truth
    fault: str
    broken: tuple[str, int] | None = None
    most_moves: int | None = None


def moves_between_looks(world: int) -> int:
    return 3 * world + 20


def _positions(calls: tuple[Call, ...], step: int, wanted: Callable[[Call], bool]) -> list[int]:
    seen, found = 0, []
    for index, call in enumerate(calls):
        if call.kind == "step":
            seen += 1
        elif seen == step and wanted(call):
            found.append(index)
    return found


def _edit(program: Program, rank: int, calls: tuple[Call, ...]) -> Program:
    return replace(program, calls={**program.calls, rank: calls})


def _all(cause: str, rank: int, *others: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((c, (rank,)) for c in (cause, *others))


def inject(rng: random.Random, program: Program, fault: str = "") -> Case | None:
    """Return a case with one fault, the given or a drawn one, or None where this program has no place for it."""
    drawn = rng.choice(tuple(FAULTS))
    fault = fault or drawn
    rank = rng.randrange(program.mesh.world)
    # Mostly after a healthy step: in the first one nothing tells which of two members of a group is right.
    step = rng.randrange(program.steps) if rng.random() < 0.07 else rng.randrange(1, program.steps)
    return FAULTS[fault](rng, program, rank, step, fault)


def _stand(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    places = _positions(program.calls[rank], step, lambda c: c.kind != "step")
    if not places:
        return None
    at = rng.choice(places)
    calls = program.calls[rank]
    ended = {"stall": "stuck", "exited": "exited", "stopped": "stopped"}[fault]
    where = rng.choice(STALLS) if fault == "stall" else ""
    item = Call("fault", Site("prepare_batch", 77, "/app/data/pipeline.py"), operation=ended, where=where)
    cause = {"stall": "not_entered", "exited": "rank_exited", "stopped": "process_stopped"}[fault]
    truth = Truth(cause, (rank,), step=step)
    return Case(_edit(program, rank, (*calls[:at], item, *calls[at:])), truth, fault)


def _skip(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    places = _positions(program.calls[rank], step, lambda c: c.kind == "collective")
    if not places:
        return None
    at = rng.choice(places)
    calls = program.calls[rank]
    group = calls[at].group
    assert group is not None
    others = _all("collective_mismatch", rank, "not_entered", "group_order", "data_exhausted")
    if program.backend == "gloo":
        # What gloo shows of a rank that skipped a call and went on to a transfer: it stands in that, as if its
        # message had not come. The rank is right, and which of the two it is nothing recorded tells.
        others += (*_all("p2p_unmatched", rank), ("p2p_unmatched", ()))
    truth = Truth("collective_mismatch", (rank,), others, True, len(group.ranks), step, group.name)
    return Case(_edit(program, rank, (*calls[:at], *calls[at + 1 :])), truth, fault)


def _extra(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    places = _positions(program.calls[rank], step, lambda c: c.kind == "collective")
    if not places:
        return None
    at = rng.choice(places)
    calls = program.calls[rank]
    group = calls[at].group
    assert group is not None
    operation = rng.choice([calls[at].operation, "all_reduce", "broadcast"])
    item = Call("collective", EXTRA, group, operation, rng.choice([1, calls[at].numel]))
    others = _all("collective_mismatch", rank, "not_entered", "group_order", "data_exhausted")
    truth = Truth("collective_mismatch", (rank,), others, True, len(group.ranks), step)
    return Case(_edit(program, rank, (*calls[:at], item, *calls[at:])), truth, fault)


def _wrong(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    places = _positions(program.calls[rank], step, lambda c: c.kind == "collective" and c.operation != "barrier")
    if not places:
        return None
    at = rng.choice(places)
    calls = program.calls[rank]
    call = calls[at]
    assert call.group is not None
    changed = {
        "wrong_op": replace(call, operation="broadcast" if call.operation == "all_reduce" else "all_reduce"),
        "wrong_size": replace(call, numel=call.numel * 2),
        "wrong_dtype": replace(call, dtype="Double" if call.dtype == "Float" else "Float"),
    }[fault]
    if fault == "wrong_size" and call.operation in ("all_gather", "alltoall_base"):
        return None  # uneven gathers and all-to-all are legal: a size of their own is no sign of a fault
    truth = Truth("collective_mismatch", (rank,), (), True, len(call.group.ranks), step)
    return Case(_edit(program, rank, (*calls[:at], changed, *calls[at + 1 :])), truth, fault)


def _member(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    """One member of a group brings the calls of a coalesced collective in another order, or one of another size."""
    calls = program.calls[rank]
    even = (*REDUCING, "broadcast", UNEVEN)  # of the others every member may bring another size
    places = _positions(calls, step, lambda c: c.kind == "collective" and c.coalesced and c.operation in even)
    if not places or program.backend == "gloo":
        return None
    at = rng.choice(places)
    call = calls[at]
    assert call.group is not None
    changed = replace(call, members="swapped" if fault == "member_order" else "odd")
    accept = (("collective_mismatch", ()),) if len(call.group.ranks) == 2 and step == 0 else ()
    truth = Truth("collective_mismatch", (rank,), accept, True, len(call.group.ranks), step)
    return Case(_edit(program, rank, (*calls[:at], changed, *calls[at + 1 :])), truth, fault)


def _swap(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    """The rank enters a later collective of the step before an earlier one of another group with common members."""
    calls = program.calls[rank]
    places = _positions(calls, step, lambda c: c.kind == "collective" and not c.asynchronous)
    pairs = [
        (i, j)
        for i in places
        for j in places
        if i < j and calls[i].group != calls[j].group and len(_shared(calls[i], calls[j])) > 1
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    shared = _shared(calls[i], calls[j])
    first, second = calls[i].group, calls[j].group
    assert first is not None and second is not None
    everybody = tuple(sorted(set(first.ranks) | set(second.ranks)))
    accept = _all("group_order", rank, "collective_mismatch", "not_entered")
    if step == 0 or len(shared) == 2:
        # Neither an earlier step nor a third member tells who of the cycle began it: all of it is the answer then.
        accept = (*accept, ("group_order", shared), ("group_order", everybody))
    truth = Truth("group_order", (rank,), accept, True, len(shared), step, first.name)
    moved = (*calls[:i], calls[j], *calls[i:j], *calls[j + 1 :])
    return Case(_edit(program, rank, moved), truth, fault)


def _shared(one: Call, other: Call) -> tuple[int, ...]:
    assert one.group is not None and other.group is not None
    return tuple(sorted(set(one.group.ranks) & set(other.group.ranks)))


def _lost_message(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    direction = "send" if program.backend == "gloo" else rng.choice(["send", "recv"])
    places = _positions(program.calls[rank], step, lambda c: c.kind == "p2p" and c.operation == direction)
    if not places:
        return None
    at = rng.choice(places)
    calls = program.calls[rank]
    others = _all("p2p_unmatched", rank, "not_entered", "collective_mismatch", "data_exhausted", "group_order")
    # A message has two ends; without a record of P2P (gloo) only the end that waits can be seen.
    peer = calls[at].peers[0][1]
    ends = [("p2p_unmatched", tuple(sorted((rank, peer))))]
    if program.backend == "gloo":
        ends += [("p2p_unmatched", (peer,)), ("p2p_unmatched", ())]
    truth = Truth("p2p_unmatched", (rank,), (*others, *ends), True, 2, step)
    return Case(_edit(program, rank, (*calls[:at], *calls[at + 1 :])), truth, fault)


def _batch(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    """One member of a ring brings another batch than all others: it lacks a message, has one too many, one to another
    peer, or of another size."""
    calls = program.calls[rank]
    places = _positions(calls, step, lambda c: c.operation == RING and len(c.peers) > 1)
    if not places:
        return None
    at = rng.choice(places)
    call = calls[at]
    assert call.group is not None
    others = [member for member in call.group.ranks if member not in (rank, call.peers[0][1])]
    if fault == "batch_peer" and (program.backend == "gloo" or not others):
        return None  # gloo's sends end by themselves
    direction = rng.choice(["send", "recv"])
    kept = tuple(peer for peer in call.peers if peer[0] == direction)
    changed = {
        "batch_lacks": replace(call, peers=kept),
        "batch_more": replace(call, peers=(*call.peers, *kept)),
        "batch_peer": replace(call, peers=(("send", others[0] if others else rank), call.peers[1])),
        "batch_size": replace(call, numel=call.numel * 2),
    }[fault]
    accept = _all("p2p_unmatched", rank, "collective_mismatch", "not_entered", "group_order", "data_exhausted")
    if program.backend == "gloo":  # which records no transfers: that somebody stands in one is all that is seen
        accept = (*accept, ("p2p_unmatched", ()))
    if len(call.group.ranks) == 2:
        accept = (*accept, ("p2p_unmatched", tuple(sorted(call.group.ranks))), ("p2p_unmatched", ()))
    truth = Truth("p2p_unmatched", (rank,), accept, True, len(call.group.ranks), step)
    return Case(_edit(program, rank, (*calls[:at], changed, *calls[at + 1 :])), truth, fault)


def _exhausted(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    if step == 0:
        return None
    calls = program.calls[rank]
    ends = [i for i, c in enumerate(calls) if c.kind == "step"]
    kept = calls[: ends[step - 1] + 1]
    tail = calls[ends[-1] + 1 :]
    others = _all("data_exhausted", rank, "collective_mismatch", "not_entered")
    truth = Truth("data_exhausted", (rank,), others, False, program.mesh.world, step)
    return Case(_edit(program, rank, (*kept, *tail)), truth, fault)


def _comm(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    calls = program.calls[rank]
    places = _positions(calls, step, lambda c: c.kind == "collective")
    if not places:
        return None
    at = rng.choice(places)
    group = calls[at].group
    assert group is not None
    number = sum(1 for c in calls[: at + 1] if c.kind == "collective" and c.group == group)
    truth = Truth("comm_stuck", (), step=step, only_where_all_entered=(group.name, number))
    return Case(program, truth, fault, broken=(group.name, number))


def _moving(rng: random.Random, program: Program, rank: int, step: int, fault: str) -> Case | None:
    total = sum(len(c) for c in program.calls.values())
    truth = Truth("healthy", ())
    latest = total - moves_between_looks(program.mesh.world) - 2 * program.mesh.world
    if latest <= total // 3:
        return None  # too short a program to be looked at twice before its end
    return Case(program, truth, fault, most_moves=rng.randrange(total // 3, latest))


FAULTS: dict[str, Callable[[random.Random, Program, int, int, str], Case | None]] = {
    "stall": _stand,
    "exited": _stand,
    "stopped": _stand,
    "skip": _skip,
    "extra": _extra,
    "wrong_op": _wrong,
    "wrong_size": _wrong,
    "wrong_dtype": _wrong,
    "member_order": _member,
    "member_size": _member,
    "group_order": _swap,
    "lost_message": _lost_message,
    "batch_lacks": _batch,
    "batch_more": _batch,
    "batch_peer": _batch,
    "batch_size": _batch,
    "exhausted": _exhausted,
    "comm_stuck": _comm,
    "moving": _moving,
}
