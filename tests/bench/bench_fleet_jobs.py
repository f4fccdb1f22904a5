"""Several nodes, and what a site does between two incidents (root, iproute2, torch; nodes as in bench_fleet_live.py):

    python -m tests.bench.bench_fleet_jobs [--place redis|file] [SCENARIO…]

Prints for each scenario what was told, by whom, and the seconds from the fault to the first message. Asserts nothing;
ends 1 when a culprit is wrong, a hang was told to nobody or twice, or what was said of one job stands at the next.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallwatch.demo.draw import drawn_rank
from tests.bench.fleet_nodes import Cluster, Node

_NODES = 3
_TOLD_SECONDS = 100.0
_QUIET_SECONDS = 25.0  # how long a second message is waited for
_AFTERWARDS = ("resolved", "ended", "still rank", "no longer", "is over")  # of an incident that was told before


def next_job(cluster: Cluster) -> bool:
    """A job hangs, is acknowledged and ended; the next one at the same address hangs as well."""
    return _two_jobs(cluster, lambda: None)


def next_job_after_a_restart(cluster: Cluster) -> bool:
    """The same, and between them a daemon is started anew."""

    def between() -> None:
        cluster.nodes[-1].kill_daemon()
        cluster.watch_on(cluster.nodes[-1])

    return _two_jobs(cluster, between)


def next_job_on_a_new_node(cluster: Cluster) -> bool:
    """The same, and that daemon has lost what it knew: its incidents are counted from 1 again."""

    def between() -> None:
        cluster.nodes[-1].kill_daemon()
        shutil.rmtree(cluster.nodes[-1].folder / "state")
        cluster.watch_on(cluster.nodes[-1])

    return _two_jobs(cluster, between)


def other_key(cluster: Cluster) -> bool:
    """The last node signs with a key of its own; while the job stands it gets the others'."""
    cluster.nodes[-1].sign_with("another secret of sixteen bytes and more")
    cluster.watch()
    cluster.until(lambda: all(_sees_another_key(node) for node in cluster.nodes), 60, "a word of the keys")
    well = _hangs(cluster, 0, most=2)
    before = len(_told(cluster))
    cluster.nodes[-1].sign_with("a secret of at least sixteen bytes")
    cluster.until(lambda: not any(_sees_another_key(node) for node in cluster.nodes), 90, "one key")
    time.sleep(_QUIET_SECONDS)
    more = _told(cluster)[before:]
    print(f"    one key again: {len(more)} further messages", flush=True)
    return well and not more


def _two_jobs(cluster: Cluster, between: Callable[[], None]) -> bool:
    cluster.watch()
    well = _hangs(cluster, 0)
    node = cluster.nodes[1]
    first = cluster.incident(node)
    node.client.acknowledge(first.incident_id, "anna")
    cluster.until(
        lambda: all((seen := cluster.incident(one)) and seen.acknowledged_by == "anna" for one in cluster.nodes),
        60,
        "an acknowledgement",
    )
    cluster.end_job()
    between()
    before = len(_told(cluster))
    cluster.seed = _seed(cluster, cluster.culprit)
    well = _hangs(cluster, before) and well
    known = [one for node in cluster.nodes for one in _judged(node) if one.incident_id != first.incident_id]
    if said := [one.incident_id for one in known if one.acknowledged_by]:
        print(f"    WRONG: of the job before {said} was acknowledged", flush=True)
    return well and not said


def _hangs(cluster: Cluster, before: int, most: int = 1) -> bool:
    """Play one job, and return whether its hang was told, rightly, and at most so often."""
    cluster.train()
    struck = cluster.struck()
    cluster.until(lambda: _told(cluster)[before:], _TOLD_SECONDS, "a message")
    time.sleep(_QUIET_SECONDS)
    got = _told(cluster)[before:]
    named = [f"ank {cluster.culprit}" in json.dumps(body) for _, body in got]
    well = any(named) and len(got) <= most
    for at, body in got:
        who = next((node.name for node in cluster.nodes if node.address == body["from"]), body["from"])
        after = f"{at - struck:.1f} s, load {os.getloadavg()[0]:.0f}"
        print(f"    {after}, {who}: {body.get('text', '')[:200]}", flush=True)
    print(f"    rank {cluster.culprit}: {'right' if well else 'WRONG'}, messages {len(got)}", flush=True)
    return well


def _told(cluster: Cluster) -> list[tuple[float, dict[str, Any]]]:
    """What was posted first of each incident: no end and no reminder."""
    return [one for one in cluster.slack.got if not any(word in json.dumps(one[1]) for word in _AFTERWARDS)]


def _judged(node: Node) -> list[Any]:
    return [one for one in node.client.incidents().incidents if one.state != "suspect"]


def _sees_another_key(node: Node) -> bool:
    found = re.search(r"^stallwatch_fleet_other_key_nodes\S* (\S+)", node.client.metrics(), re.MULTILINE)
    return found is not None and float(found[1]) > 0


def _seed(cluster: Cluster, last: int = 0) -> int:
    """Which draws a rank that is not on rank 0's node, nor the last one."""
    elsewhere = set(range(cluster.per_node, _NODES * cluster.per_node)) - {last}
    return next(seed for seed in itertools.count(5) if drawn_rank(seed, _NODES * cluster.per_node) in elsewhere)


SCENARIOS: dict[str, Callable[[Cluster], bool]] = {
    one.__name__: one for one in (next_job, next_job_after_a_restart, next_job_on_a_new_node, other_key)
}


def play(name: str, place: str) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="fleet-jobs-"))
    folder.chmod(0o755)
    print(f"{name}, {place}", flush=True)
    # Where nodes do not believe each other, one with a single rank sees no more than that.
    with Cluster(folder, _NODES, 2 if name == "other_key" else 1, place, "gloo").running() as cluster:
        cluster.seed = _seed(cluster)
        cluster.engine.start()
        try:
            well = SCENARIOS[name](cluster)
        except TimeoutError as error:
            print(f"    {error}", flush=True)
            well = False
    if well:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"    kept: {folder}", flush=True)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=[])
    parser.add_argument("--place", choices=("redis", "file"), default="redis")
    options = parser.parse_args()
    played = [play(name, options.place) for name in options.scenarios or SCENARIOS]
    return 0 if all(played) else 1


if __name__ == "__main__":
    sys.exit(main())
