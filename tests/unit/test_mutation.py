"""What tests/mutation changes: one thing each time, and never nothing."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation.in_place import put_in_place
from tests.mutation.mutants import mutant, places

ROOT = Path(__file__).parents[2]

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
    assert {(one.line, one.column) for one in found if one.what == "0 → 1"} == {(5, 45)}


def test_a_program_with_nothing_to_change_has_no_mutant() -> None:
    assert places(ast.parse("import os\n\n\ndef f() -> None:\n    os.getpid()\n")) == []


MODULE = """
LIMIT = 3

def is_more(number, than=2):
    return number > than and number > LIMIT

class Counter:
    most = 4

    def next(self, number):
        return (lambda one: one + 1)(number)
"""


@pytest.mark.parametrize(
    ("what", "in_place", "after"),
    [
        ("", True, (True, False, 5)),
        ("number > LIMIT → number >= LIMIT", True, (True, True, 5)),
        ("one + 1 → one - 1", True, (True, False, 3)),
        ("3 → 4", True, (False, False, 5)),
        ("2 → 3", True, (True, False, 5)),
        ("4 → 5", False, (True, False, 5)),
    ],
)
def test_a_mutant_takes_the_place_of_what_others_have_imported(
    tmp_path: Path, what: str, in_place: bool, after: tuple[bool, bool, int]
) -> None:
    file = tmp_path / "mutated.py"
    file.write_text(MODULE, encoding="utf-8")
    module = ModuleType("mutated")
    module.__file__ = str(file)
    exec(compile(MODULE, str(file), "exec"), module.__dict__)
    is_more, counter = module.is_more, module.Counter()  # as an importer holds them
    if what:
        changed = next(one for place in places(ast.parse(MODULE)) if (one := mutant(MODULE, *place)).what == what)
        assert put_in_place(module, changed) is in_place
    assert (is_more(4), is_more(3), counter.next(4)) == after
    assert is_more(2.5, 2.2) is False
    assert (is_more.__defaults__ == (3,)) is (what == "2 → 3")


LEAVES = """
import subprocess, sys, time
from tests.mutation.in_place import in_a_fork
from tests.mutation.left_behind import nothing

def leaves():
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

def is_ended():
    left = leaves()
    with open(sys.argv[1], "w") as told:
        told.write(f"{left}\\n")
    time.sleep(600)

with nothing():
    first = in_a_fork(leaves).decode()
    print(first, flush=True)
    in_a_fork(is_ended)
"""


def test_what_a_test_started_ends_with_it_and_with_the_command_that_is_ended(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    command = [sys.executable, "-c", LEAVES, str(told)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tool:
        assert tool.stdout
        after_its_test = int(tool.stdout.readline())
        under_way = int(told.read_text(encoding="ascii"))
        assert not is_there(after_its_test)
        assert is_there(under_way)
        tool.terminate()
        tool.wait(timeout=60)
        assert not is_there(under_way)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
