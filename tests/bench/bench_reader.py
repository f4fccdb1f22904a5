"""Reading and judging large sets of dumps beside torch's own analyzer:

    python tests/bench/bench_reader.py [--ranks 512] [--entries 2000] [--mesh 8] [--growth] [--frames 8] [--no-torch]

Writes dumps as torch does (long texts are not memoised), in which one rank has not entered the last collective, and
prints seconds, processor seconds, and the largest resident size of one process. All calls are of one group, or, with
--mesh, of three in turn: the world, the tensor-parallel group of 8 neighbours, the data-parallel one across them.
"""

import argparse
import os
import pickle
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# Started as a script: the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.figures import Figure

ABSENT = 3
TP = 8  # ranks of a tensor-parallel group
PACKAGES = "/usr/lib/python3.12/site-packages/torch/"
STACK = [
    ("all_reduce", PACKAGES + "distributed/distributed_c10d.py", 3068),
    ("wrapper", PACKAGES + "distributed/c10d_logger.py", 83),
    ("_reduce_grad", PACKAGES + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", 544),
    ("post_backward", PACKAGES + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", 567),
    ("decorate_context", PACKAGES + "utils/_contextlib.py", 124),
    ("backward", PACKAGES + "autograd/function.py", 317),
    ("main", "/app/train.py", 111),
    ("<module>", "/app/train.py", 233),
]


class Cost(NamedTuple):
    seconds: float
    processor_seconds: float
    resident_megabytes: float
    exit_code: int


def unshared(text: str) -> str:
    """torch's pickler does not memoise long texts: each is written again."""
    return "".join(list(text)) if len(text) > 64 else text


class Group(NamedTuple):
    """A process group that a rank is in."""

    name: str
    description: str
    ranks: list[int]


def groups_of(rank: int, ranks: int, mesh: int) -> list[Group]:
    """The world alone, or a mesh's groups of this rank besides; names are a rank's own, as torch's are."""
    world = Group("0", "default_pg", list(range(ranks)))
    if not mesh:
        return [world]
    first = rank - rank % mesh
    tp = Group("1", "mesh_tp", list(range(first, first + mesh)))
    return [world, tp, Group("2", "mesh_dp", list(range(rank % mesh, ranks, mesh)))]


def entry(number: int, group: Group, seq: int, rank: int, *, done: bool, frames: int) -> dict[str, Any]:
    created = 1_795_813_306_336_812_003 + number * 1_000_003 + rank
    stack = (STACK * (1 + frames // len(STACK)))[-frames:]
    size = [[1000 * (number % 5 + 1)]]
    return {
        "frames": [
            {"name": name, "filename": unshared(file), "line": line + (number % 5 if name == "_reduce_grad" else 0)}
            for name, file, line in stack
        ],
        "record_id": number,
        "pg_id": int(group.name),
        "process_group": (group.name, group.description),
        "thread_name": "python3",
        "thread_id": "140014890811712",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": size,
        "input_dtypes": ["Float"],
        "output_sizes": [list(size[0])],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 500_000 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def write_dumps(folder: Path, ranks: int, entries: int, frames: int, mesh: int = 0) -> None:
    folder.mkdir()
    for rank in range(ranks):
        groups = groups_of(rank, ranks, mesh)
        # A layer's tensor-parallel calls, its gradients across, and now and then something of the whole world.
        turn = (
            [groups[0]] if not mesh else [groups[1], groups[1], groups[2], groups[1], groups[1], groups[2], groups[0]]
        )
        called = dict.fromkeys((group.name for group in groups), 0)
        kept = []
        for number in range(entries):
            group = turn[number % len(turn)] if number < entries - 1 else groups[0]
            if number == entries - 1 and rank == ABSENT:
                break
            called[group.name] += 1
            kept.append(entry(number, group, called[group.name], rank, done=number < entries - 1, frames=frames))
        waits = rank != ABSENT
        dump = {
            "version": "2.10",
            "pg_config": {g.name: {"name": g.name, "desc": g.description, "ranks": str(g.ranks)} for g in groups},
            "comm_lib_version": "2.28.9",
            "pg_status": {
                group.name: {
                    "last_enqueued_collective": called[group.name],
                    "last_started_collective": -1,
                    "last_completed_collective": called[group.name] - (waits and group is groups[0]),
                }
                for group in groups
            },
            "entries": kept,
        }
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))


def run(command: list[str]) -> Cost:
    """Run to the end; the resident size is that of the largest process among it and its children."""
    begin = time.perf_counter()
    pid = os.posix_spawn(
        command[0],
        command,
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)],
    )
    _, status, usage = os.wait4(pid, 0)
    return Cost(
        time.perf_counter() - begin,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        os.waitstatus_to_exitcode(status),
    )


def measure(
    scratch: Path, ranks: int, entries: int, frames: int, *, mesh: int = 0, torch: bool = True
) -> dict[str, Cost]:
    """Write dumps and have both read them, each once; return what each cost."""
    folder = scratch / f"dumps-{ranks}"
    write_dumps(folder, ranks, entries, frames, mesh)
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    commands = {"stallwatch": [sys.executable, "-m", "stallwatch.cli", "analyze", "--json", str(folder)]}
    torchfrtrace = Path(sys.executable).with_name("torchfrtrace")
    if torch and torchfrtrace.exists():
        arguments = [str(folder), "--prefix", "nccl_trace_rank_", "-o", str(scratch / "torch.db")]
        commands["torchfrtrace"] = [str(torchfrtrace), *arguments]
    print(f"{ranks} ranks of {entries} entries, {megabytes:.0f} MB on disk{' (mesh)' if mesh else ''}")
    costs = {name: run(command) for name, command in commands.items()}
    for name, cost in costs.items():
        print(
            f"  {name:13}{cost.seconds:8.2f} s {cost.processor_seconds:8.2f} s of processor "
            f"{cost.resident_megabytes:8.0f} MB  exit {cost.exit_code}",
            flush=True,
        )
    if "torchfrtrace" in costs:
        print(f"  faster by {costs['torchfrtrace'].seconds / costs['stallwatch'].seconds:.1f}")
    shutil.rmtree(folder)
    return costs


def figures(quick: bool) -> list[Figure]:
    """512 ranks × 2,000 entries of one group and of a mesh, and an eighth and a quarter of the latter's ranks."""
    ranks, entries = (64, 500) if quick else (512, 2000)
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        for label, mesh in (("one group", 0), ("mesh", TP)):
            costs = measure(Path(name), ranks, entries, len(STACK), mesh=mesh)
            ours, peer = costs["stallwatch"], costs.get("torchfrtrace")
            assert ours.exit_code == 10, f"no verdict: exit code {ours.exit_code}"
            found += [
                Figure(f"{label}: time", ours.seconds, "s"),
                Figure(f"{label}: processor", ours.processor_seconds, "s"),
                Figure(f"{label}: largest process", ours.resident_megabytes, "MB"),
            ]
            if peer is not None:
                times = f"{ours.seconds:.1f} s against {peer.seconds:.1f} s; it exits with {peer.exit_code}"
                cpu = f"{ours.processor_seconds:.1f} s against {peer.processor_seconds:.1f} s"
                faster, less = peer.seconds / ours.seconds, peer.processor_seconds / ours.processor_seconds
                found.append(Figure(f"{label}: faster than torchfrtrace", faster, "×", detail=times))
                found.append(Figure(f"{label}: less processor than torchfrtrace", less, "×", detail=cpu))
        part = measure(Path(name), ranks // 4, entries, len(STACK), mesh=TP, torch=False)["stallwatch"]
    growth = ours.processor_seconds / part.processor_seconds
    detail = f"{part.processor_seconds:.1f} s of processor for a quarter of the ranks"
    return [*found, Figure("mesh: growth from a quarter of the ranks", growth, "×", detail=detail)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=len(STACK))
    parser.add_argument("--mesh", type=int, default=0, help="ranks of a tensor-parallel group; default: one group")
    parser.add_argument("--growth", action="store_true", help="also an eighth, a quarter and half of the ranks")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for part in (8, 4, 2, 1) if options.growth else (1,):
            ranks = options.ranks // part
            measure(
                Path(scratch), ranks, options.entries, options.frames, mesh=options.mesh, torch=not options.no_torch
            )


if __name__ == "__main__":
    main()
