"""The README and its pages. `python -m tests.readme` writes their generated parts, and the example of a configuration;
tests keep them equal."""

from collections.abc import Callable
from pathlib import Path

from stallwatch import config
from stallwatch.captures import evidence_table
from stallwatch.doctor.describe import checks_table
from stallwatch.outputs import metric_table, webhook

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "deploy" / "docs"
PAGES = (README, ROOT / "monitor" / "README.md", *sorted(DOCS.glob("*.md")))

BLOCKS: dict[str, Callable[[], str]] = {
    "evidence": evidence_table.markdown,
    "doctor": checks_table,
    "metrics": lambda: "\n".join(metric_table.reference()),
}  # by the page that each stands on


def rendered(name: str) -> str:
    """Return the page's text with its generated part as the code has it now."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    start = "<!-- generated -->\n"
    assert start in text, f"{name}.md has no generated part"
    before, rest = text.split(start, 1)
    return f"{before}{start}{BLOCKS[name]().rstrip()}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"


SCHEMA = DOCS / "webhook.schema.json"

if __name__ == "__main__":
    SCHEMA.write_bytes(webhook.schema())
    (ROOT / "deploy" / "config.example.toml").write_text(config.example(), encoding="utf-8")
    for page in BLOCKS:
        (DOCS / f"{page}.md").write_text(rendered(page), encoding="utf-8")
