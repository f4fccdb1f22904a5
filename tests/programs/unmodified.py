"""A training script that knows nothing of stallwatch: rank 1 reads a shard that does not come, while others reduce."""

import os
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
import torch.utils.data  # noqa: TID251


class Shards:
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        return index


def read_shard() -> None:
    time.sleep(600)


def main() -> None:
    dist.init_process_group("gloo")
    loader = iter(torch.utils.data.DataLoader(Shards(), num_workers=1, batch_size=8))
    for step in range(20):
        next(loader)
        dist.all_reduce(torch.ones(4))
        if step == 10 and dist.get_rank() == 1:
            read_shard()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
