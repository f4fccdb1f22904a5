import os
from pathlib import Path

import msgspec
import pytest

from stallwatch.outputs import spool as spool_module
from stallwatch.outputs.spool import FarSpoolFile, Message, Spool


def message(number: int) -> Message:
    return Message(f"job-{number}", "told", number, msgspec.Raw(b"{}"))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    spool, _ = Spool().with_message(message(1), ("told", "escalated"))
    file = FarSpoolFile(tmp_path / "slack.json", 60.0)
    file.save(spool)
    loaded = file.load()
    assert loaded.told == {"job-1": ("told", "escalated")}
    assert [one.incident_id for one in loaded.queue] == ["job-1"]
    assert (tmp_path / "slack.json").stat().st_mode & 0o777 == 0o600  # messages hold code
    assert [path.name for path in tmp_path.iterdir()] == ["slack.json"]


def test_an_unreadable_file_is_set_aside_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "slack.json").write_bytes(b'{"told":')
    assert FarSpoolFile(tmp_path / "slack.json", 60.0).load() == Spool()
    assert (tmp_path / "slack.unreadable").exists()


@pytest.mark.parametrize("spoil", ["folder", "fifo", "device", "loop"])
def test_what_is_no_file_is_set_aside_and_not_the_end(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "slack.json"
    if spoil == "folder":
        (path / "more").mkdir(parents=True)
    elif spoil == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if spoil == "device" else path)
    file = FarSpoolFile(path, 60.0)
    assert file.load() == Spool()
    assert os.path.lexists(tmp_path / "slack.unreadable")
    spool, _ = Spool().with_message(message(1), ("told",))
    file.save(spool)
    assert file.load().told == spool.told


def test_the_queue_is_bounded_and_drops_the_oldest() -> None:
    spool, dropped = Spool(), 0
    for number in range(203):
        spool, more = spool.with_message(message(number), ("told",))
        dropped += more
    assert dropped == 3
    assert spool.queue[0].incident_id == "job-3"
    assert spool.told["job-0"] == ("told",)  # a dropped message is not sent again


def test_only_an_incident_whose_end_was_told_is_forgotten() -> None:
    spool = Spool(told={"over": ("told", "resolved"), "open": ("told",), "shown": ("told", "resolved")})
    assert set(spool.forget({"shown"}).told) == {"open", "shown"}


def test_of_an_incident_that_is_dropped_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was never told: a daemon that was killed, a mute. What is written at each message would grow for ever."""
    monkeypatch.setattr(spool_module, "_MOST_INCIDENTS", 20)
    spool = Spool()
    for number in range(30):
        spool = spool.with_told(f"job-{number}", ("told",), "rank_exited", "anna").with_thread(f"job-{number}", "c/1")
    sizes = [len(kept) for kept in (spool.told, spool.owners, spool.verdicts, spool.threads)]
    assert sizes == [20] * 4
    assert spool.with_told("job-29", ("resolved",), "rank_exited", "anna").threads["job-29"] == "c/1"
