"""An incident's raw evidence as one file to download."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from starlette.responses import JSONResponse, Response, StreamingResponse

from stallwatch.node.memory_file import memory_file

_CHUNK_BYTES = 256 << 10


def archive(incident_id: str, bundle: str) -> Response:
    """Given an incident and its folder, return a tar.gz of the regular files in it."""
    folder = Path(bundle)
    if not bundle or not folder.is_dir():
        return JSONResponse(
            {"error": "the evidence of this incident is not on disk", "help": "Retention may have removed it."}, 404
        )
    spool = memory_file()  # closed by the stream; a service may have no /tmp
    with tarfile.open(fileobj=spool, mode="w:gz", compresslevel=1) as tar:
        for path in sorted(folder.rglob("*")):
            # A link in a bundle could name anything that the daemon can read.
            if path.is_file() and not path.is_symlink():
                tar.add(path, f"{incident_id}/{path.relative_to(folder)}", recursive=False, filter=_anonymous)
    spool.seek(0)
    headers = {"content-disposition": f'attachment; filename="{incident_id}.tar.gz"'}
    return StreamingResponse(_chunks(spool), headers=headers, media_type="application/gzip")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
