"""Jobs that have not begun to step for long, and are no hangs: they wait, load, or serve.
Started as `training_that_begins_late.py NAME`; see common.py."""

import http.server
import threading

import torch.distributed as dist  # noqa: TID251

from tests.controls.common import QUIET_SECONDS, RANK, busy, main, read_late, situation, train
from tests.controls.rpc import joined, rpc


@situation
def first_call_loads_the_model() -> None:
    """RPC: all ask rank 0 for the model, and a thread of rank 0 makes it."""
    joined()
    rpc.rpc_sync("worker0", busy, (QUIET_SECONDS,))
    train(20)


@situation
def first_call_reads_what_comes_late() -> None:
    """RPC: all ask rank 0, where a thread reads a file from storage that answers late."""
    joined()
    rpc.rpc_sync("worker0", read_late, (QUIET_SECONDS,))
    train(20)


@situation
def serves_nobody_for_a_while() -> None:
    """Rank 0 serves requests, of which none comes; the other workers are in RPC's `shutdown`, where servers stay."""
    joined()
    if RANK == 0:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        threading.Timer(QUIET_SECONDS, server.shutdown).start()
        server.serve_forever()
    rpc.shutdown(timeout=3600)
    train(20)


@situation
def all_serve_nobody_for_a_while() -> None:
    """Every rank is a server of its own that waits for requests."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Timer(QUIET_SECONDS, server.shutdown).start()
    server.serve_forever()
    train(20)


@situation
def rank_0_prepares_before_the_first_step() -> None:
    """Rank 0 makes the data before the first step, the others are in a barrier."""
    if RANK == 0:
        busy(QUIET_SECONDS)
    dist.barrier()
    train(20)


if __name__ == "__main__":
    main()
