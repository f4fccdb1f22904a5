"""A training job whose ranks each begin a step so long after their last, by clocks of their own: a loader that gives so
many batches a second, an environment that has a rate. One is late once, and stays late: all others wait for it, and no
step is longer than before.

    torchrun --nproc-per-node 4 keeps_a_rate.py --late-rank 2 --late-step 150
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch import nn  # noqa: TID251
from torch.nn.parallel import DistributedDataParallel  # noqa: TID251

# Started by path: the root of the tests is not on it.
sys.path.insert(0, str(Path(__file__).parents[2]))

import stallwatch


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--rate-seconds", type=float, default=0.2, help="from one step's begin to the next one's")
    parser.add_argument("--late-rank", type=int, default=2)
    parser.add_argument("--late-step", type=int, default=150)
    parser.add_argument("--late-seconds", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=240.0)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    beat = stallwatch.attach()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    rank = int(os.environ["RANK"])
    model = DistributedDataParallel(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = next_begin = time.monotonic()
    step, ends = 0, torch.zeros(1)
    while not ends.item():
        time.sleep(max(0.0, next_begin - time.monotonic()))
        if step == chosen.late_step and rank == chosen.late_rank:
            time.sleep(chosen.late_seconds)
        next_begin = max(time.monotonic(), next_begin) + chosen.rate_seconds
        loss = model(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        beat.step()
        step += 1
        if step % 50 == 0:
            ends[:] = float(time.monotonic() - began > chosen.seconds)
            dist.broadcast(ends, 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
