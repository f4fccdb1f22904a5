"""What the demo's programs share: a small data-parallel training job, of which one rank may have bad luck.

A program is an ordinary training script. Its arguments are this module's, the mark file is how it tells the demo, and
nobody else, when the fault struck.
"""

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import stallwatch
from stallwatch.demo.draw import drawn_rank

FEATURES = 64
BATCH = 32
MARK_VARIABLE = "STALLWATCH_DEMO_MARK"
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)  # prctl(2)


class Beat(Protocol):
    """What `stallwatch.attach()` returns."""

    def step(self) -> None:
        """Tell that one step of training is over."""
        ...

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context in which the rank is in the phase of this name."""
        ...


class Training:
    """One rank of the job: model, optimizer, step counter."""

    def __init__(self, options: argparse.Namespace, beat: Beat) -> None:
        self.beat = beat
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.fault_step: int = options.fault_step
        self.last_step: int = options.steps
        self.step_seconds: float = options.step_seconds
        self.is_drawn = self.rank == drawn_rank(options.seed, self.world_size)
        self.folder = Path(tempfile.mkdtemp(prefix=f"rank-{self.rank}-"))
        self.backend, self.device = choose_device(options.backend)

    def start(self) -> None:
        """Join the job and build the model: every rank the same."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group(self.backend)
        layers = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
        on_gpu = [self.device] if self.device.type == "cuda" else None
        self.model = DistributedDataParallel(layers.to(self.device), device_ids=on_gpu)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def steps(self) -> Iterator[int]:
        """Step numbers, each of them `step_seconds` longer than this model takes: the work of a larger one. (Steps that
        each rank begins by its own clock keep a rank late that was late once, and all others wait for it.)"""
        for step in range(self.last_step):
            yield step
            time.sleep(self.step_seconds)
            self.beat.step()

    def batch(self) -> Tensor:
        """Return random features of one batch, of shape (BATCH, FEATURES), on the CPU."""
        return torch.randn(BATCH, FEATURES)

    def learn(self, batch: Tensor) -> Tensor:
        """One forward, backward and optimizer step; return this rank's loss, on its device."""
        loss = self.model(batch.to(self.device)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()  # as a progress bar does: the host waits for the device once a step
        return loss.detach()

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context in which the hook knows this rank to be in the phase of this name."""
        return self.beat.phase(name)

    def strikes(self, step: int) -> bool:
        """True once, on the rank that was drawn: the fault begins now, and the mark file says when."""
        if step != self.fault_step or not self.is_drawn:
            return False
        self.mark()
        return True

    def mark(self) -> None:
        """Note this moment as the fault's, for the demo to measure from; the latest mark counts."""
        if path := os.environ.get(MARK_VARIABLE):
            with open(path, "a", encoding="ascii") as file:
                file.write(f"{time.monotonic_ns()}\n")

    def finish(self) -> None:
        """Wait for all ranks and leave the job in order."""
        dist.barrier()
        dist.destroy_process_group()


def choose_device(backend: str | None) -> tuple[str, torch.device]:
    """Return backend and device of this rank: a GPU of its own with NCCL where the node has enough, else gloo; ranks
    that ask for NCCL share GPUs where there are fewer."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if backend is None:
        backend = "nccl" if torch.cuda.device_count() >= local_world_size else "gloo"
    if backend != "nccl":
        return backend, torch.device("cpu")
    gpus = torch.cuda.device_count()
    if 0 < gpus < local_world_size:
        # NCCL refuses two ranks on one GPU of a host: each is a host of its own then, over sockets (NCCL 2.28).
        os.environ["NCCL_HOSTID"] = f"rank-{local_rank}"
    device = torch.device("cuda", local_rank % max(gpus, 1))
    torch.cuda.set_device(device)
    return backend, device


def parse_options() -> argparse.Namespace:
    """Return what every program of the demo is told on its command line: steps, the step of the fault, seed,
    backend."""
    parser = argparse.ArgumentParser(description="A training program of stallwatch's demo.")
    parser.add_argument("--steps", type=int, default=100_000, help="steps until the program ends by itself")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="of each step, beside its own")
    parser.add_argument("--fault-step", type=int, default=40, help="healthy steps before the fault")
    parser.add_argument("--seed", type=int, default=0, help="chooses the rank that the fault strikes")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where every rank has a GPU")
    return parser.parse_args()


def allow_stack_reading() -> None:
    """Where Yama lets a process be read by its ancestors alone, let the demo's daemon, which is none, read this one.

    An installed daemon has CAP_SYS_PTRACE and needs no such leave.
    """
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def run(train: Callable[[Training], None], prepare: Callable[[Training], None] | None = None) -> None:
    """Run one program: attach the hook, then `prepare`, then join the job and `train`."""
    allow_stack_reading()
    beat = stallwatch.attach()
    training = Training(parse_options(), beat)
    if prepare:
        prepare(training)
    training.start()
    train(training)
    training.finish()
