"""The README and its pages. `python -m tests.readme` writes their generated parts, and the example of a configuration;
tests keep them equal."""

from collections.abc import Callable
from pathlib import Path

from stallwatch import config
from stallwatch.captures import evidence_table
from stallwatch.doctor.checks import checks_table
from stallwatch.model import causes
from stallwatch.outputs import metric_table, webhook

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "deploy" / "docs"
PAGES = (README, ROOT / "monitor" / "README.md", *sorted((ROOT / "deploy").rglob("*.md")))

BLOCKS: dict[str, Callable[[], str]] = {
    # What is read, and what is exported of it, on one page: a new sensor changes this one alone.
    "evidence": lambda: f"{evidence_table.markdown()}\n## All metrics\n\n" + "\n".join(metric_table.reference()),
    "doctor": checks_table,
    "verdicts": causes.table,
}  # by the page that each stands on


def rendered(name: str) -> str:
    """Return the page's text with its generated part as the code has it now."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    start = "<!-- generated -->\n"
    assert start in text, f"{name}.md has no generated part"
    before, rest = text.split(start, 1)
    return f"{before}{start}{BLOCKS[name]().rstrip()}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"


RULES = ROOT / "deploy" / "prometheus" / "stallwatch.rules.yml"
OPERATORS_RULES = ROOT / "deploy" / "kubernetes" / "monitoring" / "rules.yaml"


def operators_rules() -> str:
    """The rules as the Prometheus operator takes them."""
    groups = RULES.read_text(encoding="utf-8").partition("\ngroups:\n")[2]
    body = "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))
    return (
        "# Made of deploy/prometheus/stallwatch.rules.yml by `python -m tests.readme`.\n"
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: stallwatch\nspec:\n  groups:\n"
    ) + body


SCHEMA = DOCS / "webhook.schema.json"

if __name__ == "__main__":
    SCHEMA.write_bytes(webhook.schema())
    OPERATORS_RULES.write_text(operators_rules(), encoding="utf-8")
    (ROOT / "deploy" / "config.example.toml").write_text(config.example(), encoding="utf-8")
    for page in BLOCKS:
        (DOCS / f"{page}.md").write_text(rendered(page), encoding="utf-8")
