"""Real daemons of several nodes on one machine, one job across them, and a meeting place (root, iproute2, torch):

    python -m tests.bench.bench_fleet_live [--nodes 3] [--per-node 1] [--place redis|file] [--backend nccl]
        [--extra 0.3] [--other-version FOLDER] [SCENARIO…]

A node is a namespace each of network, pids, hosts' names and mounts, with its own daemon, run directory and ranks.
Prints for each scenario what was told to a server in the place of Slack, by whom, and the seconds from the fault to the
first message. Asserts nothing; ends 1 when a culprit is wrong, nobody was told, or more than one message was sent.
"""

import argparse
import functools
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallwatch.demo.draw import drawn_rank
from stallwatch.demo.job import PROGRAMS
from tests.bench.fleet_nodes import RATE, SLOW, Cluster, Node

_TOLD_SECONDS = 100.0
_QUIET_SECONDS = 25.0  # how long a second message is waited for
_SLOW_SECONDS = 3.5
_STANDS_SECONDS = 60.0
_CALM_SECONDS = 170.0
_PACED_SECONDS = 25.0  # until each node has put, with its pace, which ranks it has: every 10 s, of blocks of steps


def plain(cluster: Cluster) -> None:
    """A lock is never given back on a node that is not rank 0's."""


def slow(cluster: Cluster) -> None:
    """A rank needs longer for each step (--extra): with one rank a node no node sees more than its own."""


def slow_and_well(cluster: Cluster) -> None:
    """The same, and a minute and a half later it is as fast as the others again."""
    cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
    over = cluster.until(lambda: cluster.marked("over"), 300, "its end")
    cluster.until(lambda: len(cluster.slack.got) > 1, 150, "a message of its end")
    print(f"    its end was told {cluster.slack.got[1][0] - over:.1f} s after it", flush=True)


def late(cluster: Cluster) -> None:
    """Ranks that keep a rate by clocks of their own, one of which is late from some step on: it costs nothing."""


def late_from_start(cluster: Cluster) -> None:
    """The same from the first steps on."""


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


def leader_stands(cluster: Cluster) -> None:
    """The daemon that holds the claim is stopped with its children before it has told, and goes on a minute later."""
    speaker = cluster.until(lambda: _holder(cluster), 60, "a claim")
    began = time.monotonic()
    with speaker.daemon_stopped():
        cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
        time.sleep(max(0.0, _STANDS_SECONDS - (time.monotonic() - began)))


def engine_away_before(cluster: Cluster) -> None:
    """The meeting place has been away since before the fault."""


def engine_away_during(cluster: Cluster) -> None:
    """The meeting place goes when the first node has claimed, and is back 20 s later."""
    cluster.until(lambda: _holder(cluster), 60, "a claim")
    cluster.engine.stop()
    time.sleep(20)
    cluster.engine.start()


def engine_away_after(cluster: Cluster) -> None:
    """The meeting place goes once it was told, and noted; a moment before that a second message is possible."""
    cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
    time.sleep(3)
    cluster.engine.stop()


def engine_full(cluster: Cluster) -> None:
    """The meeting place has had no room since before the fault, and evicts nothing."""


def engine_read_only(cluster: Cluster) -> None:
    """The meeting place has been a replica that may not be written since before the fault."""


def engine_full_at_the_claim(cluster: Cluster) -> None:
    """The meeting place is full when the first node has claimed, and has room again 20 s later."""
    cluster.until(lambda: _holder(cluster), 60, "a claim")
    cluster.engine.fill()
    time.sleep(20)
    cluster.engine.mend()


def said_on_one_node(cluster: Cluster) -> None:
    """Once it is told: what people may say, on a node that does not tell; until all know."""
    cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
    speaker = cluster.until(cluster.speaker, 10, "who speaks")
    node = next(one for one in cluster.nodes if one is not speaker)
    client, incident = node.client, cluster.incident(node)

    def silenced(what: str) -> bool:
        return all(what in str(node.client.ranks().telling.silences) for node in cluster.nodes)

    def in_mode(mode: str) -> bool:
        return all(node.client.ranks().telling.mode == mode for node in cluster.nodes)

    def acknowledged() -> bool:
        return all((seen := cluster.incident(one)) and seen.acknowledged_by == "anna" for one in cluster.nodes)

    def heard(what: str, condition: Callable[[], bool]) -> None:
        began = time.monotonic()
        cluster.until(condition, 60, what)
        print(f"    {what}: known on all {len(cluster.nodes)} nodes {time.monotonic() - began:.1f} s later", flush=True)

    client.mute(incident.training_job, 600.0, by="anna")
    heard("a mute", lambda: silenced(incident.training_job))
    client.acknowledge(incident.incident_id, "anna")
    heard("an acknowledgement", acknowledged)
    client.maintenance(speaker.name, 600.0, "a fan", by="carl")
    heard("maintenance of a node", lambda: silenced(speaker.name))
    client.maintenance(speaker.name, 0.0, by="carl")
    heard("its end", lambda: not any(speaker.name in str(one.client.ranks().telling.silences) for one in cluster.nodes))
    for mode in ("shadow", "off", "tell"):
        client.mode(mode, 600.0, by="bert")
        heard(f"mode = {mode}", functools.partial(in_mode, mode))


def engine_slow(cluster: Cluster) -> None:
    """Each of the meeting place's answers takes 3.5 s (of a directory: each change, and those that wait at once)."""


def rank_0_cut_off(cluster: Cluster) -> None:
    """The link of rank 0's node drops as the fault strikes."""
    cluster.nodes[0].cut()


def link_dropped(cluster: Cluster) -> None:
    """No fault of the program: the last node's link goes down in mid-job."""


def killed(cluster: Cluster) -> None:
    """No fault of the program: a rank is killed; with one rank a node, none is left on its node."""


def _holder(cluster: Cluster) -> Node | None:
    """Who has claimed an incident."""
    names = cluster.engine.holders()
    return next((node for node in cluster.nodes if node.name in names), None)


SCENARIOS: dict[str, Callable[[Cluster], None]] = {
    one.__name__: one
    for one in (
        plain, slow, slow_and_well, late, late_from_start, stopped, leader_dies_before, leader_dies_after,
        leader_stands, engine_away_before, engine_away_during, engine_away_after, engine_slow, engine_full,
        engine_read_only, engine_full_at_the_claim, said_on_one_node, rank_0_cut_off, link_dropped, killed,
    )
}  # fmt: skip


def play(name: str, options: argparse.Namespace) -> bool:
    nodes, per_node, place, extra = options.nodes, options.per_node, options.place, options.extra
    folder = Path(tempfile.mkdtemp(prefix="fleet-live-"))
    folder.chmod(0o755)
    with Cluster(folder, nodes, per_node, place, options.backend).running() as cluster:
        cluster.other_version = options.other_version
        if name == "stopped":
            cluster.program = PROGRAMS / "job_control.py"
        away = name in ("engine_away_before", "engine_full", "engine_read_only")
        alone = away and per_node == 1  # no rank beside the culprit waits for it
        cluster.proves_nothing = alone
        if name.startswith("slow"):
            cluster.program = SLOW
        if name.startswith("late"):
            cluster.program = RATE
        # The first draw of a rank that is not on rank 0's node.
        cluster.seed = next(seed for seed in itertools.count(5) if drawn_rank(seed, nodes * per_node) >= per_node)
        if name == "engine_away_before":
            cluster.engine.stop()
        else:
            cluster.engine.start()
        if name == "engine_slow":
            cluster.engine.answer_after(_SLOW_SECONDS)
        if name == "engine_full":
            cluster.engine.fill()
        if name == "engine_read_only":
            cluster.engine.obey_nobody()
        cluster.watch()
        if cluster.program == RATE:
            cluster.train("--late-step", "3" if name == "late_from_start" else "300")
            return _told_nobody(cluster, name)
        if name in ("link_dropped", "killed"):
            cluster.train("--fault-step", "1000000")
            cluster.until(lambda: cluster.steps() > 40, 300.0, "forty steps")
            if name == "link_dropped":
                time.sleep(_PACED_SECONDS)
            struck = time.monotonic()
            if name == "killed":
                cluster.kill_culprit()
            else:
                cluster.home.cut()
        else:
            stays = ["--seconds", "100" if name == "slow_and_well" else "240", "--after-seconds", "240"]
            cluster.train(*(["--extra", str(extra), *stays] if cluster.program == SLOW else []))
            struck = cluster.struck()
        SCENARIOS[name](cluster)
        cluster.until(lambda: cluster.slack.got, _TOLD_SECONDS, "a message")
        end = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < end and len(cluster.slack.got) < 3:
            time.sleep(0.2)
        got = list(cluster.slack.got)
        # What is critical after a minute is told once more, and so is the end.
        more = ("resolved", "ended", "still rank", "no longer")
        told = [one for one in got if not any(word in json.dumps(one[1]) for word in more)]
        first = got[0][1]
        who = next((n.name for n in cluster.nodes if n.address == first["from"]), first["from"])
        words = json.dumps(first)
        named = {verdict.culprits for n in cluster.nodes if (verdict := _verdict(cluster.incident(n))) is not None}
        if cluster.proves_nothing or name == "link_dropped":
            words = f"rank {cluster.culprit}"  # undecided names nobody; what counts is that no innocent is named
        right = f"ank {cluster.culprit}" in words and named <= {(cluster.culprit,), ()}
        seen = {n.name: _shown(cluster.incident(n)) for n in cluster.nodes}
        print(
            f"{name:20} {place:5} {nodes} nodes of {per_node}{f' +{extra:.0%}' if cluster.program == SLOW else ''}: "
            f"{got[0][0] - struck:5.1f} s, load {os.getloadavg()[0]:.0f}, told by {who}, "
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


def _told_nobody(cluster: Cluster, name: str) -> bool:
    """Whether it is so for as long as a slow rank would take to be told, twice."""
    cluster.until(lambda: cluster.steps() > 40, 300.0, "forty steps")
    end = time.monotonic() + _CALM_SECONDS
    while time.monotonic() < end and not cluster.slack.got:
        time.sleep(0.5)
    said = [body.get("text", "")[:300] for _, body in cluster.slack.got]
    print(
        f"{name:20} {cluster.place:5} {len(cluster.nodes)} nodes of {cluster.per_node}: {cluster.steps()} steps, "
        f"load {os.getloadavg()[0]:.0f}, messages {len(said)}, rank {cluster.culprit} was late: {said}",
        flush=True,
    )
    return not said


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
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--extra", type=float, default=0.5, help="share of a step by which the slow rank is slower")
    parser.add_argument("--other-version", type=Path, help="a folder with `stallwatch`: of the last node's daemon")
    options = parser.parse_args()
    well = True
    for name in options.scenarios or SCENARIOS:
        try:
            well = play(name, options) and well
        except TimeoutError as error:
            print(f"{name}: {error}", flush=True)
            well = False
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
