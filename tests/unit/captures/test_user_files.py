"""Whose a log's lines are: of a file into which several ranks write, nobody's."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures import user_files
from stallwatch.captures.as_user import UserFiles, UserFilesRequest
from stallwatch.captures.folder import Folder
from stallwatch.captures.user_files import Subject, readers
from stallwatch.model.evidence import SHARED_LOG
from stallwatch.model.snapshot import Outputs, RankSample
from tests.unit.captures.kept import attempts, kept
from tests.unit.outputs.reports import sample

FILE = (8, 77)


def _rank(number: int, path: str = "/srv/job/log", namespace: str = "mnt:[1]") -> RankSample:
    outputs = Outputs((path,), 1000, 1000, (), namespace)
    return msgspec.structs.replace(sample(number), outputs=outputs)


def _answers(*found: UserFiles) -> Callable[[UserFilesRequest, float], tuple[UserFiles, ...]]:
    def read(request: UserFilesRequest, seconds: float) -> tuple[UserFiles, ...]:
        return tuple(one for one in found if one.rank in {wanted.rank for wanted in request.ranks})

    return read


def _shared(
    bundle: Path, look: list[RankSample], asked: list[int], gone: bool = True
) -> dict[int, bool]:  # by rank, of those of which a log was read
    with kept(bundle, *(one.rank for one in look)) as sending:
        wanted = [Subject(one, gone, Folder(sending, one.rank, 1), []) for one in look if one.rank in asked]
        for read in readers(wanted, 4.0, look):
            read()
    folders = {rank: bundle / "ranks" / str(rank) for rank in asked}
    notes = {rank: attempts(folder) for rank, folder in folders.items() if (folder / "attempts.json").exists()}
    logs = {rank: [note for note in told if note.what == "log"] for rank, told in notes.items()}
    return {rank: told[0].detail == SHARED_LOG for rank, told in logs.items() if told[0].answered}


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (_rank(0), True),
        (_rank(0, "/srv/job/log.0"), False),
        (_rank(0, namespace="mnt:[2]"), False),  # the same path is another file in another container
        (msgspec.structs.replace(_rank(0), outputs=None), False),
    ],
)
def test_a_log_is_shared_with_who_wrote_there_and_dies_as_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: RankSample, shared: bool
) -> None:
    """Nothing is open any more of a process that is a zombie. Rank 2 was killed; the lines of those that lost it stand
    in the one log of all."""
    killed, dying = UserFiles(2, ("closed by peer",), log_files=(FILE,)), UserFiles(0, log_problem="it has ended")
    monkeypatch.setattr(user_files, "read_as_user", _answers(killed, dying))
    assert _shared(tmp_path, [other, _rank(2)], [0, 2]) == {2: shared}


def test_a_log_is_shared_with_who_is_asked_for_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks without a stack files are read after those of the others."""
    monkeypatch.setattr(user_files, "read_as_user", _answers(UserFiles(2, ("closed by peer",), log_files=(FILE,))))
    assert _shared(tmp_path, [_rank(0), _rank(2)], [2]) == {2: True}


def test_a_log_of_which_others_files_are_known_to_be_others_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has turned its output into a file of its own since it was noted where it went."""
    own = [UserFiles(rank, ("a line",), log_files=((8, rank),)) for rank in (0, 2)]
    monkeypatch.setattr(user_files, "read_as_user", _answers(*own))
    assert _shared(tmp_path, [_rank(0), _rank(2)], [0, 2]) == {0: False, 2: False}
    together = [UserFiles(rank, ("a line",), log_files=(FILE,)) for rank in (0, 2)]
    monkeypatch.setattr(user_files, "read_as_user", _answers(*together))
    assert _shared(tmp_path / "once more", [_rank(0), _rank(2)], [0, 2]) == {0: True, 2: True}
