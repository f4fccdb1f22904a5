"""What tests/mutation changes: one thing each time, and never nothing."""

import ast

from tests.mutation.__main__ import mutant, places

SOURCE = """
def is_late(now, since, limit):
    if since is None:
        return False
    return now - since > limit and limit != 0
"""


def test_every_mutant_is_another_program_of_one_change() -> None:
    found = [mutant(SOURCE, *place) for place in places(ast.parse(SOURCE))]
    programs = {one.source for one in found}
    assert len(programs) == len(found) >= 7
    assert ast.unparse(ast.parse(SOURCE)) not in programs
    whats = {one.what for one in found}
    assert {"since is None → since is not None", "now - since → now + since", "0 → 1"} <= whats
    assert "condition since is None is True" in whats


def test_a_program_with_nothing_to_change_has_no_mutant() -> None:
    assert places(ast.parse("import os\n\n\ndef f() -> None:\n    os.getpid()\n")) == []
