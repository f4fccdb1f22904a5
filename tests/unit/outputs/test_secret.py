from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.outputs.secret import secret_url

URL = "https://hooks.slack.com/services/T0/B0/secret"


def test_nothing_configured_is_none_and_the_file_wins_over_the_value(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(URL + "\n")
    assert secret_url("slack.webhook_url", "", "") is None
    assert secret_url("slack.webhook_url", "http://other", str(file)) == URL


@pytest.mark.parametrize(
    "url", ["hooks.slack.com/secret", "ftp://secret", "https://", "https://a b/secret", "http://[secret"]
)
def test_what_is_no_address_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    file = tmp_path / "url"
    file.write_text(url)
    for value, path in ((url, ""), ("", str(file))):
        with pytest.raises(UsageError) as refusal:
            secret_url("slack.webhook_url", value, path)
        assert "secret" not in str(refusal.value).replace(str(file), "")
        assert "slack.webhook_url" in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"slack\.webhook_url_file"):
        secret_url("slack.webhook_url", "", str(tmp_path / "none"))
