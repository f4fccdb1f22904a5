"""The hook costs nothing to import and runs where our daemon does not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ALWAYS_THERE = "import sys; before = set(sys.modules); sys.path.insert(0, 'monitor'); "
REPORT = "; print('\\n'.join(sorted(set(sys.modules) - before)))"
# What the whole attached hook may load of the standard library: modules, by their first name.
ALLOWED = frozenset(
    (
        *("abc", "_abc", "atexit", "binascii", "collections", "_collections", "_collections_abc", "contextlib"),
        *("copyreg", "enum", "functools", "_functools", "genericpath", "importlib", "itertools", "keyword", "operator"),
        *("_operator", "os", "posix", "posixpath", "re", "reprlib", "signal", "_signal", "stat", "_stat", "struct"),
        *("_struct", "threading", "time", "types", "typing", "_typing", "warnings", "weakref", "_weakrefset", "_sre"),
    )
)


def loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-I", "-S", "-c", ALWAYS_THERE + statement + REPORT]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


def test_the_package_alone_loads_itself_alone() -> None:
    assert loaded_by("import stallwatch") == {"stallwatch"}


@pytest.mark.parametrize("name", ["stallwatch.hook", "stallwatch.hook.layout", "stallwatch.run"])
def test_a_part_loads_no_other_part(name: str) -> None:
    ours = {name for name in loaded_by(f"import {name}") if name.startswith("stallwatch")}
    assert ours <= {"stallwatch", "stallwatch.hook", "stallwatch.hook.layout", "stallwatch.run"}


def test_the_attached_hook_loads_little_of_the_standard_library() -> None:
    theirs = {
        name.split(".")[0]
        for name in loaded_by("from stallwatch.hook.attachment import attach; import stallwatch.hook.optimizer")
        if not name.startswith("stallwatch")
    }
    assert theirs <= ALLOWED
    assert theirs <= sys.stdlib_module_names


def test_callbacks_load_no_framework() -> None:
    loaded = loaded_by("import stallwatch.hook.lightning, stallwatch.hook.transformers")
    assert {name.split(".")[0] for name in loaded if not name.startswith("stallwatch")} <= sys.stdlib_module_names


def test_what_runs_in_training_keeps_to_python_3_9() -> None:
    paths = ["monitor/stallwatch/__init__.py", "monitor/stallwatch/run.py", "monitor/stallwatch/hook"]
    command = [
        str(Path(sys.executable).with_name("vermin")),
        "--quiet",
        "--target=3.9-",
        "--eval-annotations",
        "--no-parse-comments",
    ]
    run = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout
