"""`python -m stallwatch.run`: the program runs as Python itself would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hook.programs import environment, records

TELL = """
import os, sys
print(__name__, os.path.basename(__file__), sys.argv, os.path.realpath(sys.path[0]))
print(__spec__ and __spec__.name, __package__)
print(sys.modules["__main__"].__dict__ is globals(), sorted(name for name in globals() if not name.startswith("__")))
import monitor
print(monitor.MINE)
"""


def run(folder: Path, directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A training repository with a monitor.py of its own."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    (folder / "package").mkdir()
    for where in (folder, folder / "scripts", folder / "package"):
        (where / "monitor.py").write_text("MINE = True\n")
        (where / "train.py").write_text(TELL)
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "train.py").write_text(TELL)
    (folder / "package" / "__main__.py").write_text(TELL)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py", "--lr", "1", "-m"],
        ["scripts/train.py"],
        ["-m", "package.train", "--lr", "1"],
        ["-m", "package"],
        ["package"],
    ],
)
def test_a_program_sees_what_python_shows_it(project: Path, directory: Path, arguments: list[str]) -> None:
    plain = run(project, directory, *arguments)
    watched = run(project, directory, "-m", "stallwatch.run", *arguments)
    assert plain.returncode == 0, plain.stderr
    assert watched.stdout == plain.stdout
    [record] = records(directory).values()
    assert (record.rank, record.ended, record.exit_code, record.step) == (3, True, 0, None)


@pytest.mark.parametrize(
    ("statement", "exit_code"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import sys; sys.exit('no')", 1), ("raise ValueError", 1)],
)
def test_every_exit_code_is_known(tmp_path: Path, directory: Path, statement: str, exit_code: int) -> None:
    (tmp_path / "train.py").write_text(statement)
    done = run(tmp_path, directory, "-m", "stallwatch.run", "train.py")
    assert done.returncode == exit_code
    [record] = records(directory).values()
    assert record.exit_code == exit_code


def test_functions_of_the_program_can_be_spawned(tmp_path: Path, directory: Path) -> None:
    source = """
import multiprocessing

def work(number):
    return number + 1

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
"""
    (tmp_path / "train.py").write_text(source)
    done = run(tmp_path, directory, "-m", "stallwatch.run", "train.py")
    assert done.stdout == "[2, 3]\n", done.stderr


def test_globals_live_until_the_interpreter_ends(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "train.py").write_text("import atexit\nword = 'kept'\natexit.register(lambda: print(word))")
    assert run(tmp_path, directory, "-m", "stallwatch.run", "train.py").stdout == "kept\n"


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--help"]])
def test_wrong_usage_says_the_right_one(tmp_path: Path, directory: Path, arguments: list[str]) -> None:
    done = run(tmp_path, directory, "-m", "stallwatch.run", *arguments)
    assert done.returncode == 64
    assert "usage: python -m stallwatch.run" in done.stderr


def test_a_missing_script_is_python_s_own_error(tmp_path: Path, directory: Path) -> None:
    done = run(tmp_path, directory, "-m", "stallwatch.run", "none.py")
    assert done.returncode == run(tmp_path, directory, "none.py").returncode
    assert "none.py" in done.stderr


def test_its_frames_say_where_the_program_lies_as_pythons_own_do(project: Path, tmp_path: Path) -> None:
    (project / "where.py").write_text("import sys; print(__file__, sys._getframe().f_code.co_filename, sys.argv[0])")
    directory = tmp_path / "ranks"
    by_us = run(project, directory, "-m", "stallwatch.run", "where.py").stdout
    assert by_us == run(project, directory, "where.py").stdout
    assert by_us.split() == [str(project / "where.py"), str(project / "where.py"), "where.py"]
