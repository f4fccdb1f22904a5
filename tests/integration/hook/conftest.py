from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty rank directory."""
    made = tmp_path / "ranks"
    made.mkdir(mode=0o1777)
    return made
