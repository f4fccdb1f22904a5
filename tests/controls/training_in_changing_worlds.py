"""Situations that are no hang, in which members of a job come late, leave, meet anew, are suspended in turn, or have a
part of their own: a server of parameters, an evaluator. Started as `training_in_changing_worlds.py NAME`. See
common.py."""

import os
import signal
import sys
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
    before_rendezvous,
    comes_late,
    compute,
    goes_on_as_before,
    main,
    situation,
    train,
)

_PAUSE = min(QUIET_SECONDS, FOR_EVER)


@situation
def master_arrives_last() -> None:
    """Rank 0, in whose process the store is, comes last, as its node pulls its image: the others call its port again
    and again."""
    train(60)


@before_rendezvous("master_arrives_last")
def _master_comes_late() -> None:
    if RANK == 0:
        time.sleep(_PAUSE)


def _meet_anew(members: int) -> None:
    """The first so many ranks leave their group, and meet by a file."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    JOB_FOLDER.mkdir(exist_ok=True)
    store = dist.FileStore(str(JOB_FOLDER / f"store-{members}"), members)
    dist.init_process_group(BACKEND, store=store, rank=RANK, world_size=members)


@situation
def shrinks_to_three() -> None:
    """A world that shrinks without a restart: rank 3's machine is taken back, it leaves in order; the others meet anew
    as three, and some steps later rank 0 evaluates."""
    train(WARM_UP)
    if RANK == WORLD - 1:
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(0)
    _meet_anew(WORLD - 1)
    goes_on_as_before()
    train(60)
    if RANK == 0:
        compute(QUIET_SECONDS)
    train(500)  # until a job that ends would have ended


@situation
def starts_small_and_grows() -> None:
    """Half of the ranks train at once; the others read their weights before they come, and all meet anew."""
    train(60)


@before_rendezvous("starts_small_and_grows")
def _half_begins() -> None:
    if RANK >= WORLD // 2:
        compute(QUIET_SECONDS)
        comes_late()
        return
    _meet_anew(WORLD // 2)
    train(WARM_UP)
    dist.barrier()
    dist.destroy_process_group()


@situation
def evaluator_watches_a_folder() -> None:
    """Rank 3 is an evaluator: it looks for checkpoints, scores each, and joins no collective of training. At the end
    rank 0 waits for its last score, which takes long."""
    trainers = dist.new_group(list(range(WORLD - 1)))
    dist.barrier()
    last = (WARM_UP + 60) // 20 - 1
    for number in range(last + 1):
        checkpoint, score = JOB_FOLDER / f"checkpoint-{number}", JOB_FOLDER / f"score-{number}"
        if RANK == WORLD - 1:
            while not checkpoint.exists():
                time.sleep(0.5)
            compute(QUIET_SECONDS if number == last else 0.3)
            score.touch()
            continue
        for _ in range(20):
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(1024, device=DEVICE), group=trainers)
            beat.step()
        if RANK == 0:
            JOB_FOLDER.mkdir(exist_ok=True)
            checkpoint.touch()
    if RANK == 0:
        while not score.exists():
            time.sleep(0.5)


@situation
def workers_send_gradients_to_a_server() -> None:
    """Asynchronous SGD: rank 0 takes the gradient of whoever has one, and answers with new parameters. Workers are of
    different pace, and rank 2 has one very long batch."""
    rounds, gradient = WARM_UP // 2, torch.ones(1024, device=DEVICE)
    for number in range(rounds * (WORLD - 1) if RANK == 0 else rounds):
        if RANK == 0:
            sender = dist.recv(gradient)
            assert sender is not None
            dist.send(gradient, sender)
        else:
            time.sleep(STEP_SECONDS * RANK)
            if RANK == 2 and number == rounds - 10:
                compute(QUIET_SECONDS)
            dist.send(gradient, 0)
            dist.recv(gradient, 0)
        beat.step()


@situation
def gang_is_scheduled() -> None:
    """A scheduler gives the node to two jobs in turns: all ranks of this one are stopped for a while, and go on."""
    train(WARM_UP)
    pids = [torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(pids, torch.tensor([os.getpid()], device=DEVICE))
    gang = [int(pid.item()) for pid in pids]  # a forked process cannot read from a GPU
    if RANK == 0 and os.fork() == 0:
        for _ in range(3):
            for number, seconds in ((signal.SIGSTOP, _PAUSE / 3), (signal.SIGCONT, 2.0)):
                for pid in gang:
                    os.kill(pid, number)
                time.sleep(seconds)
        os._exit(0)
    train(200)


@situation
def lives_overlap() -> None:
    """A requeued job begins while the one before still writes its last checkpoint, under the same name; soon rank 1 of
    the new one evaluates. The runner starts the second."""
    train(WARM_UP + 100)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "1":
        if RANK == 1:
            compute(QUIET_SECONDS)
        train(60)
        return
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        compute(min(QUIET_SECONDS, 30.0))


if __name__ == "__main__":
    main()
