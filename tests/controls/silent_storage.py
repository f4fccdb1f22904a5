"""A storage of torch.distributed.checkpoint that answers late, or never; imported by the process that writes, too."""

import os
import tempfile
import threading
import time
from pathlib import Path

import torch.distributed.checkpoint as checkpoint  # noqa: TID251


class SilentStorage(checkpoint.FileSystemWriter):  # type: ignore[misc,unused-ignore]
    """Reads a shard whose end comes after so many seconds, and then writes."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self.seconds = seconds

    def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
        if self.seconds:
            shard = Path(tempfile.mkdtemp(), "shard.bin")
            os.mkfifo(shard)
            threading.Thread(target=_end, args=(shard, self.seconds), daemon=True).start()
            shard.read_bytes()
        return super().write_data(plan, planner)


def _end(shard: Path, seconds: float) -> None:
    with shard.open("wb"):
        time.sleep(seconds)
