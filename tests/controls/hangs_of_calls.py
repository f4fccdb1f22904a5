"""Real hangs whose waits look otherwise: works that are polled, futures, event loops, functional collectives, meshes,
pipelines, groups made anew; and hooks that are late, partial or used otherwise. Started as `hangs_of_calls.py NAME`.
What must be said is in the decorator; see common.py."""

import asyncio
import os
import sys
import threading
import time
from contextlib import nullcontext
from datetime import timedelta

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

# Attached by hand later, or not at all: `attach()` of common.py is turned off.
_UNHOOKED = {"hook_comes_late": "0123", "culprit_has_no_hook": "2", "rank_0_alone_has_a_hook": "123"}
if os.environ["RANK"] in _UNHOOKED.get(sys.argv[1], ""):
    os.environ["STALLWATCH_DISABLE"] = "1"

import stallwatch  # noqa: E402
from tests.controls.common import (  # noqa: E402
    BACKEND,
    DEVICE,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    step,
    synchronize,
    train,
)

_STUCK = threading.Event()


def _gradient() -> torch.Tensor:
    return torch.ones(1024, device=DEVICE)


@hang(culprits=(2,), where=("lock",))
def others_poll_their_work() -> None:
    """The others ask again and again whether their asynchronous reduction has ended."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    work = dist.all_reduce(_gradient(), async_op=True)
    assert work is not None
    while not work.is_completed():
        time.sleep(0.01)
    train(60)


@hang(culprits=(2,), where=("lock",))
def others_wait_for_a_future() -> None:
    """The others wait for the future of their reduction, as a hook of DDP's buckets does."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    work = dist.all_reduce(_gradient(), async_op=True)
    assert work is not None
    work.get_future().wait()
    train(60)


@hang(culprits=(2,), where=("lock",))
def others_await_in_an_event_loop() -> None:
    """The others' main thread turns an event loop, and a thread of its executor stands in the reduction."""

    async def reduce() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: dist.all_reduce(_gradient()))

    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    asyncio.run(reduce())
    train(60)


@hang(culprits=(2,), where=("lock",))
def functional_collectives() -> None:
    """torch's functional collectives, as compiled code and DTensor use them: the others stand in `wait_tensor`."""
    from torch.distributed import _functional_collectives as functional  # noqa: TID251

    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if RANK == 2 and number == WARM_UP:
            _STUCK.wait()  # here
        functional.wait_tensor(functional.all_reduce(_gradient(), "sum", list(range(WORLD))))
        beat.step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def one_waits_later_than_it_trains() -> None:
    """Rank 2 left a reduction out that the others made asynchronously and wait for steps later."""
    works = []
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if not (RANK == 2 and number == WARM_UP):
            works.append(dist.all_reduce(_gradient(), async_op=True))
        if number % 4 == 3:
            for work in works:
                assert work is not None
                work.wait()
            works.clear()
            dist.barrier()
        beat.step()


@hang(causes=("not_entered", "collective_mismatch"), culprits=(2,))
def one_never_leaves_no_sync() -> None:
    """Rank 2 believes that it still accumulates: DDP's no_sync for ever, and it counts its steps on."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for number in range(100_000):
        time.sleep(STEP_SECONDS)
        forgets = RANK == 2 and number >= WARM_UP
        with model.no_sync() if forgets or number % 4 < 3 else nullcontext():
            model(torch.randn(4, 32, device=DEVICE)).sum().backward()
        beat.step()


@hang(causes=("not_entered", "group_order", "collective_mismatch"), culprits=(1,), by_stacks=("undecided",))
def one_takes_the_other_dimension_of_its_mesh() -> None:
    """A mesh of two by two: rank 1 reduces its loss over data-parallel peers, the others over tensor-parallel ones. Two
    steps later all four stand at one line."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251

    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("data", "tensor"))
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        for name in ("tensor", "data"):
            dist.all_reduce(_gradient(), group=mesh.get_group(name))
        if number == WARM_UP:
            dist.all_reduce(_gradient(), group=mesh.get_group("data" if RANK == 1 else "tensor"))
        beat.step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(1,))
def one_keeps_its_shard() -> None:
    """DTensor: the others redistribute to whole copies, rank 1 keeps its shard."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: TID251

    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    train(WARM_UP)
    mine = DTensor.from_local(torch.ones(64, 64, device=DEVICE), mesh, [Shard(0)], run_check=False)
    if RANK != 1:
        mine = mine.redistribute(mesh, [Replicate()])
    mine.to_local().sum().item()
    train(60)


@hang(culprits=(3,), where=("lock",))
def stage_of_a_schedule_stands() -> None:
    """torch's own pipeline schedule (GPipe): the last stage is stuck in its forward pass."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: TID251

    class Layer(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(32, 32)
            self.number = 0

        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            self.number += 1
            if RANK == 3 and self.number == 4 * WARM_UP:
                _STUCK.wait()  # here
            time.sleep(0.005)
            return self.linear(activation)  # type: ignore[no-any-return,unused-ignore]

    batch = torch.randn(16, 32, device=DEVICE)
    stage = PipelineStage(Layer().to(DEVICE), RANK, WORLD, DEVICE, input_args=batch[:4])
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).pow(2).mean())
    for _ in range(WARM_UP + 60):
        if RANK == 0:
            schedule.step(batch)
        elif RANK == WORLD - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        beat.step()


@hang(causes=("not_entered", "init_missing"), culprits=(3,))
def groups_are_made_anew_without_one() -> None:
    """All destroy their groups after a failure and meet again, with a time-out of 80 s; rank 3 is stuck between."""
    train(WARM_UP)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 3)
    if RANK == 3:
        _STUCK.wait()  # here
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=80))
    train(60)


@hang(causes=("collective_mismatch", "rank_raised", "not_entered", "data_exhausted"), culprits=(1,))
def cleans_up_in_a_barrier() -> None:
    """Rank 1 raises, and its `finally` meets the others in a barrier that they never come to."""
    train(WARM_UP)
    try:
        if RANK == 1:
            raise ValueError("label 50257 is out of range")
        train(60)
    finally:
        dist.barrier()


@hang(causes=("not_entered", "rank_raised"), culprits=(2,))
def raises_while_a_pool_shuts_down() -> None:
    """Rank 2's exception leaves a `with` of a pool of threads, whose task never ends."""
    from concurrent.futures import ThreadPoolExecutor

    train(WARM_UP)
    if RANK == 2:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_STUCK.wait)
            raise ValueError("label 50257 is out of range")
    train(60)


@hang(culprits=(3,), where=("lock",))
def sampler_never_hands_over() -> None:
    """Trainers and samplers: ranks 0 and 1 train on what rank 3 sends, and it is stuck; rank 2 goes on sampling."""
    trainers = dist.new_group([0, 1])
    samples, number = torch.ones(1 << 14, device=DEVICE), 0
    while True:
        time.sleep(STEP_SECONDS)
        number += 1
        if RANK < 2:
            if RANK == 0:
                dist.recv(samples, 3)
            dist.broadcast(samples, 0, group=trainers)
            dist.all_reduce(_gradient(), group=trainers)
        elif RANK == 3:
            if number == WARM_UP:
                _STUCK.wait()  # here
            dist.send(samples, 0)
        synchronize()
        beat.step()


@hang(culprits=(2,), where=("lock",))
def hook_comes_late() -> None:
    """The hook is attached once training runs."""
    train(40)
    del os.environ["STALLWATCH_DISABLE"]
    late = stallwatch.attach()
    for number in range(WARM_UP + 60):
        if RANK == 2 and number == WARM_UP:
            _STUCK.wait()  # here
        step()
        late.step()


@stands(where=("lock",))
def culprit_has_no_hook() -> None:
    """Rank 2 is started by another script, without the hook, and stands."""
    _STUCK.wait()  # here


@stands(where=("lock",))
def rank_0_alone_has_a_hook() -> None:
    """`if rank == 0: attach()`; rank 2 stands."""
    _STUCK.wait()  # here


@hang(culprits=(2,), where=("lock",))
def rank_0_alone_counts_steps() -> None:
    """All attach, and only rank 0 calls `step()`; rank 2 stands."""
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if RANK == 2 and number == WARM_UP:
            _STUCK.wait()  # here
        dist.all_reduce(_gradient())
        if RANK == 0:
            beat.step()


@hang(culprits=(2,), where=("lock",))
def phase_is_never_left() -> None:
    """A phase was entered by hand and never left: training goes on in it, until rank 2 stands."""
    train(20)
    beat.phase("evaluation").__enter__()
    train(2 * WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


@hang(culprits=(2,), where=("lock",))
def after_pauses_that_ended() -> None:
    """Rank 2 pauses three times at the place where at last it stands: its pauses are a habit by then."""
    train(WARM_UP)
    for pause in (7.0, 7.0, 7.0, 1e6):
        if RANK == 2:
            _STUCK.wait(pause)  # here
        train(30)


@hang(culprits=(2,), where=("lock",))
def in_steps_of_all_lengths() -> None:
    """Steps of a heavy tail, from a twentieth of a second to four, before rank 2 stands."""
    for number in range(60):
        step(4.0 if number % 20 == 19 else 0.05 * (1 + number % 7))
    if RANK == 2:
        _STUCK.wait()  # here
    step()


@hang(culprits=(2,), where=("lock",))
def in_its_second_life() -> None:
    """Every rank replaced its own program by `exec` (a new configuration), and trains; rank 2 stands soon after."""
    train(20)
    if os.environ.get("CONTROL_LIFE") != "2":
        dist.barrier()
        port = str(int(os.environ["MASTER_PORT"]) + 5)
        dist.destroy_process_group()
        environment = {**os.environ, "CONTROL_LIFE": "2", "MASTER_PORT": port}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


if __name__ == "__main__":
    main()
