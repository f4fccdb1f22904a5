"""What the interpreter leaves behind tells how a program ended. Whole programs: tests/integration/hook."""

import sys
from types import TracebackType

import pytest

from stallwatch.hook import ending


@pytest.mark.parametrize(
    ("status", "code"), [(None, 0), (0, 0), (3, 3), (True, 1), (-1, 255), (256, 0), ("message", 1), ((), 1)]
)
def test_exit_codes_are_python_s_own(status: object, code: int) -> None:
    assert ending.code_of(status) == code


def raised_in(module: str) -> tuple[type[BaseException], TracebackType | None]:
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", "train.py", "exec"), {"__name__": module})
    return caught.type, caught.tb.tb_next


@pytest.mark.parametrize(("module", "name"), [("__main__", "ZeroDivisionError"), ("ctypes_callback", "")])
def test_only_an_exception_of_the_program_itself_ends_it(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    kind, trace = raised_in(module)
    monkeypatch.setattr(sys, "last_type", kind, raising=False)
    monkeypatch.setattr(sys, "last_traceback", trace, raising=False)
    assert ending.uncaught_exception() == name


def test_an_interactive_session_goes_on_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, trace = raised_in("__main__")
    monkeypatch.setattr(sys, "last_type", kind, raising=False)
    monkeypatch.setattr(sys, "last_traceback", trace, raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert ending.uncaught_exception() == ""
