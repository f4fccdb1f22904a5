"""Every expression of dashboards and rules, asked of a real Prometheus that scrapes a real daemon.

`python -m tests.e2e.panels` hangs a real job and prints them all: how many series each returns, or why it has none.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from stallwatch.demo.catalogue import find
from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import PROGRAMS, job_environment
from tests.bench.jobs import server
from tests.e2e.prometheus import Prometheus, prometheus_server, until

ROOT = Path(__file__).parents[2]

# What rightly returns nothing while a rank of a gloo job on a machine without GPUs hangs in a lock: a pattern for a
# name and its expression, and the reason.
EXPLAINED = {
    r"stallwatch_gpu_": "no GPU here; tests/e2e/test_prometheus.py asks them of a node that has one",
    r"stallwatch_stalled_gpu_": "no GPU here that could have stood",
    r"stallwatch_output_(deliveries|queue|held)": "nothing but the page is configured, and it delivers no messages",
    r"rule Stallwatch(RankLost|HardwareFault|RankBehind|JobStandsStill)": "the cause is another one, a verdict exists",
    r"rule Stallwatch(DaemonAbsent|LoopStands|SensorDead|DeliveryFailing|Silenced)": "all is well with stallwatch",
    r"rule Stallwatch(MeetingPlaceAway|FleetKeysDiffer)": "nodes do not meet",
    r"blind or dumb": "all is well with stallwatch",
    r"fails in stallwatch itself\? \(B\)": "no stage had an error",
    r"stallwatch_verdicts_judged": "nobody has said whether it was right",
    r"stallwatch_rank_phase": "the culprit's program knows no phases",
}


# Steps enough for what is told of eight looks of a moving job, four of which are made in a second.
OPTIONS = ("--backend=gloo", "--fault-step=100")


def panel_expressions() -> dict[str, str]:
    """ "dashboard: panel (ref)" to its expression, with every variable at "All"."""
    found = {}
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        tree = json.loads(path.read_text(encoding="utf-8"))
        for panel in tree["panels"]:
            for target in panel.get("targets", ()):
                asked = re.sub(r"\$(training_job|rank|node|instance)\b", ".*", target["expr"])
                found[f"{path.stem}: {panel['title']} ({target['refId']})"] = asked
        for annotation in tree["annotations"]["list"]:
            found[f"{path.stem}: annotation"] = re.sub(r"\$(training_job|rank|node)\b", ".*", annotation["expr"])
    return found


def rule_expressions() -> dict[str, str]:
    text = (ROOT / "deploy" / "prometheus" / "stallwatch.rules.yml").read_text(encoding="utf-8")
    blocks = re.findall(r"- alert: (\w+)\n(.*?)(?=\n +(?:annotations|for|labels):)", text, re.DOTALL)
    found = {}
    for name, body in blocks:
        expression = body.partition("expr:")[2].replace(">-", "").partition(" # ")[0]
        found[f"rule {name}"] = " ".join(expression.split())
    return found


def every_expression_has_data(prometheus: Prometheus, explained: Collection[str]) -> None:
    """Fail with those that stay empty; `explained` holds patterns for a name and expression that may."""
    waiting = {
        name: expression
        for name, expression in (panel_expressions() | rule_expressions()).items()
        if not any(re.search(pattern, f"{name} {expression}") for pattern in explained)
    }

    def all_answered() -> bool:
        for name in [name for name, expression in waiting.items() if prometheus.query(expression)]:
            del waiting[name]
        return not waiting

    try:
        until(all_answered, "no data")
    except AssertionError:
        raise AssertionError("\n".join(f"{name}: {asked}" for name, asked in waiting.items())) from None


def main() -> int:
    fault = find("lock")
    with tempfile.TemporaryDirectory(prefix="sw-panels-", dir="/tmp") as made, server() as jobs:
        folder = Path(made)
        daemon = DaemonChild(folder, os.environ)
        daemon.start()
        try:
            address = urlsplit(daemon.client.page_url() or "").netloc
            with prometheus_server(address, folder) as prometheus:
                environment = job_environment(os.environ, daemon.rank_directory, folder / "mark", folder, "panels")
                changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
                jobs.launch(PROGRAMS / f"{fault.program}.py", [*OPTIONS, "--seed=1"], 4, changed)
                until(lambda: prometheus.query("stallwatch_culprit"), "no culprit in Prometheus")
                return tell(prometheus)
        finally:
            daemon.stop()


def tell(prometheus: Prometheus) -> int:
    """Print a line an expression; return how many are empty without a reason."""
    try:
        every_expression_has_data(prometheus, EXPLAINED)
    except AssertionError:
        pass  # named below
    unexplained = 0
    for name, expression in (panel_expressions() | rule_expressions()).items():
        series = len(prometheus.query(expression))
        patterns = [pattern for pattern in EXPLAINED if re.search(pattern, f"{name} {expression}")]
        unexplained += not series and not patterns
        why = f"none: {EXPLAINED[patterns[0]]}" if patterns else "NONE, AND NO REASON"
        print(f"{name}\n    {expression}\n    -> {f'{series} series' if series else why}")
    print(f"{unexplained} of {len(panel_expressions() | rule_expressions())} are empty without a reason")
    return min(unexplained, 1)


if __name__ == "__main__":
    sys.exit(main())
