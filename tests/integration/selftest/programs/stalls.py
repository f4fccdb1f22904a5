"""A rank program: the middle rank goes to wait for something of its own instead of its third all_reduce."""

import os
import threading
from typing import Any

import torch.distributed as dist  # noqa: TID251  a rank

from stallwatch.selftest import rank

_calls = 0
_all_reduce = dist.all_reduce


def wait_for_a_reply() -> None:
    threading.Event().wait()


def all_reduce(*arguments: Any, **named: Any) -> Any:
    global _calls
    _calls += 1
    if _calls == 3 and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) // 2:
        wait_for_a_reply()
    return _all_reduce(*arguments, **named)


dist.all_reduce = all_reduce
os._exit(rank.main())
