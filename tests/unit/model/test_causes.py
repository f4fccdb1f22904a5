"""One table of causes: nobody keeps a set of his own, out of which a new cause would fall."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import stallwatch
from stallwatch.model.causes import CAUSES, Cause
from tests.readme import RULES

PACKAGE = Path(stallwatch.__file__).parent
# The demo's faults say which verdicts are right for them.
EXPECTATIONS = PACKAGE / "demo" / "catalogue.py"


def test_every_cause_has_its_row() -> None:
    assert tuple(CAUSES) == get_args(Cause), "the rows of CAUSES stand in the order of Cause"


def literal_names(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and names of each tuple, list, set or display's keys that stands in a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
        yield getattr(node, "lineno", 0), [p.value for p in parts if isinstance(p, ast.Constant) and p.value in CAUSES]


def test_there_is_no_second_place_where_causes_are_sorted() -> None:
    files = set(PACKAGE.rglob("*.py")) - {EXPECTATIONS, PACKAGE / "model" / "causes.py"}
    sets = [
        (str(file.relative_to(PACKAGE)), line, names)
        for file in sorted(files)
        for line, names in literal_names(file)
        if len(names) > 1 and not file.is_relative_to(PACKAGE / "diagnosis" / "report")
    ]
    assert sets == [], "ask stallwatch.model.causes, by a column if it has none that answers"


@pytest.mark.parametrize(
    ("alert", "causes"),
    [
        ("StallwatchRankLost", {c for c, t in CAUSES.items() if t.deadly and t.lies_in != "hardware"}),
        ("StallwatchHardwareFault", {c for c, t in CAUSES.items() if t.lies_in == "hardware"}),
        ("StallwatchRankBehind", {c for c, t in CAUSES.items() if t.state == "slow"}),
    ],
)
def test_an_alert_of_its_own_takes_what_the_table_says(alert: str, causes: set[str]) -> None:
    rules = RULES.read_text(encoding="utf-8")
    expression = rules.partition(f"alert: {alert}\n")[2].partition("annotations:")[0]
    assert set(re.findall(r'cause=~?"([a-z_|]+)"', expression)[0].split("|")) == causes


def test_the_alert_of_a_stall_takes_all_that_have_none() -> None:
    rules = RULES.read_text(encoding="utf-8")
    others = set(re.findall(r'cause!~"([a-z_|]+)"', rules)[0].split("|"))
    assert others == {c for c, t in CAUSES.items() if t.deadly or t.lies_in == "hardware" or t.state == "slow"}


def test_the_page_offers_nobody_to_end_a_job_that_flows() -> None:
    page = (PACKAGE / "outputs" / "page" / "incident.js").read_text(encoding="utf-8")
    found = re.search(r"MOVES = new Set\(\[([^\]]*)\]", page)
    assert found is not None
    assert set(re.findall(r"\w+", found[1])) == {cause for cause, traits in CAUSES.items() if traits.flows}
