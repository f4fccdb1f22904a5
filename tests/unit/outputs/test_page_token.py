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


def test_a_missing_file_and_a_planted_link_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file") as refusal:
        read_or_make(str(tmp_path / "none"), tmp_path)
    assert "http.token_file" in refusal.value.help
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError):
        read_or_make("", tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_only_the_token_equals_the_token() -> None:
    assert equal("abc", "abc")
    assert not equal("", "abc")
    assert not equal("ab\udcff", "abc")
