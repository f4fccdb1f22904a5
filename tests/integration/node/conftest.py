"""A node with the daemon running as the unit runs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.node.service import ServiceDaemon, need_root, node_folder
from tests.programs.everybody import PythonForEverybody


@pytest.fixture(scope="session")
def python() -> PythonForEverybody:
    return need_root()


@pytest.fixture
def folder() -> Iterator[Path]:
    with node_folder() as made:
        yield made


@pytest.fixture
def daemon(folder: Path, python: PythonForEverybody) -> Iterator[ServiceDaemon]:
    child = ServiceDaemon(folder, python)
    child.start()
    yield child
    child.stop()
