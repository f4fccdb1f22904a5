import re
from pathlib import Path

import stallwatch.captures
from stallwatch.captures.evidence_table import SOURCES, markdown

CAPTURES = Path(stallwatch.captures.__file__).parent
KEYS = {source.key for source in SOURCES}
INTERNAL = {"release"}  # a step of a capture's own, which no person sets up


def test_everything_that_a_capture_tries_is_in_the_table() -> None:
    text = "".join(path.read_text() for path in CAPTURES.glob("*.py"))
    tried = set(re.findall(r'(?:\.note|\bAttempt)\(\s*"([a-z_]+)"', text))
    assert {"stacks", "nccl_ras", "flight_recorder", "kernel_log"} <= tried, "the pattern finds them"
    assert tried - INTERNAL <= KEYS


def test_table_is_markdown_of_one_width() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(SOURCES) + 2
    assert {line.count("|") for line in lines} == {5}
