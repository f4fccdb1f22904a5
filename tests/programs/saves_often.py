"""A rank over gloo of which rank 1 writes a file at each step, for ever: `saves_often.py STORE FOLDER`."""

import os
import site
import sys
import time
from pathlib import Path

site.main()  # started without, as light programs are

import torch  # noqa: E402, TID251
import torch.distributed as dist  # noqa: E402, TID251

import stallwatch  # noqa: E402

store, folder = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
beat = stallwatch.attach()
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
print("ready" if beat else "not attached", flush=True)
while True:
    beat.step()
    time.sleep(0.05)
    if rank == 1:
        Path(folder, os.environ["STALLWATCH_JOB"]).write_bytes(bytes(4096))
    dist.all_reduce(torch.ones(1))
