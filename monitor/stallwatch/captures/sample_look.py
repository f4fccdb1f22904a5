"""A sample of a job that moves, in its own process on the privileged side: `python -m stallwatch.captures.sample_look
ORDER`. Asks every rank for its recorder's entries, without call sites, at one moment, and sends them
(captures.sample_child)."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from stallwatch.captures.channel import Progress, Sending
from stallwatch.captures.flight_recorder import RecorderRequest
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.spec import CaptureState, Order
from stallwatch.errors import StallwatchError
from stallwatch.hook.layout import LayoutError
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node.heartbeat_file import read_heartbeat
from stallwatch.node.known_ranks import read_known
from stallwatch.node.no_network import give_up_network

_RUNGS = ("entries",)  # without stacks: 28 ms of the GIL for 2,000 entries under NCCL, not seconds
_LATEST_NS = 60_000_000_000  # a moment further away is nobody's


def take(targets: list[RankSample], at_ns: int, seconds: float, sending: Sending) -> None:
    """Send what each rank answers, and which answered, as `missing` of a state."""
    silent: dict[int, None] = {sample.rank: None for sample in targets}

    def ask(sample: RankSample) -> None:
        if not isinstance(sample.heartbeat, Known):
            return
        folder = Folder(sending, sample.rank, 1)
        request = RecorderRequest(sample, folder, seconds, at_ns)
        with contextlib.suppress(OSError):
            request.ask(_RUNGS)
            if not request.missing:
                silent.pop(sample.rank, None)
        # After the dump: its steps then cover the entries.
        with contextlib.suppress(OSError, NotCaptured, LayoutError, StallwatchError):
            folder.write_json("heartbeat.json", read_heartbeat(Path(sample.heartbeat.value.path)))

    threads = [threading.Thread(target=ask, args=(sample,), daemon=True) for sample in targets]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds + 1
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    missing = tuple(f"rank {rank}: no recorder" for rank in list(silent))
    sending.send(Progress(CaptureState(done=True, evidence_complete=not missing, missing=missing)))


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    give_up_network()
    known = read_known(order.known)
    targets = [known[rank] for rank in dict.fromkeys(order.ranks) if rank in known]
    at_ns = min(order.at_ns, time.monotonic_ns() + _LATEST_NS)
    take(targets, at_ns, order.sample_seconds / 2, Sending(sys.stdin.fileno(), sys.stdout.fileno()))
    os._exit(0)  # a thread may sit in the kernel


if __name__ == "__main__":
    main()
