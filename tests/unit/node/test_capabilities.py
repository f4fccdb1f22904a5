import os
import subprocess

import pytest

from tests.programs.everybody import python_for_everybody

SHOW = """
import subprocess, sys
from stallwatch.node import capabilities
{what}
lines = [line.split() for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapEff", "CapAmb"))]
child = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')))"
inherited = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
print(*(int(words[1], 16) for words in lines), int(inherited, 16))
"""
SEARCH, PTRACE = 1 << 2, 1 << 19


def left(what: str) -> tuple[int, ...]:
    """Permitted, effective and ambient sets of a service with two capabilities after `what`, and its child's."""
    python = python_for_everybody()
    if os.geteuid() != 0 or python is None:
        pytest.skip("becoming a service user needs root, and a Python that it may run")
    given = "+dac_read_search,+sys_ptrace"
    user = ["setpriv", "--reuid", "64220", "--regid", "64220", "--clear-groups"]
    command = [*user, "--inh-caps", given, "--ambient-caps", given, *python.command, "-c", SHOW.format(what=what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=python.environment)
    if done.returncode != 0:
        pytest.fail(done.stderr[-1000:])
    return tuple(map(int, done.stdout.split()))


def test_a_service_has_what_it_was_given() -> None:
    assert left("") == (SEARCH | PTRACE,) * 4


def test_what_is_given_up_for_good_comes_back_by_no_program() -> None:
    assert left("capabilities.give_up_for_good(); assert not capabilities.any_permitted()") == (0, 0, 0, 0)


def test_what_is_given_up_is_gone_for_children_too() -> None:
    assert left("capabilities.drop_unless_root()") == (0, 0, 0, 0)
    assert left("capabilities.drop(capabilities.DAC_READ_SEARCH)") == (PTRACE,) * 4
