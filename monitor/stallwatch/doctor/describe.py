"""The table of all checks, generated, for the documents and for `doctor --list`."""

from stallwatch.doctor.checks import CHECKS


def checks_table() -> str:
    """Return a Markdown table of all checks: name, area, what each looks for."""
    rows = [f"| `{check.name}` | {check.area} | {check.looks_for} |" for check in CHECKS]
    return "\n".join(("| check | area | finds |", "|---|---|---|", *rows)) + "\n"
