"""A synchronous job over several nodes, each seen by a detection of its own: what each says, and what all say together.

python -m tests.unit.fleet.paces --nodes 16 --per-node 8 --slow 37 [--whole-node] [--seconds 200]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.detectors.node_pace import NodePace, paces
from stallwatch.detectors.slow import searched_share
from stallwatch.fleet.pace_verdict import PaceVerdict, judge_pace
from stallwatch.model.snapshot import NodeSnapshot
from tests.replay.stragglers import Job, play

SHARE = searched_share(Config().slow)
EVERY = 10


class SlowNode(Job):
    """All ranks of the node of `slow_rank` are slow: each of them sees its node's others wait as long as it does."""

    per_node: ClassVar[int] = 2

    def is_slow(self, rank: int, now: float) -> bool:
        return now >= self.onset_seconds and rank // self.per_node == self.slow_rank // self.per_node


def of_node(shot: NodeSnapshot, node: int, per_node: int, skew_ns: int) -> NodeSnapshot:
    """What one node sees of it, by a clock of its own."""
    mine = range(node * per_node, (node + 1) * per_node)
    samples = tuple(one for one in shot.ranks if one.rank in mine)
    return msgspec.structs.replace(shot, ranks=samples, node=f"node{node}", wall_ns=shot.wall_ns + skew_ns)


def together(
    job: Job, per_node: int, seconds: float, seed: int = 3, said: Callable[[int, str], bool] = lambda second, node: True
) -> Iterator[tuple[int, PaceVerdict, Mapping[str, Detected]]]:
    """Yield every ten seconds what all nodes together say, and what each found by itself. `said`: whether a node's word
    arrives."""
    nodes = job.ranks // per_node
    detection = Detection(Config())
    states = [DetectionState() for _ in range(nodes)]
    verdict, standing, alone = PaceVerdict(), dict[str, NodePace](), dict[str, Detected]()
    for second, shot in enumerate(play(job, seconds, seed), 1):
        for node in range(nodes):
            states[node], alone[f"node{node}"] = detection.step(
                states[node], of_node(shot, node, per_node, node * 10**11)
            )
        if second % EVERY == 0:
            for node in range(nodes):
                if said(second, f"node{node}"):
                    standing |= {f"node{node}": pace for pace in paces(states[node]).values()}
            verdict = judge_pace(standing, SHARE, verdict)
            yield second, verdict, alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--slow", type=int, default=37)
    parser.add_argument("--slowdown", type=float, default=0.3)
    parser.add_argument("--seconds", type=int, default=200)
    parser.add_argument("--onset", type=float, default=60.0)
    parser.add_argument("--backend", choices=("gloo", "nccl", "nccl ahead"), default="gloo")
    parser.add_argument("--whole-node", action="store_true")
    parser.add_argument("--by", choices=("sleep", "nothing", "pipeline", "experts", "data loader"), default="sleep")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--design", choices=("even", "experts", "routed", "lengths", "wanders"), default="even")
    options = parser.parse_args()
    size = options.nodes * options.per_node
    SlowNode.per_node = options.per_node
    kind = SlowNode if options.whole_node else Job
    job = kind(options.by, size, options.slowdown, options.slow, options.onset, options.backend, design=options.design)
    began = time.perf_counter()
    for second, verdict, alone in together(job, options.per_node, options.seconds, options.seed):
        here = {node: [f.ranks for f in one.findings if f.detector == "slow"] for node, one in alone.items()}
        print(second, verdict.ranks, verdict.stage, verdict.reason, {n: f for n, f in here.items() if f}, flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
