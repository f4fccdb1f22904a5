"""Generated parts of the README. `python -m tests.readme` writes them; a test keeps them equal."""

from collections.abc import Callable
from pathlib import Path

from stallwatch.captures import evidence_table
from stallwatch.doctor.describe import checks_table
from stallwatch.outputs import metric_table

README = Path(__file__).parent.parent / "README.md"

BLOCKS: dict[str, Callable[[], str]] = {
    "evidence": evidence_table.markdown,
    "checks": checks_table,
    "metrics": lambda: "\n".join(metric_table.reference()),
}


def rendered(text: str) -> str:
    """Return the README's text with every generated part as the code has it now."""
    for name, make in BLOCKS.items():
        start = f"<!-- generated: {name} -->\n"
        assert start in text, f"README.md has no part called {name}"
        before, rest = text.split(start, 1)
        text = f"{before}{start}{make().rstrip()}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
