import errno
import os
from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.outputs.page_token import equal, read_or_make


def test_a_made_token_is_strong_stays_and_is_ours_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        token = read_or_make("", tmp_path)
    finally:
        os.umask(old)
    assert len(token) >= 43
    assert read_or_make("", tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_a_configured_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    assert read_or_make(str(file), tmp_path) == "0123456789abcdef"
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    "content", ["", "short", "two words that are long enough", "a;b,cccccccccccccccccccc", "é" * 20]
)
def test_a_token_that_protects_nothing_or_fits_no_header_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    with pytest.raises(UsageError):
        read_or_make(str(file), tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file") as refusal:
        read_or_make(str(tmp_path / "none"), tmp_path)
    assert "http.token_file" in refusal.value.help


@pytest.mark.parametrize("spoil", ["", "short", "é" * 20, "link", "fifo", "directory"])
def test_a_token_of_our_own_that_is_spoiled_is_made_anew(tmp_path: Path, spoil: str) -> None:
    """A file system that was full when it was made leaves an empty one; the daemon must start all the same."""
    token = tmp_path / "token"
    if spoil == "link":
        token.symlink_to(tmp_path / "elsewhere")
    elif spoil == "fifo":
        os.mkfifo(token)
    elif spoil == "directory":
        (token / "more").mkdir(parents=True)
    else:
        token.write_text(spoil)
    made = read_or_make("", tmp_path)
    assert len(made) >= 43
    assert read_or_make("", tmp_path) == made
    assert not (tmp_path / "elsewhere").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"token", "token.unusable"}, "and what it was is kept"


def test_a_token_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        read_or_make("", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_the_token_equals_the_token() -> None:
    assert equal("abc", "abc")
    assert not equal("", "abc")
    assert not equal("ab\udcff", "abc")
