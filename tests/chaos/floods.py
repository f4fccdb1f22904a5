"""Much of everything: records, ranks, starts, kernel messages."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from stallwatch.hook import layout
from tests.builders.records import record_bytes, start_ticks_of
from tests.chaos.node import Node, RankProcesses, told_after

STALE = 10_000
RANKS = 64
_SOMEBODY = 65_001
_WATCH_SECONDS = 15.0
_LASTS_A_SECOND = (
    "import stallwatch, time",
    "beat = stallwatch.attach()",
    "print('ready', flush=True)",
    "for _ in range(20):",
    "    beat.step()",
    "    time.sleep(0.05)",
    "raise SystemExit(3)",
)


def stale_records(node: Node) -> Iterator[str]:
    """Of processes that are gone: those of a user who has many cost the others nothing. (A new rank of that user waits
    for its turn, some minutes at most; as an ordinary user all are ours.)"""
    for number in range(STALE):
        pid = 4_000_000 + number  # beyond pid_max as it is set anywhere
        path = node.ranks_directory / layout.record_name(number % 64, pid)
        path.write_bytes(record_bytes(number % 64, pid, 12345, epoch=f"old{number // 64}"))
        if os.geteuid() == 0:
            os.chown(path, _SOMEBODY, _SOMEBODY)
    yield f"{STALE} records of processes that are gone; told after {told_after(node, 'beside', 'killed'):.1f} s"
    assert node.client.healthy()
    left = sum(1 for entry in os.scandir(node.ranks_directory) if entry.name.endswith(".beat"))
    yield f"{left} are left"


def fast_ranks(node: Node) -> Iterator[str]:
    """64 ranks at 100 steps a second, whose records are written as their hooks would, four times a second."""
    sleepers = [subprocess.Popen(["sleep", "3600"], start_new_session=True) for _ in range(RANKS)]
    try:
        paths = [node.ranks_directory / layout.record_name(rank, one.pid) for rank, one in enumerate(sleepers)]
        ticks = [start_ticks_of(one.pid) for one in sleepers]
        stuck = threading.Event()
        over = threading.Event()

        def write() -> None:
            step = 0
            while not over.is_set():
                step += 0 if stuck.is_set() else 25
                for rank, (path, one) in enumerate(zip(paths, sleepers, strict=True)):
                    words = {"world_size": RANKS, "step": step, "pulse_count": step}
                    path.write_bytes(record_bytes(rank, one.pid, ticks[rank], epoch="fast", **words))
                over.wait(0.25)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            node.until(lambda: len(node.ranks("job")) == RANKS, "64 ranks are seen")
            before = sum(process.cpu_times().user for process in node.daemon.processes() + node.side.processes())
            began = time.monotonic()
            yield f"told after {told_after(node, 'beside', 'killed'):.1f} s beside {RANKS} ranks at 100 steps/s"
            while time.monotonic() < began + _WATCH_SECONDS:
                time.sleep(0.2)
            node.until(lambda: {rank.state for rank in node.ranks("job")} == {"stepping"}, "they step")
            after = sum(process.cpu_times().user for process in node.daemon.processes() + node.side.processes())
            yield f"{(after - before) / (time.monotonic() - began):.1%} of a core (a capture and a verdict with it)"
            assert not [one for one in node.told() if one.job == "job"], "told of a job that steps"
        finally:
            over.set()
            writer.join()
    finally:
        for one in sleepers:
            one.kill()
            one.wait()


def restarting_rank(node: Node) -> Iterator[str]:
    """A rank that ends and is started again each second, beside a job that is well."""
    program = "\n".join(_LASTS_A_SECOND)
    starts = 0
    until = time.monotonic() + _WATCH_SECONDS
    while time.monotonic() < until:
        job = RankProcesses(node, "restarts", 1, ("-c", program))
        starts += 1
        time.sleep(1.0)
        job.end()
    yield f"{starts} starts; told after {told_after(node, 'beside', 'killed'):.1f} s beside them"
    told = [one for one in node.told() if one.job == "restarts"]
    assert len(told) <= 3, f"told {len(told)} times of one rank that restarts"
    yield f"told {len(told)} times of the rank that restarts"


def reused_pids(node: Node) -> Iterator[str]:
    """Records of ranks that are gone, whose pids other processes have now."""
    job = RankProcesses(node, "owner", 2)
    node.jobs.append(job)
    for number in range(500):
        pid = (os.getpid(), os.getppid(), job.processes[0].pid)[number % 3]
        path = node.ranks_directory / layout.record_name(number % 8, pid)
        path.write_bytes(record_bytes(number % 8, pid, 1, epoch=f"reused{number}", world_size=8))
    yield f"told after {told_after(node, 'beside', 'stopped'):.1f} s beside 500 records of reused pids"
    node.until(lambda: {rank.state for rank in node.ranks("owner")} == {"stepping"}, "the owner's ranks step")
    named = [one for one in node.told() if one.job not in ("beside",)]
    assert not named, f"told of {named}"


def kernel_log(node: Node) -> Iterator[str]:
    """The reader of the kernel's log, given as much of it as it is ever given: the loop's other sources go on."""
    program = (
        "import time\nfrom stallwatch.formats import kernel_log\n"
        "line = b'6,1,100,-;NVRM: Xid (PCI:0000:61:00): 79, pid=1, name=python, GPU has fallen off the bus.\\n'\n"
        "began = time.process_time(); found = kernel_log.parse(line * 100_000)\n"
        "print(len(found.events), time.process_time() - began)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    count, seconds = said.stdout.split()
    yield f"100,000 lines: {count} events in {float(seconds):.1f} s of processor time"
    yield f"told after {told_after(node, 'beside', 'killed'):.1f} s"
