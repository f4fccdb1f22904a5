"""What others write and we read: of each how it is fed any bytes, real ones to begin with, and what it may raise."""

import contextlib
import functools
import json
import socket
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallwatch import config
from stallwatch.bundle import description
from stallwatch.bundle.reader import load
from stallwatch.diagnosis.node_summary import judge_nodes, summarise_node
from stallwatch.encoding import Unpacker, pack
from stallwatch.errors import UsageError
from stallwatch.fleet.node_word import NodeWord, believed, encode_word
from stallwatch.fleet.place import Key
from stallwatch.fleet.seal import SealBroken, seal
from stallwatch.formats import (
    flight_recorder,
    gpus,
    hook_report,
    kernel_log,
    process,
    py_spy,
    py_spy_profile,
    ras,
    training_log,
)
from stallwatch.formats.unreadable import Unreadable
from stallwatch.hook import layout
from stallwatch.incidents.store import FILE, IncidentStore
from stallwatch.model.snapshot import JobKey
from stallwatch.node.disk import Disk
from stallwatch.node.gpu_release import released
from stallwatch.node.heartbeat_file import LayoutError, decode
from stallwatch.node.privileged_process import PrivilegedProcess
from stallwatch.node.privileged_server import Connection, PrivilegedSide
from stallwatch.node.privileged_verbs import VERBS, NotAllowed, Verb
from stallwatch.outputs import spool
from stallwatch.outputs.timeline import read_timeline
from stallwatch.sensors.sensor import SensorAnswer
from tests.builders.records import record_bytes
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import incident, node_report

BUNDLES = Path(__file__).parents[1] / "bundles"
_MOST_SEED_BYTES = 60_000  # larger ones are parsed slowly, and have nothing that smaller ones lack
_MOST_SEEDS = 12


class Target(NamedTuple):
    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    may_raise: tuple[type[Exception], ...] = ()


def captured(*patterns: str) -> Callable[[], list[bytes]]:
    """Files of the recorded incidents, the smallest first."""

    def read() -> list[bytes]:
        paths = {path for pattern in patterns for path in BUNDLES.glob(pattern) if path.is_file()}
        sized = sorted((path.stat().st_size, path) for path in paths)
        return [path.read_bytes() for size, path in sized if 0 < size <= _MOST_SEED_BYTES][:_MOST_SEEDS]

    return read


def _record(data: bytes) -> None:
    """Whoever writes a record can make its checksum right."""
    image = bytearray(data[: layout.RECORD_BYTES].ljust(layout.RECORD_BYTES, b"\0"))
    place = layout.WORD["checksum"] * 8
    image[place : place + 8] = bytes(8)
    struct.pack_into("<q", image, place, zlib.crc32(bytes(image)))
    msgspec.msgpack.encode(decode(bytes(image), "/run/x", 0))


def _log(data: bytes) -> None:
    msgspec.msgpack.encode(training_log.parse(data))


def _configuration(data: bytes) -> None:
    config.load("config.toml", {}, read=lambda _: data)


def _frames(data: bytes) -> None:
    unpacker = Unpacker(1 << 20)
    half = len(data) // 2
    for part in (data[:half], data[half:]):
        for message in unpacker.feed(part):
            msgspec.msgpack.decode(message, type=SensorAnswer)


KEY, SECRET = Key("job", 1), b"0123456789abcdef"


def _summary(data: bytes) -> None:
    """A node that has the key, and was taken over."""
    words = believed({"n1": seal(data, SECRET, "summary", KEY, "n1"), "n2": data}, SECRET, KEY).words
    if words:
        judge_nodes([word.summary for word in words])


@functools.cache
def _summaries() -> list[bytes]:
    found = []
    for name in ("gloo-killed", "gloo-python_sleep"):
        evidence = load([BUNDLES / name])
        ranks = tuple(one.rank for one in evidence.ranks)
        found.append(encode_word(NodeWord("n1", ranks, summarise_node(evidence), captured_at="2026-01-01T00:00:00Z")))
    return found


class _Side(PrivilegedSide):
    """Starts nothing, and checks what would have been."""

    def start(self, name: str, verb: Verb, words: Mapping[str, Any]) -> tuple[PrivilegedProcess, socket.socket]:
        assert verb is self.verb(name)
        assert set(words) <= {"look", "ranks", "profile_seconds", "call_sites", "kind", "at_ns"}, words
        for pid, ticks in words.get("ranks", ()):
            assert type(pid) is int and type(ticks) is int and pid > 0, words
        raise OSError(11, "nothing is started here")


def _privileged(data: bytes) -> None:
    """Lines of `data` are messages of one connection."""
    side = _Side({"sensor_names": ["ranks"], "sensors": {}, "captures": {}}, -1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        connection = Connection(theirs, side)
        ours.setblocking(False)
        for line in data.split(b"\n")[:20]:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                ours.send(line[:60_000] or b" ")
            connection.take()
            connection.look_after_children(time.monotonic())
            with contextlib.suppress(BlockingIOError):
                json.loads(ours.recv(1 << 16))
            if side.is_to_renew:
                side.is_to_renew = False


def _requests() -> list[bytes]:
    look = {"number": 1, "verb": "look", "ranks": [[4242, 17], [4243, 18]], "look": 1, "profile_seconds": 5}
    sample = {"number": 2, "verb": "sample", "ranks": [[1, 0]], "at_ns": 123456789}
    others = [{"number": 3, "verb": "ranks"}, {"verb": "renew"}, {"verb": "end", "child": 1, "force": True}]
    assert set(VERBS) == {"look", "sample"}, "a new verb wants a seed"
    return [json.dumps(one).encode() for one in (look, sample, *others)] + [
        b"\n".join(json.dumps(one).encode() for one in (look, sample, *others))
    ]


def _with_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="sw-fuzz-", dir="/dev/shm") as folder:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            read(path)

    return run


_INCIDENT_ID = "llama-7b-1"


def _incidents(path: Path) -> None:
    store = IncidentStore(path.parents[2])
    store.left(20)
    store.load(_INCIDENT_ID)
    store.retain(0, 0, ())


def _timeline(path: Path) -> None:
    msgspec.json.encode(read_timeline("x-1", JobKey("a", "b", "c"), str(path.parent)))


class _Http:
    """One real output for all inputs; it must go on to answer."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._served: Served | None = None
        self._lock = threading.Lock()
        self._count = 0

    def __call__(self, data: bytes) -> None:
        with self._lock:
            if self._served is None:
                self._served = self._stack.enter_context(served(node_report(incident())))
        said = self._send(socket.AF_UNIX, str(self._served.output.socket_path), data)
        said += self._send(socket.AF_INET, ("127.0.0.1", self._served.port), data)
        assert b"HTTP/1.1 500" not in said, said[:300]
        self._count += 1
        if self._count % 50 == 0:
            assert self._served.client.metrics(), "it answers no more"

    def _send(self, family: int, address: Any, data: bytes) -> bytes:
        with socket.socket(family, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
            client.settimeout(0.2)
            client.connect(address)
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            said = b""
            while part := client.recv(1 << 16):
                said += part
                if len(said) > 1 << 20:
                    break
            return said
        return b""

    def close(self) -> None:
        self._stack.close()
        self._served = None


HTTP = _Http()


def _http_requests() -> list[bytes]:
    found = [
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n".encode()
        for path in ("/metrics", "/healthz", "/readyz", "/", "/api/v1/ranks", "/api/v1/incidents?past=5")
    ]
    bodies = {
        "/control/capture": b'{"training_job":"llama-7b"}',
        "/control/mute": b'{"training_job":"llama-7b","seconds":60}',
        "/control/judge": b'{"incident_id":"llama-7b-1","judgement":"wrong"}',
        "/api/v1/incidents/llama-7b-1/acknowledge": b"{}",
    }
    for path, body in bodies.items():
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        found.append(head.encode() + b"Connection: close\r\n\r\n" + body)
    chunked = b'POST /control/mute HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"by"\r\n0\r\n\r\n'
    return [*found, chunked]


class _DiskOf(Disk):
    """A file's bytes without a disk or a child."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def call(self, name: str, *arguments: Any, seconds: float | None = None) -> bytes:
        return msgspec.msgpack.encode(self._data if name == "read_regular" else None)

    def close(self) -> None:
        return


def _spool(data: bytes) -> None:
    file = spool.FarSpoolFile(Path("/nowhere/slack.json"))
    file._disk = _DiskOf(data)
    file.load()


def _spools() -> list[bytes]:
    message = spool.Message("a-1", "told", 1, msgspec.Raw(b'{"text":"x"}'), "line", True, "anna", "a", True)
    made, _ = spool.Spool().with_message(message, ("told",), "not_entered 1")
    return [msgspec.json.encode(made), msgspec.json.encode(spool.Spool())]


def _timelines() -> list[bytes]:
    lines = (BUNDLES.parent / "replay" / "recorded-checkpoint" / "timeline.jsonl").read_bytes().splitlines(True)
    return [b"".join(lines[:4]), b"".join(lines[-2:])]


def _kernel_lines() -> list[bytes]:
    return [
        b"NVRM: Xid (PCI:0000:61:00): 79, pid=4242, name=python, GPU has fallen off the bus.\n",
        b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid=4242,uid=1000\n"
        b"Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB\n",
        b"[Sat Nov 28 10:00:00 2026] mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged\n",
        b"6,1234,5678901,-;python[4242]: segfault at 0 ip 0 sp 0 error 4 in libtorch.so\n SUBSYSTEM=pci\n",
    ]


def _logs() -> list[bytes]:
    text = b"""[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
RuntimeError: CUDA error: out of memory
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]: rank : 2 (local_rank: 2) exitcode : -9 (pid: 31) error_file: <N/A>
"""
    return [text, *captured("*/ranks/*/log.txt", "*/logs/*")()]


TARGETS: dict[str, Target] = {
    "record": Target(_record, lambda: [record_bytes(1, 4242, 17), record_bytes(63, 1, 1, step=-1)], (LayoutError,)),
    "dump": Target(
        lambda data: flight_recorder.parse(data, "x"),
        captured("*/ranks/*/flight_recorder*.pickle", "*/ranks/*/flight_recorder*.json"),
        (Unreadable,),
    ),
    "py-spy": Target(lambda data: py_spy.parse(data, "x"), captured("*/ranks/*/stacks*.json"), (Unreadable,)),
    "profile": Target(
        lambda data: py_spy_profile.parse(data, "x"),
        lambda: [*captured("*/ranks/*/profile*")(), b"main (a.py:1);work (a.py:2) 17\nmain (a.py:1) 3\n"],
        (Unreadable,),
    ),
    "process": Target(lambda data: process.parse(data, "x"), captured("*/ranks/*/process*.json"), (Unreadable,)),
    "heartbeat": Target(
        lambda data: hook_report.parse(data, "x"), captured("*/ranks/*/heartbeat*.json"), (Unreadable,)
    ),
    "gpus": Target(gpus.parse, captured("*/nodes/*/gpus.json"), (Unreadable,)),
    "ras": Target(ras.parse, captured("*/nodes/*/nccl_ras*"), (Unreadable,)),
    "description": Target(description.parse, captured("*/bundle.json"), (Unreadable,)),
    "log": Target(_log, _logs),
    "kernel": Target(kernel_log.parse, lambda: [*_kernel_lines(), *captured("*/nodes/*/kernel_log.txt")()]),
    "configuration": Target(
        _configuration, lambda: [config.example().encode(), b'[slack]\nchannel = "#a"\n'], (UsageError,)
    ),
    "frames": Target(
        _frames,
        lambda: [pack(msgspec.msgpack.encode(SensorAnswer(7, 0.5, b"\x01"))) * 2],
        (ValueError, msgspec.MsgspecError),
    ),
    "summary": Target(_summary, _summaries, (SealBroken,)),
    "privileged": Target(_privileged, _requests, (NotAllowed,)),
    "spool": Target(_spool, _spools),
    "incident": Target(
        _with_file(f"state/incidents/{_INCIDENT_ID}/{FILE}", _incidents),
        lambda: [msgspec.json.encode(incident())],
    ),
    "timeline": Target(_with_file("timeline.jsonl", _timeline), _timelines),
    "release": Target(
        _with_file("released", lambda path: released(path)),
        lambda: [b'{"until_boottime_seconds": 1e9, "until": "12:15", "by": "anna"}'],
    ),
    "http": Target(HTTP, _http_requests),
}


def cases(name: str) -> Iterator[bytes]:
    """What has once broken something, and what is new of a kind: kept, and run by the tests."""
    folder = Path(__file__).with_name("corpus") / name
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            yield path.read_bytes()
