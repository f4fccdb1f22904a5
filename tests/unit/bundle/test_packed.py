"""A bundle as one file, which anybody may have made."""

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.bundle import packed
from stallwatch.bundle.packed import is_packed, unpacked
from stallwatch.cli.app import run
from stallwatch.errors import UnusableInput

RECORDED = Path(__file__).parents[2] / "replay" / "recorded-checkpoint"
Member = tarfile.TarInfo


def member(name: str, data: bytes = b"x", **fields: object) -> tuple[Member, bytes]:
    made = Member(name)
    made.size = len(data)
    for field, value in fields.items():
        setattr(made, field, value)
    return made, data


def archive(path: Path, *members: tuple[Member, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=kind) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def test_what_was_exported_is_analyzed_and_replayed_as_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "incident.tar.gz"
    assert run(["bundle", "export", str(RECORDED), str(file)]) == 0
    capsys.readouterr()
    for command in ("analyze", "replay"):
        said = []
        for given in (RECORDED, file):
            code = run([command, str(given), "--json"])
            said.append((code, capsys.readouterr().out.replace(str(given), "GIVEN")))
        assert said[0] == said[1], command
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    log = tmp_path / "rank0.tar.gz"
    log.write_bytes(gzip.compress(b"[rank0]: epoch 1\n" * 100))
    assert not is_packed(log), "a log that is packed"
    plain = tmp_path / "plain"
    plain.write_bytes(gzip.decompress(archive(tmp_path / "a", member("incident/bundle.json", b"{}")).read_bytes()))
    assert is_packed(plain) and is_packed(tmp_path / "a")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    assert not any(is_packed(tmp_path / name) for name in ("empty", "pipe", "absent", "."))


def test_nothing_but_regular_files_comes_out_of_it(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    file = archive(
        tmp_path / "a",
        member("incident/link", b"", type=tarfile.SYMTYPE, linkname="/etc/shadow"),
        member("incident/pipe", b"", type=tarfile.FIFOTYPE),
        member("incident/device", b"", type=tarfile.CHRTYPE),
        member("incident/bundle.json", b"{}", mode=0o6777),
    )
    folder = unpacked(file, into)
    assert folder == into / "incident"
    (only,) = folder.iterdir()
    assert (only.name, only.read_bytes()) == ("bundle.json", b"{}")
    assert only.stat().st_mode & 0o7111 == 0


def huge_header() -> bytes:
    """A header of a header that says it is 8 GiB long."""
    made = Member("pax")
    made.type, made.size = tarfile.XHDTYPE, 8 << 30
    return made.tobuf(tarfile.GNU_FORMAT)


def negative() -> bytes:
    made = Member("incident/a")
    made.size = -1024
    return made.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "above": lambda path: archive(path, member("../outside")),
    "absolute": lambda path: archive(path, member("/tmp/outside")),
    "twice": lambda path: archive(path, member("incident/a"), member("incident/a")),
    "file as folder": lambda path: archive(path, member("incident/a"), member("incident/a/b")),
    "no name": lambda path: archive(path, member(".")),
    "deep": lambda path: archive(path, member("a/" * 5000 + "b")),
    "large header": lambda path: path.write_bytes(gzip.compress(huge_header() + bytes(1 << 20))),
    "negative": lambda path: path.write_bytes(gzip.compress(negative())),
    "cut": lambda path: path.write_bytes(archive(path, member("a", os.urandom(9000))).read_bytes()[:5000]),
    "a hole of an exabyte": lambda path: path.write_bytes(gzip.compress(sparse())),
}


def sparse() -> bytes:
    made = Member("incident/hole")
    made.size = 1 << 60
    return made.tobuf(tarfile.GNU_FORMAT) + bytes(4096)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_before_it_takes_anything(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, into = tmp_path / "in" / "bad.tar.gz", tmp_path / "in" / "into"
    into.mkdir(parents=True)
    HOSTILE[kind](file)
    assert is_packed(file)
    with pytest.raises(UnusableInput, match=r"bad\.tar\.gz"):
        unpacked(file, into)
    assert not (tmp_path / "in" / "outside").exists()
    assert run(["analyze", str(file)]) == 65
    assert "Traceback" not in capsys.readouterr().err


def test_more_than_there_is_room_for_or_than_a_bundle_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = archive(tmp_path / "bad.tar.gz", *(member(f"incident/{number}", bytes(4000)) for number in range(20)))
    for name, value in (("_MOST_FILES", 19), ("_MOST_BYTES", 79_000)):
        with monkeypatch.context() as patch:
            patch.setattr(packed, name, value)
            (tmp_path / name).mkdir()
            with pytest.raises(UnusableInput, match="more than"):
                unpacked(file, tmp_path / name)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    (tmp_path / "full").mkdir()
    with pytest.raises(UnusableInput, match="room"):
        unpacked(file, tmp_path / "full")


@pytest.mark.parametrize("scrub", [[], ["--scrub"]])
def test_of_a_job_that_is_over_an_export_says_what_is_left_to_do(
    scrub: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, said = tmp_path / "bundle", {}
    shutil.copytree(RECORDED.parents[1] / "bundles" / "gloo-python_sleep", bundle)
    for state in ("open", "ended"):
        (bundle / "incident.json").write_text(f'{{"state": "{state}"}}')
        assert run(["bundle", "export", *scrub, str(bundle), str(tmp_path / state)]) == 0
        capsys.readouterr()
        for given in (bundle, tmp_path / state):
            assert run(["analyze", str(given)]) == 10
            said[state, given] = capsys.readouterr().out
            assert ("py-spy dump --pid" in said[state, given]) == (state == "open")
            assert ("torch's own timeout" in said[state, given]) == (state == "open")
            assert ("Start the job from its last checkpoint" in said[state, given]) == (state == "ended")
