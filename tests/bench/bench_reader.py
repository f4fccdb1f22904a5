"""Reading and judging large sets of dumps beside torch's own analyzer:

    python tests/bench/bench_reader.py [--ranks 512] [--entries 2000] [--growth] [--frames 8] [--no-torch]

Writes dumps as torch does (long texts are not memoised), in which one rank has not entered the last collective, and
prints seconds, processor seconds, and the largest resident size of one process. The goal is a tenth of torchfrtrace's
time and 300 MB a process; nothing is asserted.
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

ABSENT = 3
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


def entry(number: int, rank: int, *, done: bool, frames: int) -> dict[str, Any]:
    created = 1_795_813_306_336_812_003 + number * 1_000_003 + rank
    stack = (STACK * (1 + frames // len(STACK)))[-frames:]
    size = [[1000 * (number % 5 + 1)]]
    return {
        "frames": [
            {"name": name, "filename": unshared(file), "line": line + (number % 5 if name == "_reduce_grad" else 0)}
            for name, file, line in stack
        ],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "140014890811712",
        "collective_seq_id": number + 1,
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


def write_dumps(folder: Path, ranks: int, entries: int, frames: int) -> None:
    folder.mkdir()
    for rank in range(ranks):
        count = entries - (rank == ABSENT)
        dump = {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
            "comm_lib_version": "2.28.9",
            "pg_status": {
                "0": {
                    "last_enqueued_collective": count,
                    "last_started_collective": -1,
                    "last_completed_collective": entries - 1,
                }
            },
            "entries": [entry(number, rank, done=number < entries - 1, frames=frames) for number in range(count)],
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


def measure(scratch: Path, ranks: int, entries: int, frames: int, *, torch: bool) -> None:
    folder = scratch / f"dumps-{ranks}"
    write_dumps(folder, ranks, entries, frames)
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    commands = {"stallwatch": [sys.executable, "-m", "stallwatch.cli", "analyze", "--json", str(folder)]}
    torchfrtrace = Path(sys.executable).with_name("torchfrtrace")
    if torch and torchfrtrace.exists():
        arguments = [str(folder), "--prefix", "nccl_trace_rank_", "-o", str(scratch / "torch.db")]
        commands["torchfrtrace"] = [str(torchfrtrace), *arguments]
    print(f"{ranks} ranks of {entries} entries, {megabytes:.0f} MB on disk")
    costs = {name: run(command) for name, command in commands.items()}
    for name, cost in costs.items():
        print(
            f"  {name:13}{cost.seconds:8.2f} s {cost.processor_seconds:8.2f} s of processor "
            f"{cost.resident_megabytes:8.0f} MB  exit {cost.exit_code}"
        )
    if "torchfrtrace" in costs:
        print(f"  faster by {costs['torchfrtrace'].seconds / costs['stallwatch'].seconds:.1f}")
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=len(STACK))
    parser.add_argument("--growth", action="store_true", help="also an eighth, a quarter and half of the ranks")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for part in (8, 4, 2, 1) if options.growth else (1,):
            measure(Path(scratch), options.ranks // part, options.entries, options.frames, torch=not options.no_torch)


if __name__ == "__main__":
    main()
