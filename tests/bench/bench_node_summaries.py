"""A verdict over 16,384 ranks from the summaries of 2,048 nodes:

    python tests/bench/bench_node_summaries.py [--ranks 16384] [--calls 2000]

Every rank has the world, a tensor- and a data-parallel group, and `--calls` calls in its ring; one has not entered.
Prints the bytes of all summaries, seconds (of processor) to decode and to judge, and the largest resident size of the
process that does it: as the daemon's own child does, which collects no garbage (fleet.judge_child). Nothing is
asserted.
"""

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
from array import array
from pathlib import Path

import msgspec

from stallwatch.diagnosis.node_summary import NodeSummary, judge_nodes, summarise_node
from stallwatch.model.evidence import Evidence, NodeEvidence, ProcessLook, RankEvidence
from stallwatch.model.summary import Call, Pending, RankSummary, Stream
from tests.bench.figures import Figure, beside_yardstick, median_of

PER_NODE = 8
TIMEOUT_MS = 600_000


def rank_summary(rank: int, world: tuple[int, ...], calls: int, absent: int) -> RankSummary:
    """What the ring of a rank says: tp and dp in turn, the world's at the end; all but one stand in that."""
    first = rank - rank % PER_NODE
    dp = tuple(range(rank % PER_NODE, len(world), PER_NODE))
    groups = (("default_pg", world, 40), ("tp", tuple(range(first, first + PER_NODE)), calls), ("dp", dp, calls // 2))
    streams = []
    for index, (description, ranks, number) in enumerate(groups):
        entered = number if index or rank != absent else number - 1
        done = number if index else number - 1
        streams.append(
            Stream(description, str(index), "nccl", ranks, 1, (array("H", [index]) * entered).tobytes(), done, 0)
        )
    waits = rank != absent
    return RankSummary(
        rank=rank,
        look=2,
        backends=("nccl",),
        calls=tuple(Call(index, "all_reduce", 1000, "Float", "/app/train.py:94 step", "[1000]") for index in range(3)),
        streams=tuple(streams),
        pending=(Pending(1, 0, 0, 0, 40, (), 1, TIMEOUT_MS, seen_before=True, was_first=True),) if waits else (),
        advanced=False,
    )


def write(folder: Path, ranks: int, calls: int, absent: int) -> int:
    world = tuple(range(ranks))
    total = 0
    for node in range(ranks // PER_NODE):
        mine = range(node * PER_NODE, (node + 1) * PER_NODE)
        host = f"node{node:05}"
        evidence = Evidence(
            ranks,
            "nccl",
            tuple(
                RankEvidence(
                    rank,
                    host,
                    1000 + rank,
                    processes=(
                        ProcessLook(
                            source="process-2.json", look=2, pid=1000 + rank, state="S", wchan="futex", cpu_ticks=9
                        ),
                    ),
                    summary=rank_summary(rank, world, calls, absent),
                )
                for rank in mine
            ),
            (NodeEvidence(host, tuple(mine)),),
            (),
            looks=2,
        )
        data = msgspec.msgpack.encode(summarise_node(evidence))
        (folder / host).write_bytes(data)
        total += len(data)
    return total


class Judged(msgspec.Struct, frozen=True):
    """Seconds of processor, and MB of the process that did it."""

    decode_seconds: float
    judge_seconds: float
    megabytes: float
    said: str


def judge(folder: Path) -> Judged:
    began = time.process_time()
    decoder = msgspec.msgpack.Decoder(NodeSummary)
    summaries = [decoder.decode(path.read_bytes()) for path in sorted(folder.iterdir())]
    decoded = time.process_time()
    verdict = judge_nodes(summaries).verdicts[0]
    judged = time.process_time()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    said = f"{verdict.cause} {list(verdict.culprits)} {verdict.confidence}"
    return Judged(decoded - began, judged - decoded, megabytes, said)


def judged_by_a_child(folder: Path) -> Judged:
    """Judge in a process of its own: its peak is not that of writing, which holds one node at a time."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()
        os.write(there, msgspec.json.encode(judge(folder)))
        os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(said, type=Judged)


def figures(quick: bool) -> list[Figure]:
    """16,384 ranks; seconds of processor, of which one is used."""
    judged: list[Judged] = []

    def work() -> float:
        judged.append(judged_by_a_child(Path(name)))
        return judged[-1].decode_seconds + judged[-1].judge_seconds

    with tempfile.TemporaryDirectory() as name:
        ranks = 2048 if quick else 16_384
        mebibytes = write(Path(name), ranks, 2_000, ranks // 2 + 3) / 2**20
        took, ratios = beside_yardstick(work, 3 if quick else 7)
    least = min(judged, key=lambda one: one.decode_seconds + one.judge_seconds)
    detail = (
        f"{ranks} ranks, {mebibytes:.0f} MiB; decoded {least.decode_seconds:.2f} s, judged {least.judge_seconds:.2f} s"
    )
    return [
        Figure("decode and judge", took, "s", detail=detail),
        median_of("decode and judge, in yardsticks", ratios, "×"),
        Figure("largest process", least.megabytes, "MB", detail=least.said),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--calls", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        total = write(Path(name), options.ranks, options.calls, options.ranks // 2 + 3)
        print(f"{options.ranks} ranks, {total / 2**20:.0f} MiB of summaries", flush=True)
        print(judged_by_a_child(Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
