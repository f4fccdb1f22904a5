"""A bundle as one file, as `bundle export` and the archive write it: anybody may have made it. Only its regular files
are written, below one folder, and what it may take of memory and disk is bounded before it is taken."""

import gzip
import io
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from stallwatch.errors import UnusableInput

_GZIP: Final = b"\x1f\x8b"
_BLOCK: Final = 512
_MAGIC: Final = b"ustar", slice(257, 262)  # of a tar's first header, whoever wrote it
_MOST_BYTES: Final = 4 << 30  # unpacked
_MOST_AT_ONCE: Final = 4 << 20  # a header that says more than it may makes tarfile read that much
_MOST_FILES: Final = 1 << 17
_SHARE_OF_DISK: Final = 0.5  # of what is free where it is unpacked


def is_packed(path: Path) -> bool:
    """Whether a path is a file that holds a bundle, or anything, as one archive: by its first bytes, not its name."""
    if not path.is_file():
        return False  # nor is a pipe opened, at which one would wait
    try:
        with path.open("rb") as file:
            first = file.read(2)
            file.seek(0)
            head = (gzip.GzipFile(fileobj=file) if first == _GZIP else file).read(_BLOCK)
    except (OSError, EOFError, zlib.error):
        return False
    magic, place = _MAGIC
    return head[place] == magic


def unpacked(path: Path, into: Path) -> Path:
    """Given such a file, and an empty folder, return the folder of the bundle in that. Raise UnusableInput."""
    try:
        with path.open("rb") as file:
            unpack(file, into)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error, tarfile.TarError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise UnusableInput(
            f"{path}: {said}", "It is an archive, but none that `stallwatch bundle export` has written whole."
        ) from error
    return bundle_in(into)


def bundle_in(folder: Path) -> Path:
    """The one folder that an archive holds, or where it was unpacked to."""
    inner = list(folder.iterdir())
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else folder


def unpack(file: IO[bytes], folder: Path) -> None:
    """Given an open archive, packed or not, write its regular files, and nothing else of it, below a folder. Raise
    ValueError where one would lie outside, or where they are too much, and OSError, EOFError, zlib.error and TarError
    where it is not whole. (Debian 12's Python 3.11.2 has no filters for extraction yet.)"""
    stream = _Bounded(file)
    left = min(_MOST_BYTES, int(shutil.disk_usage(folder).free * _SHARE_OF_DISK))
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        number = 0
        while (member := tar.next()) is not None:
            number += 1
            if number > _MOST_FILES:
                raise ValueError(f"it holds more than {_MOST_FILES} files")
            if member.size < 0:
                raise ValueError("a file of it has less than no bytes")  # before tarfile goes back by them, for ever
            tar.members.clear()  # type: ignore[attr-defined]  # else all that went before is kept
            if not member.isreg():
                continue
            left -= member.size
            if left < 0:
                raise ValueError("it holds more than there is room for, or than a bundle does")
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"it would put {member.name!r} outside of its folder")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # of a file
            with content, (folder / name).open("xb") as target:
                shutil.copyfileobj(content, target)


class _Bounded(io.RawIOBase):
    """The unpacked bytes, of which nobody takes many at once, nor more than a bundle has."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        first = file.read(2)
        file.seek(0)
        self._stream = gzip.GzipFile(fileobj=file) if first == _GZIP else file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise ValueError("a header of it is larger than any that is needed")
        if self._stream.tell() > _MOST_BYTES + _MOST_FILES * 4 * _BLOCK:
            raise ValueError(f"it holds more than {_MOST_BYTES >> 30} GiB")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
