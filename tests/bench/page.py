"""The table of tests/bench/README.md, of what lies in tests/bench/results."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench import results
from tests.bench.figures import Figure, number
from tests.bench.results import Measured, Results
from tests.bench.rows import ROWS, Row

PAGE = Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- figures: python -m tests.bench --page -->\n", "<!-- end of figures -->\n"


def write() -> None:
    """Put the figures of every result file into the page, in the order of the rows."""
    kept = [results.read(path) for path in sorted(results.FOLDER.glob("*.json"))]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(before + _BEGIN + "\n".join(lines(kept)) + "\n" + _END + after, encoding="utf-8")


def lines(kept: Sequence[Results]) -> Iterator[str]:
    """Yield the lines of the table, and then of each machine what it is."""
    yield ""
    yield "| row | figure | measured | goal | beside it, in the same run | when, where, revision, load |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in ROWS:
        for number_of_machine, of in enumerate(kept, 1):
            measured = of.rows.get(row.name)
            if measured is not None:
                yield from _of_row(row, measured, number_of_machine)
    yield ""
    for number_of_machine, of in enumerate(kept, 1):
        versions = ", ".join(f"{name} {version}" for name, version in of.versions.items())
        yield f"Machine {number_of_machine}: {of.machine}; {versions}.\n"


def _of_row(row: Row, measured: Measured, machine: int) -> Iterator[str]:
    quick = ", quick" if measured.quick else ""
    when = f"{measured.at}, machine {machine}, {measured.revision}, load {measured.load[0]:.0f}{quick}"
    goals = {goal.figure: goal for goal in row.goals}
    for place, figure in enumerate(measured.figures):
        goal = goals.get(figure.name)
        kept = "" if goal is None else f"{goal}: {'met' if goal.is_met(figure) else '**missed**'}"
        name, seen = (f"`{row.name}`", when) if place == 0 else ("", "")
        yield f"| {name} | {figure.name} | {_value(figure)} | {kept} | {figure.detail} | {seen} |"


def _value(figure: Figure) -> str:
    between = f" ({number(figure.low)} to {number(figure.high)})" if figure.low is not None and figure.high else ""
    return f"{number(figure.value)} {figure.unit}{between}"
