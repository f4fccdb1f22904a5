import os
from pathlib import Path

import pytest

from stallwatch.node.disk import read_regular


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"[stall]\n")
    assert read_regular(tmp_path / "config.toml") == b"[stall]\n"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "pipe")
