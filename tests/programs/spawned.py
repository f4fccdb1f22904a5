"""Ranks started by torch.multiprocessing, which no launcher's variables and no line of ours reach."""

import sys
import time

import torch.distributed as dist  # noqa: TID251
import torch.multiprocessing as mp  # noqa: TID251


def work(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.barrier()
    time.sleep(600)


if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[1]),), nprocs=2)
