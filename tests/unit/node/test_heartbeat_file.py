import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.errors import Denied
from stallwatch.node.heartbeat_file import prepare


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_user_may_write_records_and_read_requests_whatever_our_umask_is(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "run" / "ranks"
    prepare(directory)
    assert mode(directory) == 0o1777
    assert mode(directory / ".daemon") == 0o755


def test_a_request_folder_that_an_older_daemon_closed_is_opened(tmp_path: Path) -> None:
    (tmp_path / ".daemon").mkdir(mode=0o700)
    prepare(tmp_path)
    assert mode(tmp_path / ".daemon") == 0o755


def test_a_link_in_place_of_the_request_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / ".daemon").symlink_to("elsewhere")
    with pytest.raises(Denied, match=r"\.daemon"):
        prepare(tmp_path)
    assert mode(tmp_path / "elsewhere") == 0o700
