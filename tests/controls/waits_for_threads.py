"""One rank waits for a thread of its own that works, or with a time-out. Started as `waits_for_threads.py NAME`."""

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.controls.common import compute, main, one_rank_waits


@one_rank_waits
def prefetcher_downloads(seconds: float) -> None:
    """The training thread waits in a queue for its prefetching thread, which waits for the network."""
    batches: queue.Queue[bytes] = queue.Queue(2)
    threading.Thread(target=lambda: batches.put(_receive_late(seconds)), daemon=True).start()
    batches.get()


def _receive_late(seconds: float) -> bytes:
    near, far = socket.socketpair()
    if seconds < 1000:
        threading.Timer(seconds, far.sendall, (b"batch",)).start()
    else:
        _KEPT.append(far)
    return near.recv(5)


_KEPT: list[socket.socket] = []


@one_rank_waits
def prefetcher_tokenises(seconds: float) -> None:
    """The same, and that thread computes."""
    batches: queue.Queue[int] = queue.Queue(2)

    def tokenise() -> None:
        compute(seconds)
        batches.put(1)

    threading.Thread(target=tokenise, daemon=True).start()
    batches.get()


@one_rank_waits
def pool_of_threads_works(seconds: float) -> None:
    """The training thread waits for the result of a thread that computes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(compute, seconds).result()


@one_rank_waits
def waits_with_a_time_out(seconds: float) -> None:
    """A batch that must be there within a minute, or the loop goes on without it."""
    threading.Event().wait(timeout=seconds)


if __name__ == "__main__":
    main()
