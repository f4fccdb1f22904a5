"""`stallwatch doctor` on this very machine, with faults that are planted for real."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DOCTOR = (sys.executable, "-m", "stallwatch.cli", "doctor", "--json")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, capabilities")

HOLDER = """
import os, socket, sys
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
print(s.getsockname()[1], os.getpid(), flush=True)
"""
WAITS = HOLDER + "sys.stdin.read()\n"
# The main thread ends, another goes on: /proc shows a zombie that still holds its port.
ZOMBIE = (
    "import ctypes, threading\n" + HOLDER + "threading.Thread(target=lambda: os.read(0, 1), daemon=False).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)\n"
)
# The launcher ends, its rank stays: adopted by init.
ORPHAN = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE, text=True)\n"
    "print(child.stdout.readline(), end='', flush=True)\n"
)


# Ranks of other tests that run at the same time are not this node's. (Without root they stay.)
ALONE = ("unshare", "--pid", "--fork", "--mount-proc") if os.geteuid() == 0 else ()


def examine(
    environment: Mapping[str, str] | None = None, *, options: Sequence[str] = (), before: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the command as a person would, optionally behind another command, and return its JSON."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "MASTER", "STALLWATCH"))}
    done = subprocess.run(
        (*before, *DOCTOR, *options), env=clean | dict(environment or {}), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 10), done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    said["exit_code"] = done.returncode
    return said


def found(said: dict[str, Any], check: str) -> dict[str, str]:
    # Ranks of other people's jobs may run on this machine: what is said of them is not ours.
    (finding,) = [one for one in said["findings"] if one["check"] == check and not one["subject"].startswith("rank ")]
    assert isinstance(finding, dict)
    return finding


@contextmanager
def holding(program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """A program that prints the port that it holds and its pid, and ends with its stdin."""
    child = subprocess.Popen(
        (sys.executable, "-c", program, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | dict(environment or {}),
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        port, pid = child.stdout.readline().split()
        yield port, int(pid)
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait(timeout=30)


def local(port: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def test_a_port_taken_names_the_process_and_a_port_that_is_free() -> None:
    with holding(WAITS) as (port, pid):
        said = examine(local(port))
        finding = found(said, "port_taken")
    assert said["exit_code"] == 10
    assert f"pid {pid} (" in finding["seen"]
    suggested = int(finding["remedy"].split("MASTER_PORT=")[1].split()[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", suggested))
    assert not [one for one in examine(local(str(suggested)))["findings"] if one["check"] == "port_taken"]


def test_a_zombie_that_holds_the_port_is_named() -> None:
    with holding(ZOMBIE) as (port, pid):
        finding = found(examine(local(port)), "port_taken")
    assert f"pid {pid} (" in finding["seen"]
    assert "zombie" in finding["seen"]


def test_a_rank_whose_launcher_is_gone_is_called_stale() -> None:
    with holding(ORPHAN, WAITS, environment={"RANK": "0"}) as (port, pid):
        finding = found(examine(local(port)), "port_taken")
    assert "rank 0 of an earlier run, its launcher is gone" in finding["seen"]
    assert finding["remedy"].startswith(f"kill {pid}")


def test_a_master_address_that_is_nowhere_is_named() -> None:
    finding = found(examine({"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29477"}), "master_address")
    assert "no-such-host.invalid" in finding["seen"]
    assert finding["severity"] == "error"


def test_nccls_syntax_for_gloo_is_named() -> None:
    finding = found(examine({"GLOO_SOCKET_IFNAME": "^lo"}), "wrong_syntax")
    assert "GLOO_SOCKET_IFNAME=^lo" in finding["seen"]


def test_a_low_limit_of_open_files_is_named() -> None:
    finding = found(examine(before=(*ALONE, "sh", "-c", 'ulimit -n 200; exec "$@"', "sh")), "open_files")
    assert finding["seen"].startswith("200 open files")


@AS_ROOT
def test_a_tiny_shared_memory_is_named() -> None:
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    said = examine(before=("unshare", "-m", "sh", "-c", mount, "sh"))
    assert "8 MiB" in found(said, "shared_memory")["seen"]


@AS_ROOT
def test_root_without_ptrace_is_named_and_py_spy_is_not_blamed() -> None:
    said = examine(before=("setpriv", "--bounding-set", "-sys_ptrace"))
    assert "without CAP_SYS_PTRACE" in found(said, "ptrace_allowed")["seen"]
    assert not [one for one in said["findings"] if one["check"] == "py_spy"]


@AS_ROOT
def test_dns_that_does_not_answer_is_a_finding_and_no_hang(tmp_path: Path) -> None:
    configuration = tmp_path / "resolv.conf"
    configuration.write_text("nameserver 127.0.0.77\noptions timeout:30 attempts:5\n")
    bind = f'mount --bind {configuration} "$(readlink -f /etc/resolv.conf)" && exec "$@"'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.77", 53))
        said = examine({"MASTER_ADDR": "node1.example"}, before=("unshare", "-m", "sh", "-c", bind, "sh"))
    assert "DNS, asked for node1.example, has not answered" in found(said, "master_address")["seen"]


def test_nvml_that_does_not_answer_is_no_hang(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import threading\nclass NVMLError(Exception): pass\ndef nvmlInit():\n    threading.Event().wait()\n"
    )
    said = examine({"PYTHONPATH": str(tmp_path)})
    notes = {one["check"]: one["note"] for one in said["checks"]}
    assert "NVML has not answered" in notes["device_answers"]


@AS_ROOT
def test_a_machine_as_it_is_gives_no_warning() -> None:
    said = examine({"MASTER_ADDR": "", "HOME": "/nonexistent"}, before=ALONE)
    assert [one for one in said["findings"] if one["severity"] != "info"] == []
    assert not [one for one in said["checks"] if "own fault" in one["note"]]


# A network of its own in which nothing ever answers: the far end is nobody with that link address.
SILENT_NETWORK = (
    "ip link set lo up && ip link add silent0 type veth peer name far0 && ip addr add 10.77.0.1/24 dev silent0 && "
    "ip link set silent0 up && ip link set far0 up && "
    'ip neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev silent0 && exec "$@"'
)


@AS_ROOT
def test_a_master_that_is_silent_is_told_with_the_interface_and_in_time() -> None:
    master = {"MASTER_ADDR": "10.77.0.9", "MASTER_PORT": "29500"}
    said = examine(master, before=("unshare", "-n", "sh", "-c", SILENT_NETWORK, "sh"))
    finding = found(said, "master_reachable")
    assert "10.77.0.9:29500 is silent" in finding["seen"]
    assert "silent0, 10.77.0.1" in finding["seen"]
    assert said["seconds"] < 5


@AS_ROOT
def test_a_master_without_a_route_is_told() -> None:
    master = {"MASTER_ADDR": "10.77.0.9", "MASTER_PORT": "29500"}
    finding = found(examine(master, before=("unshare", "-n")), "master_reachable")
    assert "no route to 10.77.0.9:29500" in finding["seen"]
