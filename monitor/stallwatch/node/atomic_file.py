"""Files that are whole or not there, whoever reads them and whenever we end."""

import os
from pathlib import Path


def write_atomically(
    path: Path, data: bytes, *, mode: int = 0o600, makes_folder: bool = True, through: bool = False
) -> None:
    """Write `data` beside `path` and rename it into place, whatever lies there; `through`: to the disk itself before it
    is renamed. The file has `mode` whatever our umask is. Raise OSError; nothing half-written stays behind."""
    if makes_folder:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if mode != 0o600:
                os.fchmod(descriptor, mode)
            file.write(data)
            if through:
                file.flush()
                os.fsync(descriptor)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
