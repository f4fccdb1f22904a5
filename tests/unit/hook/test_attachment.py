"""Where attach() does nothing. What it does: tests/integration/hook."""

import sys

import pytest

from stallwatch.hook.attachment import attach
from stallwatch.hook.beat import OFF


@pytest.mark.parametrize(
    ("name", "value", "said"), [("platform", "darwin", "needs Linux"), ("byteorder", "big", "needs a little-endian")]
)
def test_another_machine_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, value: str, said: str
) -> None:
    monkeypatch.delenv("STALLWATCH_DISABLE", raising=False)
    monkeypatch.setattr(sys, name, value)
    assert attach() is OFF
    assert said in capfd.readouterr().err
