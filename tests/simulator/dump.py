"""What the tools of a node would say about a simulated job: dumps as torch writes them, stacks, processes."""

import random
from typing import Any

from tests.simulator.engine import Engine, Issued, Rank
from tests.simulator.mesh import Group
from tests.simulator.program import RING, UNEVEN, Call, Site
from tests.simulator.recording import Style

TORCH = "/usr/lib/python3/dist-packages/torch"
START_NS = 1_795_800_000_000_000_000
TIMEOUT_MS = 600_000
_THREADING = "/usr/lib/python3.11/threading.py"


def shapes(call: Call, world: int) -> tuple[list[list[int]], list[list[int]]]:
    size = len(call.group.ranks) if call.group else world
    n = call.numel
    by_operation = {
        "reduce_scatter_base": ([[n * size]], [[n]]),
        "all_gather_base": ([[n]], [[n * size]]),
        "all_gather": ([[n]], [[n]] * size),
        "barrier": ([], []),
    }
    return by_operation.get(call.operation, ([[n]], [[n]]))


def _frames(site: Site, operation: str) -> list[dict[str, Any]]:
    return [
        {"name": operation, "filename": f"{TORCH}/distributed/distributed_c10d.py", "line": 3008},
        {"name": "wrapper", "filename": f"{TORCH}/distributed/c10d_logger.py", "line": 83},
        {"name": site.function, "filename": site.file, "line": site.line},
        {"name": "main", "filename": "/app/train.py", "line": 40},
        {"name": "<module>", "filename": "/app/train.py", "line": 60},
    ]


def recorder(
    engine: Engine, rank: Rank, rng: random.Random, ring: int = 2000, late: int = 0, style: Style | None = None
) -> dict[str, Any]:
    """One rank's dump, as a dictionary of builtins. NCCL's watchdog has not yet seen the end of the last `late` that
    completed: their state lags, as it does for a tenth of a second in health."""
    style = style or Style()
    backend = engine.program.backend
    mesh = engine.program.mesh
    mine = [g for g in mesh.groups if rank.rank in g.ranks]
    local = {g.name: i for i, g in enumerate(mine)}
    entries: list[dict[str, Any]] = []
    collective: dict[str, int] = {}
    p2p: dict[str, int] = {}
    operation_id: dict[str, int] = {}
    completed: dict[str, int] = {}
    done = [issued for issued in rank.issued if issued.completed]
    unseen = {id(issued) for issued in done[len(done) - late :]} if backend == "nccl" else set()
    for issued in rank.issued:
        group = issued.call.group
        assert group is not None
        settled = issued.completed and id(issued) not in unseen
        is_p2p = issued.call.kind == "p2p"
        if (is_p2p and backend == "gloo") or style.hides(issued.call):
            continue
        former = style.is_former(group, issued.step)
        name = f"{group.name} before" if former else group.name
        operation_id[name] = operation_id.get(name, 0) + 1
        numbers = p2p if is_p2p else collective
        numbers[name] = numbers.get(name, 0) + 1
        id_of_group = local[group.name] + (100 if former else 0)
        base = _entry(engine, issued, id_of_group, operation_id[name], rng, settled)
        base["process_group"] = (style.name(group, issued.step), style.describes(group))
        if issued.call.operation == "barrier":
            base["profiling_name"] = f"{backend}:{style.barrier}"
        base["collective_seq_id"], base["p2p_seq_id"] = collective.get(name, 0), p2p.get(name, 0)
        if settled:
            completed[name] = numbers[name]
        entries += _members(issued, base, rank.rank, style) if is_p2p else _collective(issued, base)
    for index, entry in enumerate(entries):
        entry["record_id"] = index
    status = {
        str(local[g.name]): {
            "last_enqueued_collective": (p2p if g.name in p2p else collective).get(g.name, -1),
            "last_started_collective": -1,
            "last_completed_collective": completed.get(g.name, -1),
        }
        for g in mine
        if g.name in operation_id
    }
    latest = {g.name: style.name(g, 1 << 30) for g in mine}
    config = {
        latest[g.name]: {"name": latest[g.name], "desc": style.describes(g), "ranks": str(list(g.ranks))} for g in mine
    }
    if backend == "gloo":
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9" if backend == "nccl" else "",
        "pg_config": config,
        "pg_status": status,
        "entries": entries[-ring:],
    }


def _entry(engine: Engine, issued: Issued, pg_id: int, op_id: int, rng: random.Random, done: bool) -> dict[str, Any]:
    return _entry_of(issued, engine.program.backend, engine.program.mesh.world, pg_id, op_id, rng, done)


def _entry_of(
    issued: Issued, backend: str, world: int, pg_id: int, op_id: int, rng: random.Random, done: bool
) -> dict[str, Any]:
    call, group = issued.call, issued.call.group
    assert group is not None
    inputs, outputs = shapes(call, world)
    created = START_NS + issued.created * 1_000_000 + rng.randrange(500_000)
    return {
        "pg_id": pg_id,
        "process_group": (group.name, group.description),
        "op_id": op_id,
        "profiling_name": f"{backend}:{call.operation}",
        "time_created_ns": created,
        "input_sizes": inputs,
        "input_dtypes": [call.dtype] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [call.dtype] * len(outputs),
        "state": "completed" if done and backend == "nccl" else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 2_000_000 if done and backend == "nccl" else None,
        "retired": done,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
        "frames": _frames(call.site, call.operation),
        "thread_id": "140000000000000",
        "thread_name": "python",
    }


def _collective(issued: Issued, base: dict[str, Any]) -> list[dict[str, Any]]:
    """A coalesced collective is its members, which never complete, and a closing entry of the same number."""
    if not (issued.call.coalesced and base["profiling_name"].startswith("nccl:")):
        return [base]
    member = {**base, "state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    if issued.call.operation == UNEVEN:
        return [*_uneven(issued.call, member), _closing(issued, base)]
    half = {**member, "input_sizes": [[max(n // 2, 1) for n in size] for size in base["input_sizes"]]}
    half["output_sizes"] = [[max(n // 2, 1) for n in size] for size in base["output_sizes"]]
    if issued.call.members == "odd":
        half["input_sizes"] = [[n + 1 for n in size] for size in half["input_sizes"]]
        half["output_sizes"] = [[n + 1 for n in size] for size in half["output_sizes"]]
    members = [half, member] if issued.call.members == "swapped" else [member, half]
    return [*members, _closing(issued, base)]


def _uneven(call: Call, member: dict[str, Any]) -> list[dict[str, Any]]:
    """A gather of uneven parts: a broadcast of each member's part."""
    assert call.group is not None
    sizes = [call.numel + 8 * place for place in range(len(call.group.ranks))]
    if call.members == "odd":
        sizes[len(sizes) // 2] += 1
    if call.members == "swapped":
        sizes[:2] = sizes[1::-1]
    return [
        {**member, "profiling_name": "nccl:_broadcast_oop", "input_sizes": [[size]], "output_sizes": [[size]]}
        for size in sizes
    ]


def beside(rank: int, world: int, backend: str, ended: int, waits: bool, rng: random.Random) -> list[dict[str, Any]]:
    """What a second thread of a rank has recorded in a group of its own: `ended` calls, and one that waits."""
    site = Site("report", 31, "/app/metrics.py")
    group = Group("900", "metrics", tuple(range(world)))
    entries = []
    for index in range(ended + waits):
        issued = Issued(Call("collective", site, group, "all_reduce", 16), index, index + 1, [], 3 * index)
        done = index < ended
        entry = _entry_of(issued, backend, world, 900, index + 1, rng, done)
        numbers = {"collective_seq_id": index + 1, "p2p_seq_id": 0}
        below = [
            {"name": name, "filename": _THREADING, "line": 9} for name in ("run", "_bootstrap_inner", "_bootstrap")
        ]
        entry["frames"] = [*entry["frames"][:3], *below]
        entries.append({**entry, **numbers, "thread_id": f"14000000{rank:04}", "thread_name": "metrics"})
    return entries


def _closing(issued: Issued, base: dict[str, Any]) -> dict[str, Any]:
    empty: list[Any] = []
    sizes = {"input_sizes": empty, "output_sizes": empty, "input_dtypes": empty, "output_dtypes": empty}
    frames = _frames(issued.call.site, "_coalescing_manager")
    return {**base, **sizes, "profiling_name": "nccl:coalesced", "frames": frames}


def _members(issued: Issued, base: dict[str, Any], rank: int, style: Style) -> list[dict[str, Any]]:
    """P2P entries: a single one completes; members of a batch never do, the closing `coalesced` entry does."""
    batched = issued.call.batched
    members = []
    for direction, peer, k in issued.pairs:
        source = "?" if style.anonymous else peer
        arrow = f"send {rank}->{peer}" if direction == "send" else f"recv {rank}<-{source}"
        member = {**base, "profiling_name": f"nccl:{arrow}", "is_p2p": True}
        member["frames"] = _frames(issued.call.site, f"i{direction}")
        if issued.call.sizes:
            member["input_sizes"] = member["output_sizes"] = [[issued.size_of(direction, peer, k)]]
        if batched:
            member |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
        members.append(member)
    if batched:
        members.append(_closing(issued, base))
    return members


_STALLED = {
    # where -> (innermost frames above the user's line, state, wchan, cpu grows, active)
    "user_code": ([], "S", "hrtimer_nanosleep", False, False),
    "lock": ([("wait", "/usr/lib/python3.11/threading.py", 327)], "S", "futex_do_wait", False, False),
    "dataloader": (
        [
            ("poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257),
            ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
            ("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1310),
            ("__next__", f"{TORCH}/utils/data/dataloader.py", 733),
        ],
        "S",
        "do_poll",
        False,
        False,
    ),
    "busy_loop": ([], "R", None, True, True),
    "checkpoint": (
        [("_save", f"{TORCH}/serialization.py", 1196), ("save", f"{TORCH}/serialization.py", 944)],
        "S",
        "pipe_write",
        False,
        False,
    ),
    "filesystem": ([("read_bytes", "/usr/lib/python3.11/pathlib.py", 1050)], "D", "nfs_wait_bit_killable", False, True),
    "socket": (
        [
            ("recv_into", "/usr/lib/python3.11/socket.py", 706),
            ("_read_status", "/usr/lib/python3.11/http/client.py", 279),
        ],
        "S",
        "wait_woken",
        False,
        False,
    ),
    "gil": ([], "S", "hrtimer_nanosleep", False, True),
}


def stalled(where: str) -> tuple[list[tuple[str, str, int]], str, str | None, bool, bool]:
    return _STALLED[where]


def stack(engine: Engine, rank: Rank) -> tuple[list[dict[str, Any]], str, str | None, bool, bool]:
    """Frames of the main thread (innermost first), state letter, wchan, does its CPU grow, does it hold the GIL."""
    if rank.ended == "finished":  # past the program that was simulated: what a job does at its end
        frames = [{"name": "write_report", "filename": "/app/report.py", "line": 12}, *_frames(Site("main", 1), "")[3:]]
        return frames, "S", "do_poll", False, False
    call = (
        rank.blocked_at or engine.program.calls[rank.rank][min(rank.position, len(engine.program.calls[rank.rank]) - 1)]
    )
    user = _frames(call.site, "")[2:]
    if call.kind == "fault" and call.operation == "stuck":
        top, state, wchan, grows, _ = stalled(call.where)
        frames = [{"name": n, "filename": f, "line": line} for n, f, line in top]
        return [*frames, *user], state, wchan, grows, call.where == "gil"
    if call.kind == "fault":
        return user, "T", "do_signal_stop", False, False
    if call.kind == "sync":
        top_frame = {"name": "synchronize", "filename": f"{TORCH}/cuda/__init__.py", "line": 1083}
        return [top_frame, *user], "R", None, True, True
    if call.kind == "wait" or (call.kind == "p2p" and call.operation == RING):
        return user, "S", "futex_do_wait", False, False  # Work.wait is C++: the user's line is innermost
    operation = call.operation if call.kind == "collective" else f"{call.operation}"
    return _frames(call.site, operation), "S", "futex_do_wait", False, False
