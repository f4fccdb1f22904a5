"""Bundles beyond the node, in a storage that fsspec knows: here a directory, and one in memory."""

import io
import tarfile
import uuid
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from stallwatch.bundle.archive_storage import fetch, put, retain
from stallwatch.errors import UsageError

DAY = 86_400 * 10**9
NOW = 20_000 * DAY  # 2024-10-04


@pytest.fixture(params=["directory", "memory"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "archive")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "train-1"
    (folder / "nodes" / "n1").mkdir(parents=True)
    (folder / "incident.json").write_text("{}")
    (folder / "nodes" / "n1" / "stacks.json").write_text("[]")
    (folder / "secret").symlink_to("/etc/shadow")
    return folder


def test_a_bundle_comes_back_as_it_was_but_for_links(archive: str, bundle: Path, tmp_path: Path) -> None:
    where = put(archive, {}, "train-1", "n1", bundle, NOW)
    assert where.endswith("/2024-10-04/train-1/n1.tar.gz")
    put(archive, {}, "train-1", "n2", bundle, NOW)
    (tmp_path / "got").mkdir()
    address = archive if "://" in archive else f"file://{archive}"
    folders = fetch(f"{address}/2024-10-04/train-1", {}, tmp_path / "got")
    assert len(folders) == 2
    found = sorted(str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file())
    assert found == ["incident.json", "nodes/n1/stacks.json"]


def test_it_may_be_put_again_and_no_half_of_one_is_left(archive: str, bundle: Path, tmp_path: Path) -> None:
    put(archive, {}, "train-1", "n1", bundle, NOW)
    (bundle / "later.json").write_text("1")
    put(archive, {}, "train-1", "n1", bundle, NOW)
    storage, root = fsspec.core.url_to_fs(archive)
    (file,) = storage.find(root)
    (tmp_path / "got").mkdir()
    (folder,) = fetch(archive if "://" in archive else f"file://{file}", {}, tmp_path / "got")
    assert (folder / "later.json").exists()


class Objects:
    """A store of objects: what is opened appears at its commit; to make a folder is to make a bucket."""

    protocol = "s3"
    stored: ClassVar[dict[str, bytes]] = {}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError(f"a bucket was made for {path}")

    def open(self, path: str, mode: str = "rb", autocommit: bool = True, **_: object) -> "Object":
        return Object(self.stored, path, autocommit)


class Object(io.BytesIO):
    def __init__(self, stored: dict[str, bytes], path: str, autocommit: bool) -> None:
        super().__init__()
        self._stored, self._path, self._autocommit = stored, path, autocommit
        self.closed_with = b""

    def close(self) -> None:
        if not self.closed:
            self.closed_with = self.getvalue()
        super().close()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        self._stored[self._path] = self.closed_with

    def discard(self) -> None:
        self.closed_with = b""


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    monkeypatch.setattr(Objects, "stored", {})
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda address, **_: (Objects(), address.removeprefix("s3://")))
    return Objects.stored


def test_no_bucket_is_made_for_an_address_that_is_misspelt(objects: dict[str, bytes], bundle: Path) -> None:
    where = put("s3://bucket/x", {}, "train-1", "n1", bundle, NOW)
    assert list(objects) == [where]
    with tarfile.open(fileobj=io.BytesIO(objects[where])) as tar:
        assert tar.getnames()


def test_an_object_that_could_not_be_written_to_its_end_does_not_appear(
    objects: dict[str, bytes], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tarfile.TarFile, "add", fails)
    with pytest.raises(OSError, match="Input/output"):
        put("s3://bucket/x", {}, "train-1", "n1", bundle, NOW)
    assert objects == {}


def test_days_that_are_longer_ago_than_is_kept_go_and_nothing_else(archive: str, bundle: Path) -> None:
    for days in (0, 5, 40):
        put(archive, {}, "train-1", "n1", bundle, NOW - days * DAY)
    storage, root = fsspec.core.url_to_fs(archive)
    storage.makedirs(f"{root}/2001-notes", exist_ok=True)
    storage.pipe(f"{root}/2001-notes/mine.txt", b"x")
    assert retain(archive, {}, 30, NOW) == ["2024-08-25"]
    left = {path.split("/")[-3] for path in storage.find(root) if path.endswith(".tar.gz")}
    assert left == {"2024-10-04", "2024-09-29"}
    assert storage.exists(f"{root}/2001-notes/mine.txt")


def test_a_name_reaches_no_other_folder(archive: str, bundle: Path) -> None:
    assert put(archive, {}, "../../x", "n/../1", bundle, NOW).endswith("/2024-10-04/_.._x/n_.._1.tar.gz")


def test_what_an_archive_would_put_outside_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../outside")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "got").mkdir()
    with pytest.raises(UsageError, match="outside"):
        fetch(f"file://{tmp_path / 'bad.tar.gz'}", {}, tmp_path / "got")
    assert not (tmp_path / "outside").exists()


def test_where_nothing_is_and_what_nobody_knows_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bundle is there"):
        fetch(f"file://{tmp_path}", {}, tmp_path)
    with pytest.raises(UsageError) as unknown:
        fetch("nonsense://x", {}, tmp_path)
    assert "nonsense" in str(unknown.value)
