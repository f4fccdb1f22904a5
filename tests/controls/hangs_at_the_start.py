"""Real hangs of jobs that have not begun to step, of which nothing tells whose fault they are.
Started as `hangs_at_the_start.py NAME`. What must be said is in the decorator; see common.py."""

import torch  # noqa: TID251

from tests.controls.common import RANK, WORLD, hang, main, train
from tests.controls.rpc import joined, rpc


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _asks_next(x: torch.Tensor, asked: int) -> torch.Tensor:
    """Carried out by the only thread of `asked`; the next one's is busy with just this."""
    return rpc.rpc_sync(f"worker{(asked + 1) % WORLD}", _leaf, (x,))


@hang(causes=("undecided",), culprits=())
def first_calls_go_in_a_circle() -> None:
    """RPC: each rank's first call has its neighbour call the next one, and each has one thread to answer with."""
    joined(threads=1)
    asked = (RANK + 1) % WORLD
    rpc.rpc_sync(f"worker{asked}", _asks_next, (torch.ones(4), asked))
    train(60)


@hang(causes=("undecided",), culprits=())
def one_is_asked_back_at_its_first_call() -> None:
    """RPC: rank 0 asks rank 1, whose only thread asks rank 2, which asks rank 1 back; the others wait in `shutdown`."""
    joined(threads=1)
    if RANK == 0:
        rpc.rpc_sync("worker1", _asks_on, (torch.ones(4),))
    rpc.shutdown(timeout=3600)


def _asks_on(x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("worker2", _asks_back, (x,))


def _asks_back(x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("worker1", _leaf, (x,))


if __name__ == "__main__":
    main()
