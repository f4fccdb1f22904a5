from pathlib import Path

import pytest

from stallwatch.captures.folder import Folder, NotCaptured, name_of_look
from stallwatch.model.evidence import Attempt
from tests.unit.captures.kept import attempts, kept


@pytest.mark.parametrize(
    ("name", "look", "expected"),
    [
        ("stacks.json", 1, "stacks.json"),
        ("stacks.json", 2, "stacks-2.json"),
        ("stacks.error.json", 2, "stacks.error-2.json"),
        ("flight_recorder.nccl.pickle", 3, "flight_recorder.nccl-3.pickle"),
        ("stacks.child-77.json", 2, "stacks.child-77-2.json"),
    ],
)
def test_number_of_the_look_stands_before_the_extension(name: str, look: int, expected: str) -> None:
    assert name_of_look(name, look) == expected


def test_attempts_of_all_looks_are_kept(tmp_path: Path) -> None:
    for look, answered, why in ((1, True, ""), (2, False, "why")):
        with kept(tmp_path, 3, look=look) as sending:
            Folder(sending, 3, look).note("stacks", 4 + look, answered, why)
    assert attempts(tmp_path / "ranks/3") == [Attempt("stacks", 1, 5, True), Attempt("stacks", 2, 6, False, "why")]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (NotCaptured("no stack", "Install it."), "no stack. Install it."),
        (ProcessLookupError("no process 7"), "the process has ended (no process 7)"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
def test_what_goes_wrong_is_noted_and_the_rest_goes_on(tmp_path: Path, error: Exception, detail: str) -> None:
    def fail() -> None:
        raise error

    with kept(tmp_path, 3) as sending, Folder(sending, 3, 1).attempt("log"):
        fail()
    (attempt,) = attempts(tmp_path / "ranks/3")
    assert (attempt.answered, attempt.detail) == (False, detail)


def test_error_of_our_own_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), kept(tmp_path, 3) as sending, Folder(sending, 3, 1).attempt("log"):
        raise AssertionError
