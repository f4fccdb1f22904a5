"""`analyze` of a large training log beside `grep -c`: `python -m tests.bench.bench_text [--megabytes 1000]`.

The log is of one rank: steps of several frameworks, warnings, a traceback at the end. Both read it once before, so that
it is in the page cache, and then in turns; each counts by its least.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.bench_reader import Cost, run
from tests.bench.figures import Figure

ROUNDS = 3
_LINES = (
    "2026-11-29 08:{m:02}:{s:02},{n:03} INFO trainer step {n} loss={x:.4f} lr=3.0e-04 grad_norm={y:.3f} tokens/s=41232",
    "[rank3]:I1129 08:{m:02}:{s:02}.{n:06} 4711 torch/distributed/fsdp/_runtime_utils.py:512] prefetch of unit {n}",
    "{{'loss': {x:.4f}, 'grad_norm': {y:.3f}, 'learning_rate': 0.0003, 'epoch': {z:.2f}}}",
    " iteration {n:8}/ 500000 | consumed samples: {n:12} | elapsed time per iteration (ms): {y:.1f} | lm loss: {x:E} |",
    "/app/data.py:88: UserWarning: document {n} is longer than the context and was cut",
    "node03:4711:4890 [3] NCCL INFO Channel {s:02}/0 : 3[3] -> 4[4] via P2P/CUMEM",
)
_END = """\
Traceback (most recent call last):
  File "/app/train.py", line 233, in <module>
    main()
  File "/app/train.py", line 111, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB
"""


def lines(seed: int = 1) -> Iterator[str]:
    """Yield lines for ever."""
    draw = random.Random(seed)
    while True:
        values = {"n": draw.randrange(500_000), "m": draw.randrange(60), "s": draw.randrange(60)}
        values |= {key: draw.random() * 10 for key in "xyz"}  # type: ignore[misc]
        yield draw.choice(_LINES).format(**values) + "\n"


def write(path: Path, megabytes: int) -> None:
    """Write a log of so many megabytes: blocks of 8 MB, drawn once and repeated in an order by lot."""
    blocks = []
    for seed in range(4):
        made, some = 0, []
        for line in lines(seed):
            some.append(line)
            made += len(line)
            if made > 8_000_000:
                break
        blocks.append("".join(some).encode())
    draw = random.Random(5)
    with path.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(draw.choice(blocks))
        file.write(_END.encode())


def measure(megabytes: int) -> tuple[Cost, Cost]:
    """Return what `analyze` cost, and `grep -c Traceback`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-3.log"
        write(path, megabytes)
        grep = shutil.which("grep") or "/bin/grep"
        ours = [sys.executable, "-m", "stallwatch.cli", "analyze", "--json", str(path)]
        theirs = [grep, "-c", "Traceback", str(path)]
        run(theirs)
        rounds = [(run(ours), run(theirs)) for _ in range(ROUNDS)]
    least = (min(side, key=lambda cost: cost.processor_seconds) for side in zip(*rounds, strict=True))
    ours_cost, grep_cost = least
    assert ours_cost.exit_code == 10, f"no verdict: exit code {ours_cost.exit_code}"
    return ours_cost, grep_cost


def figures(quick: bool) -> list[Figure]:
    """A log of 1 GB."""
    megabytes = 100 if quick else 1000
    ours, grep = measure(megabytes)
    cpu = f"{ours.processor_seconds:.2f} s against {grep.processor_seconds:.2f} s of processor"
    return [
        Figure("time", ours.seconds, "s", detail=f"{megabytes / ours.seconds:.0f} MB/s"),
        Figure("against grep -c", ours.processor_seconds / max(0.01, grep.processor_seconds), "×", detail=cpu),
        Figure("largest process", ours.resident_megabytes, "MB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    for cost in measure(parser.parse_args().megabytes):
        print(cost)


if __name__ == "__main__":
    main()
