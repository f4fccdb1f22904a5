"""How a scrape and a probe fare while another user of the node holds connections: silent, slow, not reading, new ones.

Run as root for another user, else it is the same one: `python -m tests.bench.bench_connections [seconds]`.
"""

import contextlib
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
DAEMON_HANDLES = 1024  # what a shell gives, and many units
NOBODY = 65534

Port = int


def connect(port: Port, first: bytes = b"", receive_bytes: int = 0) -> socket.socket:
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(5)
    with contextlib.suppress(OSError):
        made.connect(("127.0.0.1", port))
        made.sendall(first)
    return made


def silent(port: Port) -> None:
    keep(port, 2000, b"", b"")


def slow_heads(port: Port) -> None:
    keep(port, 500, b"GET /metrics HTTP/1.1\r\nX: ", b"x")


def not_reading(port: Port) -> None:
    keep(port, 500, SCRAPE * 200, b"", receive_bytes=4096)


def keep(port: Port, count: int, first: bytes, then: bytes, receive_bytes: int = 0) -> None:
    """Hold so many, and open another for each that is closed."""
    held = [connect(port, first, receive_bytes) for _ in range(count)]
    while True:
        for place, one in enumerate(held):
            with contextlib.suppress(BlockingIOError, TimeoutError):
                try:
                    one.setblocking(False)
                    gone = not receive_bytes and not one.recv(1 << 16)
                    if then:
                        one.sendall(then)
                except BlockingIOError:
                    continue
                except OSError:
                    gone = True
                if gone:
                    one.close()
                    held[place] = connect(port, first, receive_bytes)
        time.sleep(0.2)


def churn(port: Port) -> None:
    while True:
        connect(port).close()


def nothing(port: Port) -> None:
    signal.pause()


@contextlib.contextmanager
def as_nobody(attack: Callable[[Port], None], port: Port, processes: int) -> Iterator[None]:
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if not pid:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            if os.getuid() == 0:
                os.setgroups([])
                os.setuid(NOBODY)
            with contextlib.suppress(BaseException):
                attack(port)
            os._exit(0)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ask(port: Port, path: str) -> tuple[float, str]:
    """Milliseconds and the body, empty where it was not 200."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode() if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        body = ""
    return (time.perf_counter() - began) * 1e3, body


def value(metrics: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else float("nan")


def measure(
    name: str, attack: Callable[[Port], None], daemon: "subprocess.Popen[bytes]", port: Port, seconds: float
) -> None:
    with as_nobody(attack, port, 2 if attack is churn else 1):
        time.sleep(2)
        cpu, until = cpu_seconds(daemon.pid), time.monotonic() + seconds
        began, late, times, refused = time.monotonic(), [0.0], [], 0
        while time.monotonic() < until:
            for path in ("/healthz", "/metrics"):
                took, body = ask(port, path)
                times.append(took)
                refused += not body
                if path == "/metrics" and body:
                    late.append(value(body, "stallwatch_tick_late_seconds"))
            time.sleep(0.1)
        cost = (cpu_seconds(daemon.pid) - cpu) / (time.monotonic() - began)
        handles = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    times.sort()
    print(
        f"{name:14} {len(times):5} asked {refused:4} unanswered  p50 {times[len(times) // 2]:7.1f} ms  "
        f"p99 {times[len(times) * 99 // 100]:7.1f} ms  worst tick {max(late):5.2f} s late  cpu {cost * 100:5.1f} %  "
        f"{handles:4} handles  daemon {'lives' if daemon.poll() is None else 'is dead'}",
        flush=True,
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        places = {
            "STALLWATCH_DAEMON_STATE_DIRECTORY": f"{folder}/state",
            "STALLWATCH_DAEMON_RUN_DIRECTORY": f"{folder}/run",
            "STALLWATCH_DAEMON_RANK_DIRECTORY": f"{folder}/ranks",
            "STALLWATCH_HTTP_LISTEN": f"127.0.0.1:{port}",
        }
        with open(f"{folder}/log", "wb") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "stallwatch.cli", "daemon"],
                env=os.environ | places,
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DAEMON_HANDLES, DAEMON_HANDLES)),
            )
        try:
            while not ask(port, "/metrics")[1]:
                time.sleep(0.1)
            for name, attack in (
                ("nobody", nothing),
                ("2000 silent", silent),
                ("500 slow heads", slow_heads),
                ("500 not reading", not_reading),
                ("new ones", churn),
                ("nobody", nothing),
            ):
                measure(name, attack, daemon, port, seconds)
        finally:
            daemon.terminate()
            daemon.wait()
            print(Path(f"{folder}/log").read_text()[-2000:])


if __name__ == "__main__":
    main()
