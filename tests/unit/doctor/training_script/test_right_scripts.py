"""Scripts that are right, in the styles that people write: no check of training scripts has a warning for them."""

from pathlib import Path

import pytest

from stallwatch.doctor.check import Check
from stallwatch.doctor.checks import CHECKS
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import Node

RIGHT = sorted((Path(__file__).parent / "right").glob("*.py.txt"))
OF_SCRIPTS = [check for check in CHECKS if type(check).__module__.startswith("stallwatch.doctor.training_script.")]


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("check", OF_SCRIPTS, ids=lambda check: check.name)
def test_a_right_script_gets_no_warning(node: Node, path: Path, check: Check) -> None:
    script = node.write("train.py", path.read_text())
    compile(path.read_text(), str(path), "exec")  # a script that does not parse would be silent too
    found = check.look(node.around(question=Question(scripts=(script,))))
    assert [one for one in found if one.severity != "info"] == []


def test_there_are_scripts_of_many_styles() -> None:
    assert len(RIGHT) >= 10
    assert len(OF_SCRIPTS) >= 10
