"""Bundles in a storage beyond the node: a directory, S3 or whatever fsspec knows. Every call may block for long.

    <archive>/<day>/<incident>/<node>.tar.gz

A day's folder goes when it is older than what is kept; no clock but the writer's is asked.
"""

import re
import tarfile
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

from stallwatch.bundle.packed import bundle_in, unpack
from stallwatch.errors import UsageError
from stallwatch.formats.outside_text import file_name_of

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
# Stores of objects have no folders: to make that of a misspelt bucket is to make a bucket.
_OBJECTS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"})
_COMMITS: Final = frozenset({"s3", "s3a", "gs", "gcs"})  # of these, who can hold an object back until it is complete
_MOST_FILES: Final = 4096


def put(archive: str, options: dict[str, Any], incident_id: str, node: str, folder: Path, wall_ns: int) -> str:
    """Write a bundle's regular files as one archive; return where. Raise UsageError, OSError, or what the storage
    raises."""
    storage, root = _storage(archive, options)
    day = datetime.fromtimestamp(wall_ns / 1e9, UTC).date().isoformat()
    target = f"{root}/{day}/{_safe(incident_id)}/{_safe(node)}.tar.gz"
    kinds = {storage.protocol} if isinstance(storage.protocol, str) else set(storage.protocol)
    if not kinds & _OBJECTS:
        storage.makedirs(target.rpartition("/")[0], exist_ok=True)
    # What a reader sees is whole: an object appears when it is complete, a file by its new name.
    if kinds & _COMMITS:
        file = storage.open(target, "wb", autocommit=False)
        try:
            with file:
                _pack(file, _safe(incident_id), folder)
        except BaseException:
            file.discard()
            raise
        file.commit()
        return target
    written = f"{target}.part"
    with storage.open(written, "wb") as file:
        _pack(file, _safe(incident_id), folder)
    storage.mv(written, target)
    return target


def _pack(file: IO[bytes], name: str, folder: Path) -> None:
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():  # a link could name anything that the daemon can read
                tar.add(path, f"{name}/{path.relative_to(folder)}", recursive=False, filter=_anonymous)


def retain(archive: str, options: dict[str, Any], days: int, wall_ns: int) -> list[str]:
    """Remove the folders of days that are longer ago than is kept; return them. What is not a day's stays."""
    storage, root = _storage(archive, options)
    last = datetime.fromtimestamp(wall_ns / 1e9, UTC).date() - timedelta(days=days)
    names = {path.rstrip("/").rpartition("/")[2]: path for path in storage.ls(root, detail=False)}
    old = sorted(name for name in names if _DAY.fullmatch(name) and date.fromisoformat(name) < last)
    for name in old:
        storage.rm(names[name], recursive=True)
    return old


def fetch(address: str, options: dict[str, Any], into: Path) -> list[Path]:
    """Given the address of one archive, or of a folder of them, unpack them below `into`, a folder each; return these.
    Raise UsageError."""
    storage, path = _storage(address, options)
    try:
        found: Sequence[str] = [path] if storage.isfile(path) else sorted(storage.find(path))
    except Exception as error:
        raise UsageError(f"{address}: {type(error).__name__}: {error}", "May this user read it?") from error
    archives = [one for one in found if one.endswith(".tar.gz")][:_MOST_FILES]
    if not archives:
        raise UsageError(f"{address}: no bundle is there", "Name a .tar.gz of the archive, or an incident's folder.")
    folders = []
    for number, one in enumerate(archives):
        folder = into / f"{number}-{_safe(one.rpartition('/')[2].removesuffix('.tar.gz'))}"
        folder.mkdir()
        try:
            with storage.open(one, "rb") as file:
                unpack(file, folder)
        except Exception as error:
            raise UsageError(f"{one}: {type(error).__name__}: {error}", "Is it whole?") from error
        folders.append(bundle_in(folder))
    return folders


def _storage(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{address}: fsspec is not installed", "pip install fsspec") from error
    try:
        storage, path = fsspec.core.url_to_fs(address, **options)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{address}: {error}", "For S3: pip install s3fs") from error
    return storage, path.rstrip("/")


def _safe(name: str) -> str:
    return file_name_of(name, 120) or "_"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
