"""Runs a program with a second thread that meets its peers twice a second in a group of its own, as an asynchronous
checkpoint or a keep-alive does: `beside.py PROGRAM [ARGUMENT …]`, started as a rank."""

import runpy
import sys
import threading
import time
from typing import Any

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

_EVERY_SECONDS = 0.5


def keep_busy(group: dist.ProcessGroup) -> None:
    while True:
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(_EVERY_SECONDS)


def init_process_group(*arguments: Any, **options: Any) -> None:
    _init_process_group(*arguments, **options)
    group = dist.new_group(backend="gloo")
    threading.Thread(target=keep_busy, args=(group,), name="keep-alive", daemon=True).start()


_init_process_group = dist.init_process_group
dist.init_process_group = init_process_group
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
