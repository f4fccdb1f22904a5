"""Merging the stacks of 16,384 ranks: `python -m pytest tests/bench/bench_stacktree.py -s`, or run as a script."""

import functools
import gc
import random
import time
from collections.abc import Callable

import pytest

from stallwatch.bundle.stack_tree import merge, render
from stallwatch.model.evidence import CodeFrame
from tests.bench.figures import Figure, beside_yardstick, median_of

RANKS = 16_384
DEPTH = 40


def stacks(different: int) -> dict[int, tuple[CodeFrame, ...]]:
    """`different` distinct stacks of 40 frames that share their outer half, spread over the ranks."""
    draw = random.Random(0)
    outer = [CodeFrame(f"call_{depth}", "/opt/job/package/module.py", depth) for depth in range(DEPTH // 2)]
    kinds = []
    for kind in range(different):
        lines = [draw.randrange(500) for _ in range(DEPTH - DEPTH // 2)]
        inner = [CodeFrame(f"inner_{kind}_{d}", "/opt/job/package/other.py", line) for d, line in enumerate(lines)]
        kinds.append(tuple(reversed(outer + inner)))
    return {rank: kinds[draw.randrange(different)] for rank in range(RANKS)}


def seconds(different: int, clock: Callable[[], float] = time.perf_counter) -> float:
    ready = stacks(different)
    gc.collect()
    begin = clock()
    tree = merge(ready)
    took = clock() - begin
    assert tree is not None
    assert tree.count == RANKS
    render(tree)
    return took


def figures(quick: bool) -> list[Figure]:
    """All stacks different, and four kinds of them; in seconds of processor, of which one is used."""
    found = []
    for label, different in (("all different", RANKS), ("4 kinds", 4)):
        took, ratios = beside_yardstick(functools.partial(seconds, different, time.process_time), 3 if quick else 9)
        found.append(Figure(f"merged, {label}", took, "s", detail="of processor"))
        found.append(median_of(f"merged, {label}, in yardsticks", ratios, "×"))
    return found


@pytest.mark.bench
@pytest.mark.parametrize("different", [4, 200, RANKS])
def test_merge_grows_no_faster_than_the_stacks(different: int) -> None:
    took = seconds(different)
    print(f"{RANKS} ranks of {DEPTH} frames, {different} distinct stacks: {took:.2f} s")


if __name__ == "__main__":
    for kinds_ in (4, 200, RANKS):
        print(f"{RANKS} ranks of {DEPTH} frames, {kinds_} distinct stacks: {seconds(kinds_):.2f} s")
