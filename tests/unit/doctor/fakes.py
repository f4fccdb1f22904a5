"""The outside world for tests of checks: a clean node in a fake root, of which a test changes what it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.doctor.check import Check
from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.surroundings import (
    CommandResult,
    DaemonFacts,
    Interface,
    Lookup,
    NamedEnvironment,
    Question,
    RankFacts,
    Reach,
    Space,
    Surroundings,
    TrainingInterpreter,
)
from stallwatch.model.gpu import Gpu, GpuState
from stallwatch.model.reading import Known, Unavailable

SHELL = "this shell"
GIB = 1 << 30


def unavailable(reason: str) -> Unavailable:
    return Unavailable(reason, 0)


DAEMON = DaemonFacts(user_id=0, sensors={"host": "", "heartbeats": ""})


@dataclass
class FakeResolver:
    names: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"node1": ("10.0.0.1",)})
    silent: bool = False

    def lookup(self, name: str) -> Known[Lookup] | Unavailable:
        if self.silent:
            return unavailable("DNS has not answered for 3 s")
        found = self.names.get(name, ())
        return Known(Lookup(found, "" if found else "Name or service not known"), 0)


@dataclass
class FakeSockets:
    listed: tuple[Interface, ...] = (
        Interface("lo", True, ("127.0.0.1", "::1")),
        Interface("eth0", True, ("10.0.0.1", "fd00::1")),
        Interface("ib0", True, ()),
        Interface("eth1", False, ("10.1.0.1",)),
    )
    errors: dict[int, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    reaches: dict[tuple[str, int], Reach] = field(default_factory=dict)

    def interfaces(self) -> tuple[Interface, ...]:
        return self.listed

    def can_listen(self, port: int) -> str:
        return self.errors.get(port, "")

    def free_port(self) -> int:
        return 41234

    def connects_to(self, address: str, port: int) -> Reach:
        return self.reaches.get((address, port), Reach("open"))

    def connects_to_itself(self, address: str) -> str:
        return self.unreachable.get(address, "")


@dataclass
class FakeDisks:
    spaces: dict[str, Space | str] = field(default_factory=dict)

    def space(self, path: str) -> Known[Space] | Unavailable:
        found = self.spaces.get(path, Space(100 * GIB, 90 * GIB, True))
        return unavailable(found) if isinstance(found, str) else Known(found, 0)


@dataclass
class FakeCommands:
    outcomes: dict[str, CommandResult] = field(default_factory=dict)  # by a word of the command line

    def run(self, argv: Sequence[str], seconds: float) -> Known[CommandResult] | Unavailable:
        found = next((one for word, one in self.outcomes.items() if any(word in part for part in argv)), None)
        return Known(found, 0) if found else Known(CommandResult(0, "0 0", ""), 0)


@dataclass
class FakeGpus:
    answer: GpuState | str = "no GPU is read: No module named pynvml"

    def state(self) -> Known[GpuState] | Unavailable:
        return unavailable(self.answer) if isinstance(self.answer, str) else Known(self.answer, 0)


@dataclass
class FakeTraining:
    answer: TrainingInterpreter | str = field(default_factory=lambda: training())

    def ask(self) -> Known[TrainingInterpreter] | Unavailable:
        return unavailable(self.answer) if isinstance(self.answer, str) else Known(self.answer, 0)


def training(torch: str = "2.11.0", nccl: str = "2.30.7", cuda: str = "12.8", **others: Any) -> TrainingInterpreter:
    versions = {"torch": torch} if torch else {}
    conflicts, not_compared = others.pop("conflicts", ()), others.pop("not_compared", "")
    build_unread = others.pop("build_unread", "")
    return TrainingInterpreter(
        "/venv/bin/python", "3.11.4", versions | others, cuda=cuda, nccl=nccl, conflicts=conflicts,
        not_compared=not_compared, build_unread=build_unread,
    )  # fmt: skip


def gpus(*changes: Mapping[str, Any], count: int = 2, **state: Any) -> GpuState:
    """Healthy GPUs; each mapping changes one of them, in their order."""
    healthy = [
        Gpu(
            index=index, uuid=f"GPU-{index}", name="H100", memory_used_bytes=0, memory_total_bytes=80 * GIB,
            compute_pids=(), clock_event_reasons=0, ecc_uncorrected_total=0, remap_pending=False, remap_failed=False,
            pcie_link=(5, 16), pcie_link_maximum=(5, 16), nvlinks=(18, 0), fabric=(3, 0), recovery_action=0,
            compute_capability=(9, 0),
        )
        for index in range(count)
    ]  # fmt: skip
    for index, change in enumerate(changes):
        healthy[index] = msgspec.structs.replace(healthy[index], **change)
    return GpuState("580.1", "13.0", tuple(healthy), **state)


def rank(number: int, pid: int = 0, *, uid: int = 1000, **changes: Any) -> RankFacts:
    environment = {"RANK": str(number), "MASTER_ADDR": "node1", "MASTER_PORT": "29400"} | changes.pop("environment", {})
    facts: dict[str, Any] = {
        "local_rank": number, "world_size": 2, "versions": {}, "argv": (), "working_directory": "", "executable": "",
        "alive": True,
    } | changes  # fmt: skip
    return RankFacts(rank=number, pid=pid or 100 + number, environment=environment, uid=uid, **facts)


class Node:
    """A clean node; `write` puts files below its root, `around` gives the surroundings for a check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/self/limits", LIMITS)
        self.write("proc/self/status", STATUS)
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/net/tcp", TCP_HEAD)
        self.write("dev/kmsg", "")

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def around(
        self,
        shell: Mapping[str, str] | None = None,
        *,
        files: Mapping[str, Mapping[str, str]] | None = None,
        ranks: tuple[RankFacts, ...] = (),
        question: Question | None = None,
        **changes: Any,
    ) -> Surroundings:
        of_ranks = tuple(
            NamedEnvironment(f"rank {one.rank} (pid {one.pid})", one.environment, one.rank, one.pid) for one in ranks
        )
        of_files = tuple(NamedEnvironment(name, values, is_file=True) for name, values in (files or {}).items())
        clean = Surroundings(
            root=self.root,
            environments=(*of_ranks, NamedEnvironment(SHELL, shell or {}), *of_files),
            ranks=ranks,
            host_name="node1",
            user_id=1000,
            resolver=FakeResolver(),
            sockets=FakeSockets(),
            disks=FakeDisks(),
            commands=FakeCommands(),
            gpus=FakeGpus(),
            training=FakeTraining(),
            question=question or Question(),
            now_seconds=1_000_000.0,
        )
        return replace(clean, **changes)


def one(found: tuple[FindingRecord, ...]) -> FindingRecord:
    """The only finding, complete: every text is there for a person."""
    assert len(found) == 1, found
    (record,) = found
    assert record.seen and record.why and record.remedy and record.subject
    return record


def look(check: Check, around: Surroundings) -> tuple[FindingRecord, ...]:
    return check.look(around)


TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def tcp_line(port: int, state: str, inode: int, uid: int = 1000, address: str = "00000000") -> str:
    """A line as Linux 6 prints it."""
    return (
        f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid:4d}        0 "
        f"{inode} 1 0000000000000000 100 0 0 10 0\n"
    )


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             96365                96365                processes
Max open files            20000                1048576              files
Max locked memory         8388608              8388608              bytes
"""
STATUS = """\
Name:\tpython
CapEff:\t000001ffffffffff
Seccomp:\t0
Cpus_allowed_list:\t0-7
"""
