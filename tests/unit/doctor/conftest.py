from pathlib import Path

import pytest

from tests.unit.doctor.fakes import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
