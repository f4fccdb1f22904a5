"""From the stop of one user's rank to the message about it, while another user of the node does his worst.

    python tests/bench/bench_bad_neighbour.py [--way floods_records …] [--runs 1] [--before 8] [--slices] [--json FILE]

Needs root, setpriv and a Python that other users may run. The daemon runs as the unit runs it, in its default
configuration, and tells a Slack that is a local server. Many lanes side by side: tests/bench/lanes.py. With --slices
(cgroup version 1) services and users share the cores as under systemd; without, all processes alike. Exit code 0 when
each stop was told within the goal.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from tests.bench import lanes
from tests.bench.slices import Slices, are_possible, slices
from tests.e2e.webhook import Webhook
from tests.integration.node.service import (
    ALICE,
    BOB,
    PRIVILEGED_UNIT,
    UNIT,
    ServiceDaemon,
    UserJob,
    as_user,
    node_folder,
)
from tests.programs.bad_neighbour import WAYS
from tests.programs.everybody import PythonForEverybody, python_for_everybody

PROGRAM = Path(__file__).parents[1] / "programs" / "bad_neighbour.py"
JOB = "alices-job"
ALONE = "nothing"
GOAL_SECONDS = 3.0
LONGEST_SECONDS = 60.0
LONG_ENOUGH_SECONDS = 25.0  # of a run, with its daemon's start


class Told(NamedTuple):
    way: str
    seconds: float | None  # None: nobody was told
    load: float
    said: str


class Neighbour:
    """Another user's program at its worst, until the end of the block."""

    def __init__(self, way: str, python: PythonForEverybody, daemon: ServiceDaemon, pids: list[int]) -> None:
        self._arguments = [
            way, str(daemon.rank_directory), str(daemon.folder / "run" / "control.sock"),
            str(port_of(daemon)), *map(str, pids),
        ]  # fmt: skip
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def __enter__(self) -> "Neighbour":
        if self._arguments[0] == ALONE:
            return self
        command = [*as_user(BOB), *self._python.command, str(PROGRAM), *self._arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(self._python.environment),
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"at it\n"
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


def port_of(daemon: ServiceDaemon) -> int:
    url = daemon.client.page_url()
    assert url is not None
    return int(url.split(":")[2].split("/")[0])


def measure(way: str, python: PythonForEverybody, seconds: float, shares: Slices | None = None) -> Told:
    """One way, once: the other user begins, and `seconds` later a rank is stopped."""
    with Webhook().running() as slack, node_folder() as folder:
        daemon = ServiceDaemon(folder, python, {"slack": {"webhook_url": slack.url}})
        daemon.start()
        try:
            job = UserJob(python, ALICE, JOB, 2, daemon.rank_directory)
            try:
                daemon.until(
                    lambda: any(rank.owner == owner(ALICE) for rank in daemon.ranks(JOB)), "the ranks are seen"
                )
                with Neighbour(way, python, daemon, [job.pid(0), job.pid(1)]) as neighbour:
                    if shares is not None:
                        shares.put_units({UNIT: daemon.pid or 0, PRIVILEGED_UNIT: daemon.side.pid})
                        for process in job.processes:
                            shares.put_user(ALICE, process.pid)
                        if neighbour.pid is not None:
                            shares.put_user(BOB, neighbour.pid)
                    time.sleep(seconds)
                    load, stopped = os.getloadavg()[0], time.monotonic()
                    job.send(1, signal.SIGSTOP)
                    said = wait_for(slack, stopped + LONGEST_SECONDS)
                    took = time.monotonic() - stopped if said else None
            finally:
                job.end()
        finally:
            daemon.stop()
    return Told(way, took, load, said)


def owner(uid: int) -> str:
    return f"uid {uid}"  # users are mere numbers here


def wait_for(slack: Webhook, until: float) -> str:
    """The headline of the message about the stopped rank, "" when none came."""
    seen = 0
    while time.monotonic() < until:
        received = slack.wait(seen + 1, min(1.0, max(until - time.monotonic(), 0)))
        for body in received[seen:]:
            if owner(ALICE) in json.dumps(body) and "process_stopped" in body["text"]:
                return str(body["text"]).splitlines()[0]
        seen = len(received)
    return ""


def main() -> int:
    options = _options()
    python = python_for_everybody()
    if os.geteuid() != 0 or python is None:
        sys.exit("needs root, and a Python and packages that other users may read")
    if options.slices and not are_possible():
        sys.exit("no cgroup of version 1 is to be written here")
    until = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what we have started ends with us
    ways = [way for way in options.way or (ALONE, *WAYS) for _ in range(options.runs)]
    wanted = lanes.part_of(ways, options.lane)
    lines = lanes.Lines(options.lines, wanted)
    told = []
    for way in wanted:
        if time.monotonic() > until - LONG_ENOUGH_SECONDS:
            break
        with slices() if options.slices else contextlib.nullcontext() as shares:
            one = measure(way, python, options.before, shares)
        said = f"{one.way:26} told {show(one.seconds)}, load {one.load:.1f} | {one.said}"
        print(said, flush=True)
        right = one.seconds is not None and one.seconds <= GOAL_SECONDS
        lines.add(way, right=right, said=said, seconds_to_verdict=one.seconds, detail=one._asdict())
        told.append(one)
    if options.json:
        options.json.write_text(json.dumps([one._asdict() for one in told], indent=1))
    known = [one.seconds for one in told if one.seconds is not None]
    late = [one.way for one in told if one.seconds is None or one.seconds > GOAL_SECONDS]
    print(f"\n{len(known)} of {len(wanted)} told, p50 {show(statistics.median(known) if known else None)}, ", end="")
    print(f"max {show(max(known, default=None))}; later than {GOAL_SECONDS:.0f} s: {', '.join(late) or 'none'}")
    return 1 if late or len(told) < len(wanted) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", action="append", choices=[ALONE, *WAYS], help="all of them without it")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--before", type=float, default=8.0, help="seconds that the other user has before the stop")
    parser.add_argument("--slices", action="store_true", help="services and users share the cores as under systemd")
    parser.add_argument("--json", type=Path)
    lanes.add_options(parser)
    return parser.parse_args()


def show(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
