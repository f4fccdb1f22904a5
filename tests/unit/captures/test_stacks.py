import os
from pathlib import Path

import pytest

from stallwatch.captures import stacks
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.held import Held
from stallwatch.captures.stacks import StackCapture, explain_failure, py_spy
from stallwatch.config_sections import CaptureSection
from stallwatch.node.memory_file import memory_file
from tests.builders.node import unread_rank
from tests.unit.captures.kept import attempts, kept


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("Permission Denied: Try running again with elevated permissions by going 'sudo env", "CAP_SYS_PTRACE"),
        ("Error: Failed to get process executable name. Check that the process is running.", "CAP_SYS_PTRACE"),
        ("Error: Failed to suspend process", "could not be paused"),
        ("Error: Failed to find a python interpreter in the .data section", "not a Python process"),
        ("Error: Failed to get stack traces", "its memory changed while it was read"),
        ("Error: something new", "no stack of process"),
    ],
)
def test_message_of_py_spy_becomes_advice(said: str, meaning: str) -> None:
    error = explain_failure(said, os.getpid())
    assert meaning in str(error)
    assert " ".join(said.split()) in error.help


def test_backtrace_of_py_spy_does_not_hide_its_message() -> None:
    said = "Error: Failed to get process executable name. Caused by: 0: Permission denied (os error 13)"
    error = explain_failure(f"{said}\n\nStack backtrace:\n" + "  9: py_spy::main\n" * 99, os.getpid())
    assert "CAP_SYS_PTRACE" in str(error)
    assert error.help == f'py-spy said: "{said}"'


def test_name_that_cannot_be_had_of_an_ended_process_is_its_end() -> None:
    error = explain_failure("Error: Failed to get process executable name.", 2**22 + 1)
    assert str(error).endswith("it has ended")


def test_configured_py_spy_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("")
    path.chmod(0o755)
    assert py_spy(str(path)) == str(path)


def test_py_spy_that_is_not_there_says_what_to_install() -> None:
    with pytest.raises(NotCaptured) as caught:
        py_spy("/nonexistent/py-spy")
    assert "stallwatch[daemon]" in caught.value.help


def test_py_spy_is_the_one_of_this_installation_and_never_one_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs with the service's rights, and what PATH is may be another's to say."""
    mine = tmp_path / "py-spy"
    mine.write_text("")
    mine.chmod(0o755)
    installed = py_spy("")
    monkeypatch.setenv("PATH", str(tmp_path))
    for configured in ("py-spy", "./py-spy"):
        with pytest.raises(NotCaptured, match="no absolute path"):
            py_spy(configured)
    stacks._installed.cache_clear()
    assert py_spy("") == installed
    monkeypatch.setattr("sys.executable", str(tmp_path / "elsewhere" / "python"))
    stacks._installed.cache_clear()
    assert os.path.samefile(py_spy(""), installed), "where its distribution lies"
    stacks._installed.cache_clear()


def test_a_py_spy_that_prints_without_end_is_ended_and_costs_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job chooses how deep and how many its stacks are."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec yes\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "_OUTPUT_LIMIT_BYTES", 1 << 20)
    section = CaptureSection(py_spy=str(program), pause_for_stacks=False, stack_seconds=3600.0)
    with kept(tmp_path / "b", 0) as sending, memory_file() as held:
        StackCapture(unread_rank(0, 50), Folder(sending, 0, 1), section, Held(held.fileno())).capture(())
    (attempt,) = attempts(tmp_path / "b/ranks/0")
    assert (attempt.answered, attempt.detail) == (
        False,
        "without a pause: py-spy printed more than the 1 MiB that are read. ",
    )


@pytest.mark.parametrize(
    ("look", "fails", "tried"),
    [
        (1, (), [False, True]),
        (2, (), [True]),
        (2, (True,), [True, False]),
        (1, (True, False), [False, True]),
    ],
)
def test_a_later_look_asks_again_without_a_pause_only_where_it_could_not_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int, fails: tuple[bool, ...], tried: list[bool]
) -> None:
    """Each py-spy is a process and a read of all symbols, and a verdict waits for the second look."""
    asked: list[bool] = []

    def one(capture: StackCapture, *, pauses: bool) -> bytes:
        asked.append(pauses)
        if pauses in fails:
            raise NotCaptured(f"pauses: {pauses}")
        return b"[]"

    monkeypatch.setattr(StackCapture, "_look", one)
    with kept(tmp_path, 0, look=look) as sending, memory_file() as held:
        capture = StackCapture(
            unread_rank(0, os.getpid()), Folder(sending, 0, look), CaptureSection(), Held(held.fileno())
        )
        capture.capture(())
    assert asked == tried
    assert capture.answered is (len(fails) < 2)
    error = tmp_path / "ranks/0" / "stacks.error.json"
    assert error.exists() is not capture.answered
    assert capture.answered or "pauses: False" in error.read_text()
