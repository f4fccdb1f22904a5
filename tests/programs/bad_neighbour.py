"""A user of the node who does his worst in one of several ways, until he is ended.

    python bad_neighbour.py WAY DIRECTORY SOCKET PORT PID… (DIRECTORY: of ranks; PIDs: another user's ranks)

Everything here needs no right that a user of a shared node has not.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stallwatch.hook import layout
from stallwatch.hook.image import encode

STEPS = Path(__file__).with_name("steps.py")
RING = (0,) * layout.RING_SLOTS
VICTIMS_JOB = "alices-job"
MARK = layout.new_mark()  # several of us may run in process namespaces of their own, with the same pids


def record(rank: int, pid: int, job: str = "bobs-job", **words: int) -> bytes:
    """A record that reads well and claims whatever is wanted."""
    now = time.monotonic_ns()
    claimed = {
        "pid": pid,
        "start_ticks": 1,
        "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
        "rank": rank,
        "local_rank": rank,
        "world_size": 8,
        "restart_count": 0,
        "is_child": 0,
        "notify": 1,
        "step": 3,
        "phase_since_ns": 0,
        "pulse_count": 1,
        "pulse_ns": now,
        "dump_started_ns": 0,
        "answered_request": 0,
        "ended": 0,
        "errors": 0,
        "attached_ns": now,
    }
    return encode(claimed | words, RING, (), {"node": "n", "training_job": job, "epoch": "e"})


def ranks(count: int, job: str, world: int = 8, **more: object) -> list["subprocess.Popen[bytes]"]:
    """Real ranks with the hook, not waited for."""
    return [
        subprocess.Popen(
            [sys.executable, STEPS],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "STALLWATCH_JOB": job,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
            },
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more},  # type: ignore[call-overload]
        )
        for rank in range(count)
    ]


def floods_records(directory: Path, *_: object) -> Iterator[None]:
    for number in range(20_000):
        (directory / layout.record_name(number % 64, 10_000 + number)).write_bytes(record(number % 64, 10_000 + number))
        if number % 100 == 0:
            yield
    while True:
        for number in range(20_000):
            with contextlib.suppress(OSError):
                os.utime(directory / layout.record_name(number % 64, 10_000 + number))
            if number % 1000 == 0:
                yield


def names_that_are_no_records(directory: Path, *_: object) -> Iterator[None]:
    """And some that are, of processes that are gone, among them."""
    for number in range(120_000):
        os.close(os.open(directory / f"rank-{number}.x", os.O_CREAT | os.O_WRONLY, 0o600))
        if number % 1000 == 0:
            name = layout.record_name(0, f"{3_000_000 + number}-{layout.new_mark()}")
            (directory / name).write_bytes(record(0, 3_000_000 + number, ended=1, exit_code=0, ended_ns=1))
    while True:
        yield
        time.sleep(0.2)


def sparse_records(directory: Path, *_: object) -> Iterator[None]:
    for number in range(5_000):
        path = directory / layout.record_name(number % 64, 10_000 + number)
        path.touch()
        os.truncate(path, 1 << 20)
        if number % 100 == 0:
            yield
    while True:
        time.sleep(0.2)
        yield


def names_that_are_no_text(directory: Path, *_: object) -> Iterator[None]:
    for number in range(2_000):
        with contextlib.suppress(OSError):
            Path(os.fsdecode(os.fsencode(directory) + b"/rank-1-%d\xff\xfe.beat" % number)).write_bytes(b"x")
    folder = Path(os.fsdecode(b"/tmp/bob-\xff\xfe-" + MARK.encode()))
    folder.mkdir()
    log = (folder / os.fsdecode(b"l\xf6g")).open("wb")
    mine = ranks(2, os.fsdecode(b"job-\xff\x1b[2J"), cwd=folder, stdout=log)
    yield from stopped_and_on(mine)


def squats_names(directory: Path, _socket: str, _port: int, *pids: int) -> Iterator[None]:
    while True:
        for pid in {*pids, *range(max(pids), max(pids) + 400)}:
            for rank in range(2):
                for name in (
                    layout.record_name(rank, pid),
                    layout.facts_name(rank, pid),
                    layout.answer_name(rank, pid, 1, "gloo"),
                    layout.facts_name(rank, pid) + ".tmp",
                ):
                    with contextlib.suppress(OSError):
                        os.close(os.open(directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield
        time.sleep(0.05)
        for name in os.listdir(directory):  # and whatever is seen to be another's
            if (key := layout.parse_own_name(name)) is not None and int(key[1].split("-")[0]) in pids:
                for other in (layout.facts_name(*key), layout.answer_name(*key, 1, "gloo"), name + ".tmp"):
                    with contextlib.suppress(OSError):
                        os.close(os.open(directory / other, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def crafts_names(directory: Path, _socket: str, _port: int, *pids: int) -> Iterator[None]:
    number = 0
    while True:
        number += 1
        for pid in pids:
            for rank in range(2):
                name = f"rank-{rank}-{pid}-{os.urandom(8).hex()}.beat"
                claims = {"ended": 1, "exit_code": 1, "ended_ns": time.monotonic_ns()} if number % 2 else {}
                (directory / name).write_bytes(record(rank, pid, VICTIMS_JOB, **claims))
        for name in ("..beat", "rank-.beat", "rank-1-1.beat.beat", "rank-\u00b2-1.beat", "rank-1-1.x.beat"):
            (directory / name).write_bytes(record(1, pids[0], VICTIMS_JOB))
        time.sleep(0.1)
        yield


def the_same_job_name(_directory: Path, *_: object) -> Iterator[None]:
    yield from stopped_and_on(ranks(4, VICTIMS_JOB, 4), 1.0)


def dying_ranks(_directory: Path, *_: object) -> Iterator[None]:
    """A thousand deaths, each of a job of its own with a rank that lives on; as fast as this node starts Python."""
    for number in range(500):
        pair = ranks(2, f"bobs-job-{number}", 2)
        yield
        time.sleep(0.1)
        if number >= 4:
            living[-8].kill()
        living.extend(pair)
        pair[1].send_signal(signal.SIGUSR2)
    while True:
        time.sleep(0.2)
        yield


def churns_names(directory: Path, *_: object) -> Iterator[None]:
    """Jobs of other names at every look, and one of them dies now and then: whatever is kept by name grows."""
    mine: list[subprocess.Popen[bytes]] = []
    for turn in range(1 << 30):
        mine = [one for one in mine if one.poll() is None]
        while len(mine) < 32:
            mine.append(subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL))
            living.append(mine[-1])
        for number, one in enumerate(mine):
            stat = Path(f"/proc/{one.pid}/stat").read_bytes().rpartition(b")")[2].split()
            said = record(0, one.pid, f"bobs-{turn}-{number}", start_ticks=int(stat[19]), step=turn, pulse_count=turn)
            for path in directory.glob(f"rank-0-{one.pid}-*.beat"):
                path.write_bytes(said)
                break
            else:
                name = layout.record_name(0, f"{one.pid}-{layout.new_mark()}")
                (directory / name).write_bytes(said)
        mine[turn % len(mine)].kill()
        time.sleep(0.3)
        yield


def connections(_directory: Path, path: str, port: int, *_: object) -> Iterator[None]:
    held: list[socket.socket] = []
    while True:
        for number in range(50):
            with contextlib.suppress(OSError):
                one = socket.socket(socket.AF_INET)
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect(("127.0.0.1", port))
                held.append(one)
                if number % 2:
                    one.send(b"GET /metrics HTTP/1.1\r\nX: ")
            with contextlib.suppress(OSError):
                other = socket.socket(socket.AF_UNIX)
                other.connect(path)
                held.append(other)
        for one in held[:-900]:
            one.close()
        held = held[-900:]
        time.sleep(0.2)
        yield


def a_huge_log(_directory: Path, *_: object) -> Iterator[None]:
    path = Path(f"/tmp/bob-{MARK}.log")
    with path.open("wb") as log:
        log.truncate(8 << 30)
        log.seek(0, 2)
        log.write(b"RuntimeError: \xff" * (1 << 22))
        path.chmod(0o644)
        try:
            yield from stopped_and_on(ranks(4, "bobs-log", 4, stdout=log, stderr=log))
        finally:
            path.unlink()


def links_and_pipes(directory: Path, *_others: object) -> Iterator[None]:
    folder = Path(f"/tmp/bob-{MARK}")
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    targets = (str(folder / "fifo"), "/proc/self/mem", "/proc/kmsg", "/dev/zero", "/proc/1/environ")
    for number, target in enumerate(targets):
        (directory / f"rank-0-{number + 1}-0123456789abcdef.beat").symlink_to(target)
        with contextlib.suppress(OSError):
            os.mkfifo(directory / f"rank-3-{number + 1}-0123456789abcdef.beat")
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "dump")
    for rank in range(4):
        os.mkfifo(folder / f"dump{rank}")
    fifo = os.open(folder / "fifo", os.O_RDWR)
    yield from stopped_and_on(ranks(4, "bobs-links", 4, stdout=fifo, stderr=fifo, cwd=folder))


def giant_answers(directory: Path, *_others: object) -> Iterator[None]:
    """Answers to dump requests, in the hook's stead: sparse files of 256 MiB, of the right name and owner."""
    mine = ranks(4, "bobs-dumps", 4)
    for _ in stopped_and_on(mine):
        for name in os.listdir(directory):
            key = layout.parse_record_name(name)
            if key is None or int(key[1].split("-")[0]) not in {one.pid for one in mine}:
                continue
            for request in range(1, 12):
                for recorder in ("gloo", "nccl", "scene", "python"):
                    path = directory / layout.answer_name(*key, request, recorder, os.urandom(8).hex())
                    with contextlib.suppress(OSError):
                        path.touch()
                        os.truncate(path, 256 << 20)
        yield


def stopped_and_on(mine: list["subprocess.Popen[bytes]"], seconds: float = 3.0) -> Iterator[None]:
    """Ranks of ours stand and go on, again and again."""
    living.extend(mine)
    time.sleep(2)
    for turn in range(1 << 30):
        with contextlib.suppress(ProcessLookupError):
            mine[turn // 2 % len(mine)].send_signal(signal.SIGCONT if turn % 2 else signal.SIGSTOP)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.1)
            yield


living: list["subprocess.Popen[bytes]"] = []
WAYS: dict[str, Callable[..., Iterator[None]]] = {
    way.__name__: way
    for way in (
        floods_records, names_that_are_no_records, sparse_records, names_that_are_no_text, squats_names, crafts_names,
        the_same_job_name, dying_ranks, churns_names, connections, a_huge_log, links_and_pipes, giant_answers,
    )
}  # fmt: skip


def main() -> None:
    way, directory, path, port, *pids = sys.argv[1:]
    os.environ["STALLWATCH_DIR"] = directory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for turn, _ in enumerate(WAYS[way](Path(directory), path, int(port), *map(int, pids))):
            if turn == 0:
                print("at it", flush=True)
    finally:
        for one in living:
            one.kill()


if __name__ == "__main__":
    main()
