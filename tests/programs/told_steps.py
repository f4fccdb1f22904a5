"""Trains when it is told to, and says what the steps took: `told_steps.py FOLDER MODEL`, MODEL cpu, light or
transformer.

It reads how many steps to take from the FIFO `FOLDER/told-RANK`, and writes a JSON line to `FOLDER/took` for each of
these blocks: rank, steps, seconds, seconds of processor, and how many of these the threads took that the hook started.
0 steps end it. Two such jobs, one with a hook and one without, take turns on a machine (tests/bench/bench_training.py).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch import Tensor, nn  # noqa: TID251
from torch.nn.parallel import DistributedDataParallel  # noqa: TID251

import stallwatch

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH, HEADS, LAYERS, BATCH, TOKENS = 2048, 16, 8, 8, 1024  # some 50 ms a step on an H200


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def processor_seconds(thread: str) -> float:
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def transformer() -> Callable[[], None]:
    """Return one step of a bf16 transformer under DDP, on the GPU of this rank; it ends when the device is done."""
    device = torch.device("cuda", RANK % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if torch.cuda.device_count() < WORLD:
        os.environ["NCCL_HOSTID"] = f"node{RANK}"  # else NCCL refuses two ranks on one GPU
    dist.init_process_group("nccl", device_id=device)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(BATCH, TOKENS, WIDTH, device=device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return step


def small(multiplications: int = 6, seconds: float = 0.0) -> Callable[[], None]:
    """Return one step of some 20 ms of processor, a sleep, and a collective over gloo."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weight, gradient = torch.randn(512, 512), torch.ones(1 << 14)

    def step() -> None:
        value = weight
        for _ in range(multiplications):
            value = (value @ weight).tanh()
        time.sleep(seconds)
        dist.all_reduce(gradient)
        gradient.div_(WORLD)

    return step


def light() -> Callable[[], None]:
    """Return one step of some 50 ms, of which little is of processor: many ranks on few cores."""
    return small(multiplications=1, seconds=0.05)


def keep_to_own_cores() -> None:
    """Run on three cores that no other rank here has, where there are so many. A job that gets others than the one it
    is compared with is faster or slower by 2.6 % (seen on 32 cores, over 20 s, from one second to the next)."""
    cores = sorted(os.sched_getaffinity(0))[RANK * 3 : RANK * 3 + 3]
    if len(os.sched_getaffinity(0)) > WORLD * 3:
        os.sched_setaffinity(0, cores)


def main() -> None:
    folder = Path(sys.argv[1])
    keep_to_own_cores()
    before = threads()
    beat = stallwatch.attach()
    of_hook = threads() - before
    step = {"transformer": transformer, "light": light, "cpu": small}[sys.argv[2]]()
    for _ in range(5):
        step()
    with (folder / f"told-{RANK}").open() as told, (folder / "took").open("w") as took:
        print(json.dumps({"rank": RANK, "threads": len(of_hook)}), file=took, flush=True)
        for line in told:
            steps = int(line)
            if not steps:
                break
            hook = sum(map(processor_seconds, of_hook))
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
                beat.step()
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            hook = sum(map(processor_seconds, of_hook)) - hook
            answer = {"rank": RANK, "steps": steps, "seconds": seconds, "cpu": cpu, "hook": hook}
            print(json.dumps(answer), file=took, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
