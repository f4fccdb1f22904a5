"""A moment of what `python -m tests.chaos` does for hours."""

import pytest

from tests.chaos import kills, scenarios

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_kills_lose_nothing() -> None:
    result = kills.run(kills=3, seconds=3.0, seed=7)
    assert result.good, "\n".join(result.lines())
    assert result.kills.total() >= 1


def test_a_name_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert scenarios.run(["no-such"], 1, None) == 64
    assert "full-disk" in capsys.readouterr().out
