"""The RAS report of a node: asked over a real socket by the real child, kept as it came, read by the real reader."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stallwatch.captures.nccl_ras import RasAnswer, RasAsk
from stallwatch.captures.ras_capture import RasCapture
from stallwatch.config_sections import CaptureSection
from stallwatch.formats import ras
from stallwatch.model.evidence import Attempt
from stallwatch.model.snapshot import RankSample
from stallwatch.selftest.launching import free_port
from tests.builders.node import unread_rank
from tests.builders.records import start_ticks_of
from tests.unit.captures.kept import NODE, attempts, kept

REPORT: dict[str, Any] = {
    "nccl_version": "2.28.9",
    "communicators": [
        {
            "hash": "0xcdaf",
            "size": 4,
            "ranks": [
                {"rank": rank, "host": "192.0.2.2", "pid": 100 + rank, "collective_counts": {"AllReduce": 26 - rank}}
                for rank in (0, 1)
            ],
            "missing_ranks": [
                {"rank": rank, "host": "192.0.2.2", "pid": 100 + rank, "status": {"unresponsive": True}}
                for rank in (2, 3)
            ],
        }
    ],
}
JSON = json.dumps(REPORT, indent=2).encode()
# 2.28.9 forgets the comma between the members of missing_ranks.
MALFORMED = re.sub(rb"\},(\s+\{\s+\"rank\": 3)", rb"}\1", JSON)
TEXT = b"""NCCL version 2.28.3 compiled with CUDA 13.0

Job summary
===========

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

Warnings
========

#0-0 (cdaf) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 26
  1 rank has launched up to operation 25:
  Rank 2 has launched up to operation 25 -- GPU 2 managed by process 102 on node 192.0.2.2
"""
SERVER = Path(__file__).with_name("ras_server.py")


class Service:
    """A rank's process that offers RAS on a port of its own."""

    def __init__(self, kind: str, report: bytes, folder: Path, *prefix: str, **environment: str) -> None:
        path = folder / f"report-{kind}"
        path.write_bytes(report)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(SERVER), environment.pop("port", "0"), kind, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split()[1])

    def ask(self) -> RasAnswer:
        return ask(RasAsk("localhost", self.port))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def services() -> Iterator[list[Service]]:
    started: list[Service] = []
    yield started
    for service in started:
        service.end()


def ask(*asks: RasAsk, seconds: float = 10.0) -> RasAnswer:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stallwatch.captures.nccl_ras", str(seconds)],
        input=msgspec.json.encode(asks),
        capture_output=True,
        check=True,
    )
    (answer,) = msgspec.json.decode(done.stdout, type=tuple[RasAnswer, ...])
    return answer


@pytest.mark.parametrize(("kind", "report"), [("json", JSON), ("malformed", MALFORMED), ("text", TEXT)])
def test_report_is_kept_as_it_came_and_can_be_read(
    services: list[Service], tmp_path: Path, kind: str, report: bytes
) -> None:
    services.append(Service(kind, report, tmp_path))
    answer = services[0].ask()
    assert answer.report == report
    (communicator,) = ras.parse(answer.report)
    assert communicator.size == 4
    assert communicator.hash.removeprefix("0x") == "cdaf"
    if kind != "text":
        assert [member.missing for member in communicator.ranks] == [False, False, True, True]


def test_malformed_report_is_malformed() -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(MALFORMED)


def test_service_that_does_not_answer_costs_its_deadline(services: list[Service], tmp_path: Path) -> None:
    services.append(Service("silent", b"", tmp_path))
    assert ask(RasAsk("localhost", services[0].port), seconds=0.5).problem == "no answer within 0 s"


def test_something_else_on_the_port_is_told_apart(services: list[Service], tmp_path: Path) -> None:
    services.append(Service("http", b"", tmp_path))
    assert "it is not NCCL's RAS service" in services[0].ask().problem


def test_nobody_on_the_port_is_said(services: list[Service], tmp_path: Path) -> None:
    services.append(Service("json", JSON, tmp_path))
    services[0].end()
    assert "nothing answers on port" in services[0].ask().problem


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "0.0.0.0"])
def test_address_that_leads_off_the_node_is_not_asked(host: str) -> None:
    assert "not on this node's loopback" in ask(RasAsk(host, 28028)).problem


def test_process_that_listens_to_a_job_can_connect_nowhere_any_more() -> None:
    program = """
import socket, sys
from stallwatch.node.no_network import give_up_network
listener = socket.create_server(("127.0.0.1", 0))
spare = socket.socket()
connected = socket.create_connection(listener.getsockname())
if not give_up_network(connecting=True):
    sys.exit(77)
connected.sendall(b"still open")
for attempt in (lambda: spare.connect(listener.getsockname()), lambda: socket.socket(socket.AF_INET)):
    try:
        attempt()
    except PermissionError:
        continue
    sys.exit("a door is open")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no seccomp filter for this machine")
    assert (done.returncode, done.stderr) == (0, "")


def sample_of(process: "subprocess.Popen[bytes]", rank: int = 0) -> RankSample:
    return unread_rank(rank, process.pid, start_ticks=start_ticks_of(process.pid), world_size=2)


def take(bundle: Path, mode: Literal["auto", "always"], *samples: RankSample) -> list[Attempt]:
    with kept(bundle) as sending:
        RasCapture(samples, 1, CaptureSection(nccl_ras=mode), sending).take()
    return attempts(bundle / "nodes" / NODE)


def test_services_of_two_ports_are_both_kept(services: list[Service], tmp_path: Path) -> None:
    for kind, report in (("json", JSON), ("text", TEXT)):
        port = free_port()
        services.append(Service(kind, report, tmp_path, port=str(port), NCCL_RAS_ADDR=f"localhost:{port}"))
    samples = [sample_of(service.process, rank) for rank, service in enumerate(services)]
    asked = take(tmp_path / "b", "always", *samples)
    assert [attempt.answered for attempt in asked] == [True, True]
    ports = sorted(service.port for service in services)
    names = {path.name for path in (tmp_path / "b/nodes" / NODE).iterdir()} - {"attempts.json"}
    assert len(names) == 2
    assert any(f"nccl_ras.{port}." in name for port in ports for name in names)


def test_nccl_of_unknown_version_is_not_asked(services: list[Service], tmp_path: Path) -> None:
    port = free_port()
    services.append(Service("json", JSON, tmp_path, port=str(port), NCCL_RAS_ADDR=f"localhost:{port}"))
    (attempt,) = take(tmp_path / "b", "auto", sample_of(services[0].process))
    assert not attempt.answered
    assert "is not known" in attempt.detail
    assert [path.name for path in (tmp_path / "b/nodes" / NODE).iterdir()] == ["attempts.json"]


def test_ras_that_is_off_is_said(services: list[Service], tmp_path: Path) -> None:
    services.append(Service("json", JSON, tmp_path, NCCL_RAS_ENABLE="0"))
    (attempt,) = take(tmp_path / "b", "always", sample_of(services[0].process))
    assert "NCCL_RAS_ENABLE=0" in attempt.detail


def test_service_of_another_job_is_not_asked(services: list[Service], tmp_path: Path) -> None:
    taken = str(free_port())
    for port in (taken, "0"):  # who listens, and the next job, which was given the same address
        services.append(Service("json", JSON, tmp_path, port=port, NCCL_RAS_ADDR=f"localhost:{taken}"))
    first, other = (sample_of(service.process) for service in services)
    (attempt,) = take(tmp_path / "a", "always", first)
    assert attempt.answered
    (attempt,) = take(tmp_path / "b", "always", other)
    assert (attempt.answered, "tell of another job" in attempt.detail) == (False, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_rank_in_another_network_namespace_is_asked_there(services: list[Service], tmp_path: Path) -> None:
    up = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    if subprocess.run([*up, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespaces here")
    services.append(Service("json", JSON, tmp_path, *up, port="28028", NCCL_RAS_ADDR="localhost:28028"))
    (attempt,) = take(tmp_path / "b", "always", sample_of(services[0].process))
    assert (attempt.answered, attempt.detail) == (True, f"port 28028: {len(JSON)} bytes, json")
