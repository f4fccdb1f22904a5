"""Jobs of several nodes that ask one server, which stops answering: what people get (root, iproute2, torch):

    python -m tests.bench.bench_company_live [--nodes 3] [--place redis|file] [--voice slack|alertmanager|hurried]
        [--other-version FOLDER]

A node is a set of namespaces with a daemon and a job of two ranks of its own (bench_fleet_live); they have the meeting
place in common, a server in the place of Slack (behind a real Alertmanager with the shipped configuration where that is
the voice; `hurried`: with a second for each of its waits), and the server that the jobs ask. Prints each message, from
which node it came and how long after the last job began to wait; then the server lets all go, and the rest is printed.
Ends 1 where more than one message told of them as a warning or as critical, or one of the jobs is not in the first.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.fleet_engines import HOST
from tests.bench.fleet_nodes import Cluster
from tests.e2e.alertmanager import alertmanager_server

PROGRAM = Path(__file__).parent.parent / "programs" / "one_server.py"
_PATIENCE_SECONDS = 30.0  # tell.network_seconds here
_TOLD_SECONDS = 180.0
_QUIET_SECONDS = 45.0  # how long a second message is waited for
_INTERVAL_SECONDS = 60.0  # of a group of the shipped configuration: what comes later than its wait is told then
_PER_NODE = 2


def _said(cluster: Cluster, known: int, struck: float) -> None:
    for at, body in list(cluster.slack.got)[known:]:
        who = next((node.name for node in cluster.nodes if node.address == body["from"]), body["from"])
        text = body.get("text") or body.get("attachments", [{}])[0].get("title", "")
        print(f"    +{at - struck:.1f} s from {who}: {text[:300]}", flush=True)


def play(nodes: int, place: str, voice: str, other_version: Path | None) -> bool:
    """One story; return whether it was told once, with all in it."""
    folder = Path(tempfile.mkdtemp(prefix="company-live-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, nodes, _PER_NODE, place, "gloo").running())
        silent = stack.enter_context(socket.create_server((HOST, 0), backlog=64))
        os.environ["ONE_SERVER"] = f"{HOST}:{silent.getsockname()[1]}"
        cluster.other_version = other_version
        cluster.settings = {"tell": {"network_seconds": str(_PATIENCE_SECONDS)}}
        if voice != "slack":
            hurried = voice == "hurried"
            address = stack.enter_context(alertmanager_server(cluster.slack.url, folder, HOST, hurried=hurried))
            cluster.settings |= {"alertmanager": {"urls": f"http://{address}"}, "slack": {}}
        cluster.engine.start()
        cluster.watch()
        jobs = [f"job-{node.number}" for node in cluster.nodes]
        for node, job in zip(cluster.nodes, jobs, strict=True):
            given = ["--fault-step", "40", "--seed", "5", "--backend", "gloo"]
            node.train(PROGRAM, given, 1, _PER_NODE, node.address, job)
        cluster.until(lambda: all(node.mark.exists() for node in cluster.nodes), 300.0, "the fault of each job")
        struck = time.monotonic()
        cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
        time.sleep(_QUIET_SECONDS + (_INTERVAL_SECONDS if voice == "alertmanager" else 0.0))
        told = list(cluster.slack.got)
        words = [json.dumps(body, ensure_ascii=False) for _, body in told]
        print(f"{nodes} nodes, {place}, {voice}: {len(told)} messages, load {os.getloadavg()[0]:.0f}", flush=True)
        _said(cluster, 0, struck)
        silent.settimeout(1.0)
        with contextlib.suppress(OSError):
            while True:
                silent.accept()[0].close()
        silent.close()
        print(f"    the server lets all go at +{time.monotonic() - struck:.1f} s", flush=True)
        time.sleep(_QUIET_SECONDS)
        _said(cluster, len(told), struck)
        once = all(sum(mark in text for text in words) <= 1 for mark in "🟠🔴")  # as warning, and as critical
        good = once and all(job in words[0] for job in jobs)
    if good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"    kept: {folder}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--place", choices=("redis", "file"), default="redis")
    parser.add_argument("--voice", choices=("slack", "alertmanager", "hurried"), default="slack")
    parser.add_argument("--other-version", type=Path, help="a folder with `stallwatch`: of the last node's daemon")
    options = parser.parse_args()
    return 0 if play(options.nodes, options.place, options.voice, options.other_version) else 1


if __name__ == "__main__":
    sys.exit(main())
