"""Situations that are no hang, in which ranks have unequal work by their program: loops of few lines on one rank alone,
experts, logs, generators, trials, pipelines. Started as `training_by_design.py NAME`. See common.py."""

import asyncio
import json
import os
import socket
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    BACKEND,
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    main,
    one_rank_waits,
    situation,
    step,
    train,
)

_HOT = 2  # the expert that is chosen more often
_LATENT = 64
_LONG_SECONDS = 3 * min(QUIET_SECONDS, 18.0)  # for longer than it takes to tell that a rank is slow


class _Layers(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(_LATENT, _LATENT) for _ in range(depth))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = torch.relu(layer(values))
        return values


@one_rank_waits
def validates_in_few_lines(seconds: float) -> None:
    """A stage validates by itself, in the few lines of its model: two looks are at the same ones by chance."""
    model, until = _Layers(14), time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(512, _LATENT))


@one_rank_waits
def captures_its_batch_sizes(seconds: float) -> None:
    """As a server of inference records its graphs: rank 1 has many more batch sizes than the others, and runs its model
    with each for a while, from the largest to the smallest."""
    model = _Layers(4)
    with torch.inference_mode():
        for size in range(64, 0, -2):
            until = time.monotonic() + seconds / 32
            while time.monotonic() < until:
                torch.nn.functional.normalize(model(torch.randn(size, _LATENT)))


@situation
def one_expert_is_chosen_more_often() -> None:
    """A mixture of experts whose router sends one of them four times as many tokens, from the first step."""
    expert = torch.nn.Sequential(torch.nn.Linear(_LATENT, 4 * _LATENT), torch.nn.Linear(4 * _LATENT, _LATENT)).to(
        DEVICE
    )
    optimizer = torch.optim.SGD(expert.parameters(), 1e-3)
    until = time.monotonic() + _LONG_SECONDS
    chosen = torch.ones(WORLD)
    chosen[_HOT] = 4.0
    while _goes_on(until):
        sent = torch.distributions.Multinomial(512, chosen).sample().long().to(DEVICE)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        tokens = torch.empty(int(received.sum()), _LATENT, device=DEVICE)
        dist.all_to_all_single(tokens, torch.randn(512, _LATENT, device=DEVICE), received.tolist(), sent.tolist())
        time.sleep(0.00005 * len(tokens))
        answers = expert(tokens)
        answers.square().mean().backward()
        dist.all_to_all_single(
            torch.empty(512, _LATENT, device=DEVICE), answers.detach(), sent.tolist(), received.tolist()
        )
        optimizer.step()
        optimizer.zero_grad()
        beat.step()
    _stand_if_for_ever(_HOT)


@situation
def rank_0_logs_each_step() -> None:
    """Rank 0 writes images into its log in each step, from the first on; that takes it nearly half as long again."""
    JOB_FOLDER.mkdir(exist_ok=True)
    until = time.monotonic() + _LONG_SECONDS
    with (JOB_FOLDER / "log.jsonl").open("w") as log:
        while _goes_on(until):
            step(2 * STEP_SECONDS)
            written = time.monotonic() + 0.8 * STEP_SECONDS
            while RANK == 0 and time.monotonic() < written:
                log.write(json.dumps(torch.randn(40).tolist()) + "\n")
            log.flush()
        _stand_if_for_ever(0)


@situation
def one_generates_for_the_others() -> None:
    """Rank 1 generates samples and puts them into the store, the others take them from there and train; weights go
    back by a broadcast now and then. Once each sample takes rank 1 long; the twin: it stands at a pipe."""
    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.Linear(_LATENT, _LATENT)
    train(WARM_UP)
    for turn in range(3):
        for number in range(20):
            name = f"sample/{turn}/{number}"
            if RANK == 1:
                if turn == 1:
                    _generate(model, QUIET_SECONDS / 20)
                store.set(name, str(number))
            else:
                store.get(name)
                model(torch.randn(8, _LATENT)).square().mean().backward()
            beat.step()
        for parameter in model.parameters():
            weights = parameter.detach().to(DEVICE)
            dist.broadcast(weights, 0)
    train(60)


def _generate(model: torch.nn.Module, seconds: float) -> None:
    _stand_if_for_ever(1)
    until, values = time.monotonic() + seconds, torch.randn(8, _LATENT)
    while time.monotonic() < until:
        values = torch.tanh(model(values))


@situation
def trials_are_pruned() -> None:
    """A search for hyperparameters: rank 0 chooses the next trial (eigenvalues, in native code, once for long) and
    tells the others; a trial that is no good is broken off on all ranks in mid-epoch."""
    train(WARM_UP)
    for trial in range(4):
        chosen: list[float | None] = [None]
        if RANK == 0:
            until = time.monotonic() + (QUIET_SECONDS if trial == 1 else 1.0)
            while time.monotonic() < until:
                values = torch.randn(300, 300)
                torch.linalg.eigh(values @ values.T)
            chosen = [0.1 * trial]
        dist.broadcast_object_list(chosen, 0)
        for number in range(80):
            step()
            if number % 20 == 19 and not _agreed(trial % 2 == 0 or number < 40):
                break


@situation
def configurations_follow_each_other() -> None:
    """A sweep in one process: for each configuration ranks build their data, rank 0 for longest, and meet in groups of
    their own, which they destroy in the end."""
    train(WARM_UP)
    dist.barrier()
    dist.destroy_process_group()
    JOB_FOLDER.mkdir(exist_ok=True)
    for number in range(3):
        until, data = time.monotonic() + (QUIET_SECONDS if number == 1 and RANK == 0 else 2.0), torch.randn(4096)
        while time.monotonic() < until:
            data = data.sort().values + torch.randn(4096)
        where = f"file://{JOB_FOLDER}/configuration-{number}"
        dist.init_process_group(BACKEND, init_method=where, rank=RANK, world_size=WORLD)
        train(60)
        dist.barrier()
        if number < 2:
            dist.destroy_process_group()


@situation
def rollouts_come_back_one_after_the_other() -> None:
    """Every rank awaits its samples in an event loop, all at once; rank 1's come long after the others'."""
    train(WARM_UP)
    asyncio.run(_rollout(QUIET_SECONDS if RANK == 1 else min(QUIET_SECONDS, 18.0)))
    asyncio.run(_rollout(min(QUIET_SECONDS, 18.0) if RANK == 1 else 0.1))
    train(60)


async def _rollout(seconds: float) -> None:
    """A word each second from an engine, which is a process of its own."""
    ours, theirs = socket.socketpair()
    engine = os.fork()
    if engine == 0:
        for _ in range(int(min(seconds, FOR_EVER))):
            time.sleep(1.0)
            if seconds < FOR_EVER:
                theirs.send(b"word\n")
        os._exit(0)
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    while await reader.readline():
        pass
    writer.close()
    os.waitpid(engine, 0)


@situation
def storage_of_one_is_slow_beside_training() -> None:
    """torch.distributed.checkpoint.async_save again and again: one rank's storage takes long, and a thread of each
    other rank waits for it in a group of its own, while all train on."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251

    class Storage(checkpoint.FileSystemWriter):  # type: ignore[misc,unused-ignore]
        def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
            if RANK == 1:
                time.sleep(min(QUIET_SECONDS, FOR_EVER))
            return super().write_data(plan, planner)

    group = dist.new_group(backend="gloo")
    train(WARM_UP)
    for number in range(3):
        state, writer = {"weight": torch.ones(64)}, Storage(JOB_FOLDER / f"slow-{number}")
        saving = checkpoint.async_save(state, storage_writer=writer, process_group=group)
        until = time.monotonic() + min(QUIET_SECONDS, 18.0)
        while _goes_on(until):
            step()
        saving.result()


def _stand_if_for_ever(rank: int) -> None:
    """The twin: this rank stands at a pipe, into which nobody writes."""
    if QUIET_SECONDS >= FOR_EVER and rank == RANK:
        reads, _ = os.pipe()
        os.read(reads, 1)


def _goes_on(until: float) -> bool:
    return _agreed(time.monotonic() < until)


def _agreed(answer: bool) -> bool:
    """What rank 0 says."""
    told = torch.tensor(float(answer), device=DEVICE)
    dist.broadcast(told, 0)
    return bool(told.item())


if __name__ == "__main__":
    main()
