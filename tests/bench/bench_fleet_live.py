"""Real daemons of several nodes on one machine, one gloo job across them, and a meeting place (root, iproute2, torch):

    python tests/bench/bench_fleet_live.py [--nodes 3] [--per-node 1] [--place redis|file] [SCENARIO…]

A node is a namespace each of network, pids, hosts' names and mounts, with its own daemon, run directory and ranks.
Prints for each scenario what was told to a server in the place of Slack, by whom, and the seconds from the fault to the
first message. Asserts nothing; ends 1 when a culprit is wrong, nobody was told, or more than one message was sent.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stallwatch.demo.daemon_child import DaemonChild, tail
from stallwatch.demo.draw import drawn_rank
from stallwatch.demo.job import PROGRAMS, end_processes, job_environment

_SLOW = Path(__file__).parent.parent / "programs" / "slow_rank.py"
_NET = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
_TAG = f"sw{os.getpid() % 10000}"  # an interface's name has 15 characters
_PLAYS = itertools.count()  # a namespace's links outlive it for a moment
_HOST = f"{_NET}.1"
_TOLD_SECONDS = 100.0
_QUIET_SECONDS = 25.0  # how long a second message is waited for


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

        self.server = ThreadingHTTPServer((_HOST, 0), Endpoint)
        self.url = f"http://{_HOST}:{self.server.server_port}/services/T/B/x"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Redis:
    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 7000 + os.getpid() % 2000
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["redis-server", "--bind", _HOST, "--port", str(self.port), "--save", "", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, "--requirepass", "secret"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


class Node:
    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.name = number, f"node-{number}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.address = f"{_NET}.{10 + number}"
        self.net = f"{_TAG}p{next(_PLAYS)}n{number}"
        self.init: subprocess.Popen[bytes] | None = None
        self.daemon: DaemonChild | None = None
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.mark = self.folder / "mark"

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

    def watch(self, settings: dict[str, dict[str, str]]) -> None:
        command = (*self.enter(), sys.executable, "-m", "stallwatch.cli")
        self.daemon = DaemonChild(self.folder, os.environ, settings, command)
        self.daemon.start()

    def train(self, program: Path, arguments: Sequence[str], nodes: int, per_node: int, master: str) -> None:
        for local in range(per_node):
            self._start(program, arguments, local, nodes, per_node, master)

    def _start(
        self, program: Path, arguments: Sequence[str], local: int, nodes: int, per_node: int, master: str
    ) -> None:
        assert self.daemon is not None
        environment = job_environment(os.environ, self.daemon.rank_directory, self.mark, self.folder, "fleet-job")
        environment |= {
            "RANK": str(self.number * per_node + local), "WORLD_SIZE": str(nodes * per_node),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(per_node),
            "MASTER_ADDR": master, "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0",
        }  # fmt: skip
        with (self.folder / ("rank.log" if local == 0 else f"rank{local}.log")).open("wb") as log:
            self.ranks.append(
                subprocess.Popen(
                    [*self.enter(), sys.executable, str(program), *arguments, "--backend", "gloo"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                )
            )  # fmt: skip

    def cut(self) -> None:
        sh("ip", "link", "set", f"{self.net}v", "down")

    def kill_daemon(self) -> None:
        """As a node's crash would: the daemon and all its children at once."""
        import psutil

        assert self.daemon is not None and self.daemon.pid is not None
        process = psutil.Process(self.daemon.pid)
        end_processes({process, *process.children(recursive=True)})

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
    def __init__(self, folder: Path, nodes: int, per_node: int, place: str) -> None:
        self.folder, self.place, self.per_node = folder, place, per_node
        self.nodes = [Node(number, folder) for number in range(nodes)]
        self.redis = Redis(folder)
        (folder / "key").write_text("a secret of at least sixteen bytes")
        (folder / "password").write_text("secret")
        self.shared = folder / "shared"
        self.shared.mkdir(mode=0o700)
        self.proves_nothing = False  # no node alone can: told as undecided, when the patience with that is over
        self.program, self.seed = PROGRAMS / "feature_cache.py", 5

    @contextlib.contextmanager
    def running(self) -> Iterator["Cluster"]:
        sh("ip", "link", "add", f"{_TAG}b", "type", "bridge")
        try:
            sh("ip", "addr", "add", f"{_HOST}/24", "dev", f"{_TAG}b")
            sh("ip", "link", "set", f"{_TAG}b", "up")
            self.slack = Slack()
            for node in self.nodes:
                node.up()
            yield self
        finally:
            for node in self.nodes:
                node.down()
            self.redis.stop()
            with contextlib.suppress(Exception):
                sh("ip", "link", "del", f"{_TAG}b")

    def watch(self) -> None:
        url = f"redis://{_HOST}:{self.redis.port}" if self.place == "redis" else f"file://{self.shared}"
        fleet = {"url": url, "key_file": str(self.folder / "key")}
        if self.place == "redis":
            fleet["password_file"] = str(self.folder / "password")
        settings = {"fleet": fleet, "slack": {"webhook_url": self.slack.url}, "daemon": {}}
        if self.proves_nothing:
            settings["tell"] = {"undecided_seconds": "40"}
        for node in self.nodes:
            settings["daemon"] = {
                "rank_directory": str(node.folder / "ranks"),
                "state_directory": str(node.folder / "state"),
                "run_directory": str(node.folder / "run"),
            }
            node.watch(settings)

    def train(self, *arguments: str) -> None:
        given = ["--fault-step", "40", "--seed", str(self.seed), *arguments]
        if self.program == _SLOW:
            given = ["--by", "sleep", "--extra", "0.5", "--slow-rank", str(self.culprit), "--healthy-seconds", "25"]
            given += ["--seconds", "120"]
        for node in self.nodes:
            node.train(self.program, given, len(self.nodes), self.per_node, self.nodes[0].address)

    @property
    def culprit(self) -> int:
        return drawn_rank(self.seed, len(self.nodes) * self.per_node)

    @property
    def home(self) -> Node:
        """The culprit's node."""
        return self.nodes[self.culprit // self.per_node]

    def struck(self) -> float:
        """The moment of the fault, on the clock that all of these nodes have in common."""
        return float(self.until(lambda: self._mark() or 0.0, 300.0, "the fault"))

    def _mark(self) -> float | None:
        if self.program == _SLOW:
            said = [
                line for line in (self.nodes[0].folder / "rank.log").read_text().splitlines() if '"slow": true' in line
            ]
            return float(json.loads(said[0])["at"]) if said else None
        found = [node.mark.read_text().split() for node in self.nodes if node.mark.exists()]
        return int(found[0][-1]) / 1e9 if found and found[0] else None

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


def plain(cluster: Cluster) -> None:
    """A lock is never given back on a node that is not rank 0's."""


def slow(cluster: Cluster) -> None:
    """A rank needs half as much longer for each step: its node sees it alone, and no other waits there."""


def stopped(cluster: Cluster) -> None:
    """A rank on the last node is stopped: its node has a proof and speaks."""


def leader_dies_before(cluster: Cluster) -> None:
    """The daemon that holds the claim is killed before it has told."""
    speaker = cluster.until(lambda: _holder(cluster), 60, "a claim")
    speaker.kill_daemon()


def leader_dies_after(cluster: Cluster) -> None:
    """The daemon that told is killed; then the job goes on and the end is told by another."""
    cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
    speaker = cluster.until(cluster.speaker, 10, "who speaks")
    time.sleep(3)
    speaker.kill_daemon()


def engine_away_before(cluster: Cluster) -> None:
    """The meeting place has been away since before the fault."""


def engine_away_during(cluster: Cluster) -> None:
    """The meeting place goes when the first node has claimed, and is back 20 s later."""
    cluster.until(lambda: _holder(cluster), 60, "a claim")
    cluster.redis.stop()
    time.sleep(20)
    cluster.redis.start()


def engine_away_after(cluster: Cluster) -> None:
    """The meeting place goes once it was told, and noted; a moment before that a second message is possible."""
    cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
    time.sleep(3)
    cluster.redis.stop()


def rank_0_cut_off(cluster: Cluster) -> None:
    """The link of rank 0's node drops as the fault strikes."""
    cluster.nodes[0].cut()


def link_dropped(cluster: Cluster) -> None:
    """No fault of the program: the last node's link goes down in mid-job."""


def _holder(cluster: Cluster) -> Node | None:
    if cluster.place == "redis":
        command = ["redis-cli", "--no-auth-warning", "-h", _HOST, "-p", str(cluster.redis.port), "-a", "secret"]
        keys = subprocess.run([*command, "KEYS", "*:claim"], capture_output=True, text=True).stdout.split()
        names = [subprocess.run([*command, "GET", k], capture_output=True, text=True).stdout.strip() for k in keys]
    else:
        names = [path.read_text() for path in cluster.shared.glob("*/*/claim.*")]
    return next((node for node in cluster.nodes if node.name in names), None)


SCENARIOS: dict[str, Callable[[Cluster], None]] = {
    one.__name__: one
    for one in (
        plain, slow, stopped, leader_dies_before, leader_dies_after, engine_away_before, engine_away_during,
        engine_away_after, rank_0_cut_off, link_dropped,
    )
}  # fmt: skip


def play(name: str, nodes: int, per_node: int, place: str) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="fleet-live-"))
    folder.chmod(0o755)
    with Cluster(folder, nodes, per_node, place).running() as cluster:
        if name == "stopped":
            cluster.program = PROGRAMS / "job_control.py"
        alone = name == "engine_away_before" and per_node == 1  # no rank beside the culprit waits for it
        cluster.proves_nothing = alone
        if name == "slow":
            cluster.program = _SLOW
        # The first draw of a rank that is not on rank 0's node.
        cluster.seed = next(seed for seed in itertools.count(5) if drawn_rank(seed, nodes * per_node) >= per_node)
        if not name.startswith("engine_away_before") and place == "redis":
            cluster.redis.start()
        cluster.watch()
        if name == "link_dropped":
            cluster.train("--fault-step", "1000000")
            cluster.until(lambda: cluster.steps() > 40, 300.0, "forty steps")
            struck = time.monotonic()
            cluster.home.cut()
        else:
            cluster.train()
            struck = cluster.struck()
        SCENARIOS[name](cluster)
        cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
        end = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < end and len(cluster.slack.got) < 3:
            time.sleep(0.2)
        got = list(cluster.slack.got)
        told = [one for one in got if "resolved" not in json.dumps(one[1]) and "ended" not in json.dumps(one[1])]
        first = got[0][1]
        who = next((n.name for n in cluster.nodes if n.address == first["from"]), first["from"])
        words = json.dumps(first)
        named = {verdict.culprits for n in cluster.nodes if (verdict := _verdict(cluster.incident(n))) is not None}
        if cluster.proves_nothing or name == "link_dropped":
            words = f"rank {cluster.culprit}"  # undecided names nobody; what counts is that no innocent is named
        right = f"ank {cluster.culprit}" in words and named <= {(cluster.culprit,), ()}
        seen = {n.name: _shown(cluster.incident(n)) for n in cluster.nodes}
        print(
            f"{name:20} {place:5} {nodes} nodes of {per_node}: {got[0][0] - struck:5.1f} s, told by {who}, "
            f"messages {len(got)}, culprit {cluster.culprit} {'right' if right else 'WRONG'}\n"
            f"    {first.get('text', '')[:220]}\n    {seen}",
            flush=True,
        )
        for at, body in got[1:]:
            print(f"    +{at - struck:.1f} s from {body['from']}: {body.get('text', '')[:160]}", flush=True)
        if not right or len(told) > 1:
            print(f"    kept: {folder}", flush=True)
            return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _verdict(incident: Any) -> Any:
    return incident.verdicts[0] if incident is not None and incident.verdicts else None


def _shown(incident: Any) -> str:
    if incident is None:
        return "-"
    verdict = incident.verdicts[0] if incident.verdicts else None
    together = incident.together
    said = f"{verdict.cause} {list(verdict.culprits)} {verdict.confidence}" if verdict else "no verdict"
    return f"{said} by {together.nodes if together else 0} nodes, complete {incident.evidence_complete}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=[])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--per-node", type=int, default=1, help="ranks")
    parser.add_argument("--place", choices=("redis", "file"), default="redis")
    options = parser.parse_args()
    well = True
    for name in options.scenarios or SCENARIOS:
        try:
            well = play(name, options.nodes, options.per_node, options.place) and well
        except TimeoutError as error:
            print(f"{name}: {error}", flush=True)
            well = False
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
