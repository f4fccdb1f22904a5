"""Nodes as namespaces of this machine, each with a daemon and ranks of one job, a meeting place (fleet_engines), and a
server in the place of Slack: what bench_fleet_live.py plays its scenarios on."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stallwatch.demo.daemon_child import DaemonChild, tail
from stallwatch.demo.draw import drawn_rank
from stallwatch.demo.job import PROGRAMS, end_processes, job_environment
from stallwatch.outputs.client import Client
from tests.bench.fleet_engines import HOST, NET, Disk, Engine, Redis

_OURS = Path(__file__).parent.parent / "programs"
SLOW, RATE = _OURS / "slow_rank.py", _OURS / "keeps_a_rate.py"
_TAG = f"sw{os.getpid() % 10000}"  # an interface's name has 15 characters
_PLAYS = itertools.count()  # a namespace's links outlive it for a moment


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Slack:
    """Keeps what is posted, and when."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, Any]]] = []
        slack = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                slack.got.append((time.monotonic(), {**body, "from": self.client_address[0]}))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer((HOST, 0), Endpoint)
        self.url = f"http://{HOST}:{self.server.server_port}/services/T/B/x"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Node:
    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.name = number, f"node-{number}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.address = f"{NET}.{10 + number}"
        self.net = f"{_TAG}p{next(_PLAYS)}n{number}"
        self.init: subprocess.Popen[bytes] | None = None
        self.daemon: DaemonChild | None = None
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.mark = self.folder / "mark"
        self.key = self.folder / "key"
        self.sign_with("a secret of at least sixteen bytes")

    def sign_with(self, secret: str) -> None:
        """From the next look at the file on."""
        self.key.touch(mode=0o600)
        self.key.write_text(secret)

    def up(self) -> None:
        sh("ip", "netns", "add", self.net)
        sh("ip", "link", "add", f"{self.net}v", "type", "veth", "peer", "name", "eth0", "netns", self.net)
        sh("ip", "link", "set", f"{self.net}v", "master", f"{_TAG}b", "up")
        sh("ip", "-n", self.net, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            sh("ip", "-n", self.net, "link", "set", device, "up")
        inside = f"hostname {self.name}; echo $$; exec sleep infinity"
        command = ["ip", "netns", "exec", self.net, "unshare", "--pid", "--uts", "--mount", "--fork", "--mount-proc"]
        self.init = subprocess.Popen([*command, "--kill-child", "sh", "-c", inside], stdout=subprocess.PIPE)
        assert self.init.stdout is not None
        self.init.stdout.readline()
        (self.pid,) = _children(self.init.pid)

    def enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-p", "-u", "-m", "--"]

    def watch(self, settings: dict[str, dict[str, str]], source: Path | None = None) -> None:
        """`source`: where another version of the package is."""
        version = ("env", f"PYTHONPATH={source}") if source is not None else ()
        command = (*self.enter(), *version, sys.executable, "-m", "stallwatch.cli")
        self.daemon = DaemonChild(self.folder, os.environ, settings, command)
        self.daemon.start()

    def train(
        self, program: Path, arguments: Sequence[str], nodes: int, per_node: int, master: str, job: str = "fleet-job"
    ) -> None:
        """Start this node's ranks of a job whose rank 0 is reached at `master`; of one of its own `nodes` is 1."""
        for local in range(per_node):
            self._start(program, arguments, local, nodes, per_node, master, job)

    def _start(
        self, program: Path, arguments: Sequence[str], local: int, nodes: int, per_node: int, master: str, job: str
    ) -> None:
        assert self.daemon is not None
        environment = job_environment(os.environ, self.daemon.rank_directory, self.mark, self.folder, job)
        environment |= {
            "RANK": str(self.number % nodes * per_node + local), "WORLD_SIZE": str(nodes * per_node),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(per_node),
            "MASTER_ADDR": master, "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1",
        }  # fmt: skip
        with (self.folder / ("rank.log" if local == 0 else f"rank{local}.log")).open("wb") as log:
            self.ranks.append(
                subprocess.Popen(
                    [*self.enter(), sys.executable, str(program), *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                )
            )  # fmt: skip

    @property
    def client(self) -> Client:
        assert self.daemon is not None
        return self.daemon.client

    def cut(self) -> None:
        sh("ip", "link", "set", f"{self.net}v", "down")

    def kill_daemon(self) -> None:
        """As a node's crash would: the daemon and all its children at once."""
        import psutil

        assert self.daemon is not None and self.daemon.pid is not None
        process = psutil.Process(self.daemon.pid)
        end_processes({process, *process.children(recursive=True)})

    @contextlib.contextmanager
    def daemon_stopped(self) -> Iterator[None]:
        """With the daemon and all its children stopped."""
        import psutil

        assert self.daemon is not None and self.daemon.pid is not None
        process = psutil.Process(self.daemon.pid)
        stopped = (process, *process.children(recursive=True))
        for one in stopped:
            one.suspend()
        try:
            yield
        finally:
            for one in reversed(stopped):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.resume()

    def down(self) -> None:
        with contextlib.suppress(Exception):
            if self.daemon is not None:
                self.daemon.stop()
        for rank in self.ranks:
            with contextlib.suppress(Exception):
                rank.kill()
                rank.wait(10)
        with contextlib.suppress(Exception):
            os.kill(self.pid, signal.SIGKILL)
            if self.init is not None:
                self.init.wait(10)
        with contextlib.suppress(Exception):
            sh("ip", "netns", "del", self.net)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Cluster:
    def __init__(self, folder: Path, nodes: int, per_node: int, place: str, backend: str) -> None:
        self.folder, self.place, self.per_node, self.backend = folder, place, per_node, backend
        self.nodes = [Node(number, folder) for number in range(nodes)]
        self.engine: Engine = Redis(folder) if place == "redis" else Disk(folder)
        (folder / "password").write_text("secret")
        self.proves_nothing = False  # no node alone can: told as undecided, when the patience with that is over
        self.settings: dict[str, dict[str, str]] = {}  # that take the place of those sections
        self.program, self.seed = PROGRAMS / "feature_cache.py", 5
        self.other_version: Path | None = None  # of the package, for the daemon of the last node

    @contextlib.contextmanager
    def running(self) -> Iterator["Cluster"]:
        sh("ip", "link", "add", f"{_TAG}b", "type", "bridge")
        try:
            sh("ip", "addr", "add", f"{HOST}/24", "dev", f"{_TAG}b")
            sh("ip", "link", "set", f"{_TAG}b", "up")
            self.slack = Slack()
            self.engine.prepare()
            for node in self.nodes:
                node.up()
            yield self
        finally:
            self.engine.end()  # first: who waits for it in the kernel cannot be ended
            for node in self.nodes:
                node.down()
            with contextlib.suppress(Exception):
                sh("ip", "link", "del", f"{_TAG}b")

    def watch(self) -> None:
        for node in self.nodes:
            self.watch_on(node)

    def watch_on(self, node: Node) -> None:
        """Start the daemon of a node, or another one in its place."""
        fleet = {"url": self.engine.url, "key_file": str(node.key)}
        if self.place == "redis":
            fleet["password_file"] = str(self.folder / "password")
        settings = {"fleet": fleet, "slack": {"webhook_url": self.slack.url}, "daemon": {}}
        if self.proves_nothing:
            settings["tell"] = {"undecided_seconds": "40"}
        settings |= self.settings
        settings["daemon"] = {
            "rank_directory": str(node.folder / "ranks"),
            "state_directory": str(node.folder / "state"),
            "run_directory": str(node.folder / "run"),
        }
        node.watch(settings, self.other_version if node is self.nodes[-1] else None)

    def train(self, *arguments: str) -> None:
        given = ["--fault-step", "40", "--seed", str(self.seed), *arguments]
        if self.program == SLOW:
            given = ["--by", "sleep", "--slow-rank", str(self.culprit), "--healthy-seconds", "25", *arguments]
        if self.program == RATE:
            given = ["--late-rank", str(self.culprit), *arguments]
        given += ["--backend", self.backend]
        for node in self.nodes:
            node.train(self.program, given, len(self.nodes), self.per_node, self.nodes[0].address)

    @property
    def culprit(self) -> int:
        return drawn_rank(self.seed, len(self.nodes) * self.per_node)

    @property
    def home(self) -> Node:
        """The culprit's node."""
        return self.nodes[self.culprit // self.per_node]

    def end_job(self) -> None:
        """As somebody who ends it everywhere at once, by a signal that nobody hears."""
        for node in self.nodes:
            for rank in node.ranks:
                for pid in _children(rank.pid):
                    os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            for rank in node.ranks:
                rank.wait(10)
            node.ranks.clear()
            node.mark.unlink(missing_ok=True)

    def kill_culprit(self) -> None:
        (pid,) = _children(self.home.ranks[self.culprit % self.per_node].pid)
        os.kill(pid, signal.SIGKILL)

    def struck(self) -> float:
        """The moment of the fault, on the clock that all of these nodes have in common."""
        return float(self.until(lambda: self._mark() or 0.0, 300.0, "the fault"))

    def _mark(self) -> float | None:
        if self.program == SLOW:
            return self.marked("slow")
        found = [node.mark.read_text().split() for node in self.nodes if node.mark.exists()]
        return int(found[0][-1]) / 1e9 if found and found[0] else None

    def marked(self, what: str) -> float | None:
        """When slow_rank.py was so far; None: it is not."""
        said = (self.nodes[0].folder / "rank.log").read_text().splitlines()
        marks = [json.loads(line) for line in said if line.startswith('{"mark"')]
        return next((float(one["at"]) for one in marks if one["mark"] == what), None)

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                logs = "\n".join(f"{n.name}: {tail(n.folder / 'daemon.log')}" for n in self.nodes)
                raise TimeoutError(f"{what}: not within {seconds:.0f} s\n{logs}")
            time.sleep(0.05)
        return value

    def steps(self) -> int:
        assert self.nodes[0].daemon is not None
        with contextlib.suppress(Exception):
            return max((one.step or 0 for one in self.nodes[0].daemon.client.ranks().ranks), default=0)
        return 0

    def incident(self, node: Node) -> Any:
        assert node.daemon is not None
        with contextlib.suppress(Exception):
            return next((one for one in node.daemon.client.incidents().incidents if one.state != "suspect"), None)
        return None

    def speaker(self) -> Node | None:
        """Who holds the claim, by what any node shows."""
        for node in self.nodes:
            one = self.incident(node)
            if one is not None and one.together is not None and one.together.speaks:
                return node
        return None
