"""Real hangs of what stands around a rank: terminals, drivers, a sampler's server, clients that are drawn,
counters that never come to their number. Started as `hangs_on_shared_nodes.py NAME`. What must be said is in the
decorator; see common.py."""

import os
import pty
import queue
import termios
import threading
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import DEVICE, RANK, STEP_SECONDS, WARM_UP, WORLD, beat, hang, main, stands, step, train


@stands(where=("user_code", "filesystem", "lock", "socket", "unknown"))
def terminal_is_paused() -> None:
    """Ctrl-S in the terminal to which the log goes: a line waits for Ctrl-Q."""
    _, ours = pty.openpty()
    termios.tcflow(ours, termios.TCOOFF)
    while True:
        os.write(ours, b"loss 0.5\n")  # here


@hang(culprits=(2,), where=("lock",))
def driver_never_takes_a_result() -> None:
    """Ray Train: the loop runs in a thread of an actor; the driver of rank 2 has died, and its report stays in the
    queue of one. The actor's main thread waits for its next call."""
    reports: queue.Queue[int] = queue.Queue(1)

    def loop() -> None:
        for number in range(WARM_UP + 60):
            step()
            if RANK == 2 and number >= WARM_UP:
                reports.put(number)  # here

    thread = threading.Thread(target=loop, name="train-loop")
    thread.start()
    if RANK == 2:
        threading.Event().wait()
    thread.join()


@hang(causes=("not_entered", "rank_raised"), culprits=(3,))
def sampler_s_updater_has_died() -> None:
    """Rank 3 is a sampler: a thread of it takes new weights, and raised; its main thread serves requests, of which none
    comes any more. The trainers broadcast."""
    requests: queue.Queue[int] = queue.Queue()

    def update() -> None:
        for number in range(WARM_UP + 60):
            step()
            if RANK == 3 and number == WARM_UP:
                raise ValueError("weights of another model")

    if RANK < 3:
        update()
        return
    threading.Thread(target=update, daemon=True).start()
    requests.get()  # here


@hang(causes=("p2p_unmatched", "group_order"), culprits=(0, 2))
def one_draws_other_clients() -> None:
    """Federated learning: the server's draw and rank 2's differ, by a seed. The server receives from rank 2, which
    waits for the new model; which of the two is wrong nothing tells."""
    train(WARM_UP)
    for number in range(30):
        drawn = (1, 2) if number % 2 else (1, 3)
        update = torch.ones(64, device=DEVICE)
        if RANK == 2 and number == 11:
            drawn = (1, 3)
        if RANK in drawn:
            dist.send(update, 0)
        if RANK == 0:
            for client in drawn:
                dist.recv(update, client)
        dist.broadcast(update, src=0)
        time.sleep(STEP_SECONDS)
        beat.step()


@hang(causes=("undecided", "not_entered", "init_missing"), culprits=())
def counter_expects_one_more() -> None:
    """A barrier by the store's counter, told a world of five: all four wait, and nobody is to blame."""
    train(WARM_UP)
    store = dist.distributed_c10d._get_default_store()
    if store.add("arrived", 1) == WORLD + 1:
        store.set("all arrived", "1")
    store.wait(["all arrived"])
    train(60)


if __name__ == "__main__":
    main()
