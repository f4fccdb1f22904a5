import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from stallwatch.captures.channel import NODE, AttemptNote, FilePiece, LookProgress, Removal
from stallwatch.captures.folder import Folder
from stallwatch.captures.keeper import Keeper
from stallwatch.captures.process import OwnBytes
from stallwatch.captures.spec import CaptureState
from stallwatch.model.evidence import Attempt, ProcessLook
from tests.unit.captures.kept import kept

LOOK = ProcessLook(
    source="/proc/7", look=1, pid=7, state="S", cpu_ticks=1, own_read_bytes=3, own_write_bytes=4, at_ns=5
)


def test_a_file_of_many_pieces_is_written_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * (20 << 12)
    with kept(tmp_path, 3, look=2) as sending:
        Folder(sending, 3, 2).write("flight_recorder.nccl.pickle", data)
    assert (tmp_path / "ranks/3/flight_recorder.nccl-2.pickle").read_bytes() == data


def test_what_is_removed_is_gone(tmp_path: Path) -> None:
    with kept(tmp_path, 3) as sending:
        folder = Folder(sending, 3, 1)
        folder.write_json("stacks.error.json", {})
        folder.write_json("stacks.json", [])
        folder.remove("stacks.error.json")
    assert [path.name for path in (tmp_path / "ranks/3").iterdir()] == ["stacks.json"]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (4, "stacks.json"),  # a rank that this look is not of
        (-2, "stacks.json"),
        (3, "../4/stacks.json"),
        (3, "/etc/cron.d/x"),
        (3, ".."),
        (3, ".hidden"),
        (3, "a" * 101),
        (3, "stacks.json\n"),
        (3, ""),
    ],
)
def test_a_file_has_no_place_but_in_the_folders_of_this_look(tmp_path: Path, place: int, name: str) -> None:
    keeper = Keeper(tmp_path / "bundle", "node0", (3,), 1)
    for message in (FilePiece(place, name, b"x"), Removal(place, name)):
        with pytest.raises(ValueError, match="has no place in this look"):
            keeper.take(message)
    assert not list(tmp_path.rglob("*"))


def test_a_file_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch.captures.keeper._FILE_LIMIT_BYTES", 10)
    keeper = Keeper(tmp_path, "node0", (3,), 1)
    keeper.take(FilePiece(3, "dump", b"12345678", is_last=False))
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        keeper.take(FilePiece(3, "dump", b"12345678", is_last=False))


def test_a_disk_that_takes_no_file_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_bytes(b"in the way")
    keeper = Keeper(tmp_path, "node0", (3,), 1)
    keeper.take(FilePiece(NODE, "kernel_log.txt", b"x"))
    keeper.take(FilePiece(3, "stacks.json", b"[]"))
    keeper.take(AttemptNote(3, Attempt("stacks", 1, 0, True)))
    state = keeper.take(LookProgress(CaptureState(done=True, evidence_complete=True)))
    assert state is not None
    assert "nodes" in state.problem
    assert {path.name for path in (tmp_path / "ranks/3").iterdir()} == {"stacks.json", "attempts.json"}


def test_a_later_look_is_told_what_the_one_before_knew_of_what_was_ours(tmp_path: Path) -> None:
    with kept(tmp_path, 3) as sending:
        Folder(sending, 3, 1).write_json("process.json", LOOK)
    (before,) = Keeper(tmp_path, "node0", (3, 4), 3).told().before.items()
    assert before[0] == 3
    assert (before[1].pid, before[1].own, before[1].at_ns) == (7, OwnBytes(3, 4), 5)


def test_what_was_ours_is_counted_from_the_last_look_that_knew_it(tmp_path: Path) -> None:
    with kept(tmp_path, 3) as sending:
        Folder(sending, 3, 1).write_json("process.json", replace(LOOK, write_bytes=70))
        Folder(sending, 3, 2).write_json("process.json", replace(LOOK, own_write_bytes=0, at_ns=9))
    (before,) = Keeper(tmp_path, "node0", (3,), 3).told().before.values()
    assert (before.own, before.at_ns) == (OwnBytes(3, 4), 5)


def test_who_compares_a_sample_imports_nothing_of_what_judges_an_incident(tmp_path: Path) -> None:
    """Each five minutes, beside the training: that was half of what a sample took."""
    for rank in (0, 1):
        folder = tmp_path / "ranks" / str(rank)
        folder.mkdir(parents=True)
        folder.joinpath("flight_recorder.gloo.pickle").write_bytes(pickle.dumps({"version": "2.10", "entries": []}, 2))
    code = (
        "import sys; from pathlib import Path; from stallwatch.captures import keeper, spec; "
        "said = keeper.compare(Path(sys.argv[1]), spec.Sampling(0, 2, spec.SampleMemory())); "
        "print(said.ranks, *sorted(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code, tmp_path], capture_output=True, text=True, check=True)
    ranks, *modules = ran.stdout.split()
    assert ranks == "2"
    judging = ("verdicts", "claims", "report", "activity.rank_reading", "logs.log_reading")
    assert not [name for name in modules if name.startswith(tuple(f"stallwatch.diagnosis.{one}" for one in judging))]
    assert "stallwatch.formats.training_log" not in modules
