"""Every expression of dashboards and rules, asked of a real Prometheus."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.prometheus import Prometheus, until

ROOT = Path(__file__).parents[2]


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


def every_expression_has_data(prometheus: Prometheus, explained: Sequence[str]) -> None:
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
