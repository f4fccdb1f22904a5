"""The .pth file's part: waits for a process group, and is silent whatever is missing."""

import os
import subprocess
import sys
from pathlib import Path

from stallwatch.hook.auto import PTH_LINE

ROOT = Path(__file__).parents[3]
C10D = """
import inspect
def init_process_group(backend=None):
    "torch's own words"
    return "made"
"""


def run(tmp_path: Path, program: str, **environment: str) -> list[str]:
    """Run a program that has a torch of the test's own and the .pth's line behind it."""
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(C10D)
    done = subprocess.run(
        [sys.executable, "-S", "-c", PTH_LINE + program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'monitor'}"} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


RECORDS = "import os; print(*[n for n in os.listdir(os.environ['STALLWATCH_DIR']) if n.endswith('.beat')])\n"
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_process_that_makes_a_group_is_attached(tmp_path: Path) -> None:
    program = "import torch.distributed as dist\nprint(dist.init_process_group('gloo'))\n" + RECORDS
    (tmp_path / "ranks").mkdir()
    answer, *records = run(tmp_path, program, STALLWATCH_DIR=str(tmp_path / "ranks"), **RANK)
    assert answer == "made"
    assert len(records) == 1 and records[0].startswith("rank-1-")


def test_process_that_makes_none_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    program = "import torch.distributed, sys\nprint('stallwatch.hook.attachment' in sys.modules)\n" + RECORDS
    assert run(tmp_path, program, STALLWATCH_DIR=str(tmp_path / "ranks"), **RANK) == ["False"]


def test_module_is_what_it_would_be_without_us(tmp_path: Path) -> None:
    program = """
import sys, inspect, importlib.machinery
import torch.distributed.distributed_c10d as module
print(type(module.__loader__) is importlib.machinery.SourceFileLoader, module.__spec__.loader is module.__loader__)
wrapped = module.init_process_group
print(wrapped.__doc__ == "torch's own words", "backend" in inspect.signature(wrapped).parameters)
print(any(type(finder).__name__ == "_Finder" for finder in sys.meta_path))
"""
    assert run(tmp_path, program) == ["True", "True", "True", "True", "False"]


def test_disabled_it_is_not_even_imported(tmp_path: Path) -> None:
    program = "import sys; print('stallwatch' in sys.modules)"
    assert run(tmp_path, program, STALLWATCH_DISABLE="1") == ["False"]


def test_environment_from_which_stallwatch_was_removed_is_silent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PTH_LINE + "print('ran')"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("ran\n", "")
