"""A shared directory that is unmounted under a running daemon: it makes no other in its place, and takes it again."""

from pathlib import Path

import pytest

from stallwatch.fleet.child import PlaceRequest, Talker
from stallwatch.fleet.exchange import Seen
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.roster import Greeting


class Share:
    """A directory `stallwatch` in a share that is mounted at `mount`, or is the share itself."""

    def __init__(self, folder: Path, below: str) -> None:
        self.mount, self._away = folder / "mount", folder / "server"
        self.root = self.mount / below
        self.root.mkdir(mode=0o700, parents=True)
        key = folder / "key"
        key.write_bytes(b"the key of all nodes")
        self._settings = Settings(f"file://{self.root}", key_file=str(key))
        self._talker = Talker()

    def unmount(self, mode: int = 0o755) -> None:
        self.mount.rename(self._away)
        self.mount.mkdir()
        self.mount.chmod(mode)

    def mount_again(self) -> None:
        self.mount.rmdir()
        self._away.rename(self.mount)

    def greet(self) -> Seen:
        return self._talker.answer(PlaceRequest(self._settings, "greet", greeting=Greeting("node-a")))

    def check(self) -> Seen:
        return self._talker.answer(PlaceRequest(self._settings, "check"))


@pytest.mark.parametrize(("below", "mode"), [("stallwatch", 0o755), ("", 0o755), ("", 0o700)])
def test_a_share_that_is_unmounted_is_said_and_taken_again_and_nothing_is_made_in_its_place(
    tmp_path: Path, below: str, mode: int
) -> None:
    share = Share(tmp_path, below)
    assert share.greet().problem == ""
    share.unmount(mode)
    for ask in (share.greet, share.greet, share.check):
        seen = ask()
        assert str(share.root) in seen.problem and "mounted" in seen.advice
        assert list(share.mount.iterdir()) == []
    share.mount_again()
    assert [share.greet().problem, share.check().problem] == ["", ""]


def test_one_whose_mode_is_loosened_under_a_running_daemon_is_refused(tmp_path: Path) -> None:
    share = Share(tmp_path, "stallwatch")
    assert share.greet().problem == ""
    share.root.chmod(0o755)
    assert "mode 0700" in share.greet().problem
    share.root.chmod(0o700)
    assert share.greet().problem == ""


def test_one_that_somebody_has_emptied_is_the_same(tmp_path: Path) -> None:
    share = Share(tmp_path, "stallwatch")
    assert share.greet().problem == ""
    for path in sorted(share.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert [share.greet().problem, share.check().problem, share.greet().problem] == ["", "", ""]
