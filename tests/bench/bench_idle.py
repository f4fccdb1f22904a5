"""What the daemon costs a node: CPU and memory of it and all its children, without a job and with one of 4 ranks.

    python tests/bench/bench_idle.py [--seconds 60] [--ranks 4]

CPU is what the kernel charged (ticks of every process, ended ones included), so that a busy machine changes little.
Exit code 1 when it is above the goal: 1 % of a core.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

# Started as a script: the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))

from stallwatch.demo.daemon_child import DaemonChild

GOAL = 0.01  # of a core
SETTLE_SECONDS = 15.0  # imports, the first search for ranks
STEPS = Path(__file__).parents[1] / "programs" / "steps.py"


class Share(NamedTuple):
    """CPU as a share of one core, and how much of it children that ended meanwhile took."""

    total: float
    ended: float
    by_process: dict[str, float]


def processes(daemon: psutil.Process) -> list[psutil.Process]:
    return [daemon, *daemon.children(recursive=True)]


def name(process: psutil.Process) -> str:
    """ "daemon", "sensors.child ranks": what it is, without its options."""
    words = process.cmdline()
    at = next((number for number, word in enumerate(words) if word.startswith("stallwatch.")), None)
    if at is None:  # a py-spy, a reader of evidence
        return Path(words[0]).name if words else "?"
    return " ".join([words[at].removeprefix("stallwatch."), *words[at + 1 :][:1]])


def spent(daemon: psutil.Process) -> tuple[dict[tuple[int, str], float], float]:
    """CPU seconds by process, and of the daemon's children that have ended."""
    times = {}
    for process in processes(daemon):
        with process.oneshot():
            used = process.cpu_times()
            times[process.pid, name(process)] = used.user + used.system
    gone = daemon.cpu_times()
    return times, gone.children_user + gone.children_system


def measure(daemon: psutil.Process, seconds: float) -> Share:
    before, gone_before = spent(daemon)
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    after, gone_after = spent(daemon)
    by_process = {key[1]: (used - before.get(key, 0.0)) / elapsed for key, used in after.items()}
    ended = max(0.0, gone_after - gone_before - sum(before[key] for key in before.keys() - after.keys())) / elapsed
    return Share(sum(by_process.values()) + ended, ended, by_process)


def report(label: str, share: Share, daemon: psutil.Process) -> bool:
    print(f"{label}: {share.total:.2%} of a core (children that ended: {share.ended:.2%}); goal {GOAL:.0%}")
    total = 0
    for process in processes(daemon):
        memory = process.memory_full_info()
        total += memory.pss
        print(
            f"  {name(process):24} CPU {share.by_process.get(name(process), 0.0):6.2%}  "
            f"RSS {memory.rss / 2**20:5.1f} MiB  PSS {memory.pss / 2**20:5.1f} MiB"
        )
    print(f"  {'together':24} CPU {share.total:6.2%}  {'':13}  PSS {total / 2**20:5.1f} MiB")
    return share.total < GOAL


def start_ranks(directory: Path, count: int) -> list[subprocess.Popen[bytes]]:
    ranks = []
    for rank in range(count):
        environment = {
            "STALLWATCH_DIR": str(directory),
            "STALLWATCH_JOB": "bench-idle",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "PYTHONPATH": str(Path(__file__).parents[2] / "monitor"),
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(STEPS)],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    return ranks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        daemon = DaemonChild(Path(folder), os.environ)
        daemon.start()
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            assert daemon.pid is not None
            process = psutil.Process(daemon.pid)
            time.sleep(SETTLE_SECONDS)
            good = report("no job of ours", measure(process, options.seconds), process)
            ranks = start_ranks(daemon.rank_directory, options.ranks)
            time.sleep(SETTLE_SECONDS)
            seen = {rank.state for rank in daemon.client.ranks().ranks if rank.training_job == "bench-idle"}
            good &= report(f"{options.ranks} ranks, {seen}", measure(process, options.seconds), process)
            strangers = sum(rank.training_job != "bench-idle" for rank in daemon.client.ranks().ranks)
            if strangers or daemon.client.incidents().incidents:
                print(f"  (with {strangers} ranks of other jobs on this machine, and incidents: not idle)")
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGKILL)
                rank.wait()
            daemon.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
