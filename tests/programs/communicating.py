"""Communicates all the time, and notes for how long its threads stood still: `communicating.py FOLDER SECONDS [WAYS]`.

Each rank writes gaps-RANK.jsonl: [seconds of CLOCK_MONOTONIC at which it began, its length, "thread" | "step"]. A
thread that wakes a thousand times a second notes when it did not, which is a pause of the process or somebody who held
the GIL; every step is noted, and one that is longer than usual is a pause of any rank. WAYS: "pause" has rank 0 stand
still for some seconds now and then, so that it is looked at and goes on. COMMUNICATING_BACKEND is gloo, or nccl, where
ranks may share a GPU.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

import stallwatch

LEAST_SECONDS = 0.02
TICK_SECONDS = 0.001
PAUSE_EVERY_SECONDS, PAUSE_SECONDS = 20.0, 9.0
BACKEND = os.environ.get("COMMUNICATING_BACKEND", "gloo")

gaps: list[tuple[float, float, str]] = []


def watch() -> None:
    before = time.monotonic()
    while True:
        time.sleep(TICK_SECONDS)
        now = time.monotonic()
        if now - before > LEAST_SECONDS:
            gaps.append((before, now - before, "thread"))
        before = now


def main() -> None:
    folder, seconds, ways = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    beat = stallwatch.attach()
    torch.set_num_threads(1)
    rank, device = int(os.environ["RANK"]), torch.device("cpu")
    if BACKEND == "nccl":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
            os.environ["NCCL_HOSTID"] = f"node{rank}"  # else NCCL refuses two ranks on one GPU
    dist.init_process_group(BACKEND)
    gradient = torch.ones(1 << 14, device=device)
    threading.Thread(target=watch, name="watch", daemon=True).start()
    until, pause_at = time.monotonic() + seconds, time.monotonic() + PAUSE_EVERY_SECONDS
    go_on = torch.ones(1, device=device)
    while go_on.item():
        began = time.monotonic()
        time.sleep(0.005)
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())
        if BACKEND == "nccl":
            torch.cuda.synchronize()
        beat.step()
        gaps.append((began, time.monotonic() - began, "step"))
        if rank == 0 and "pause" in ways and time.monotonic() > pause_at:
            time.sleep(PAUSE_SECONDS)
            pause_at = time.monotonic() + PAUSE_EVERY_SECONDS
        go_on.fill_(float(time.monotonic() < until))
        dist.broadcast(go_on, 0)
    (folder / f"gaps-{rank}.jsonl").write_text("".join(json.dumps(gap) + "\n" for gap in gaps))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
