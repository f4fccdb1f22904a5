import asyncio
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from starlette.responses import StreamingResponse

from stallwatch.outputs.bundle_archive import archive


def test_a_bundle_is_sent_where_tmp_is_closed_or_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "log.txt").write_text("last words")
    (tmp_path / "link").symlink_to("/etc/passwd")
    response = archive("job-1", str(tmp_path))
    assert isinstance(response, StreamingResponse)

    async def body() -> bytes:
        return b"".join([chunk async for chunk in response.body_iterator if isinstance(chunk, bytes)])

    with tarfile.open(fileobj=io.BytesIO(asyncio.run(body()))) as tar:
        assert tar.getnames() == ["job-1/ranks/log.txt"]
