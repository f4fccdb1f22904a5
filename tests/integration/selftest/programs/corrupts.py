"""A rank program: what rank 1 gets by all_to_all has one wrong element from 4 KiB on."""

import os
from typing import Any

import torch.distributed as dist  # noqa: TID251  a rank

from stallwatch.selftest import rank

_all_to_all_single = dist.all_to_all_single


def all_to_all_single(received: Any, data: Any, *arguments: Any, **named: Any) -> Any:
    work = _all_to_all_single(received, data, *arguments, **named)
    if os.environ["RANK"] == "1" and received.numel() >= 1024:
        received[received.numel() // 2] += 1
    return work


dist.all_to_all_single = all_to_all_single
os._exit(rank.main())
