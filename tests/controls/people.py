"""Healthy jobs that wait for a person, or that a person disturbs. See common.py. Started as `people.py NAME`."""

import pdb
import queue
import threading
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import DEVICE, QUIET_SECONDS, RANK, main, situation, step, train


@situation
def asks_a_person() -> None:
    """Rank 0 asks a question in its terminal; the others wait for the answer. The runner answers late."""
    train(80)
    if RANK == 0:
        input("overwrite the run? [y] ")
    dist.broadcast(torch.zeros(1, device=DEVICE), 0)
    train(60)


@situation
def breaks_into_pdb() -> None:
    """Rank 0 stands at a breakpoint in its terminal; the others wait in their collective. The runner goes on late."""
    train(80)
    if RANK == 0:
        pdb.Pdb(nosigint=True, readrc=False).set_trace()
    train(60)


@situation
def suspended_in_terminal() -> None:
    """Ctrl-Z in the terminal, and `fg` later; the runner types them."""
    for _ in range(600):
        step()


@situation
def idle_between_cells() -> None:
    """A notebook over several ranks: each waits for its next cell, nothing is outstanding."""
    cells: queue.Queue[int] = queue.Queue()
    threading.Thread(target=_type, args=(cells,), daemon=True).start()
    while steps := cells.get():
        train(steps)


def _type(cells: "queue.Queue[int]") -> None:
    for steps in (80, 60, 60):
        cells.put(steps)
        time.sleep(QUIET_SECONDS)
    cells.put(0)


if __name__ == "__main__":
    main()
