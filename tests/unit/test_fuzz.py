"""What once broke a reader, and a moment of each target of tests/fuzz; hours of it are `python -m tests.fuzz`."""

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.engine import fuzz, once, said
from tests.fuzz.targets import HTTP, TARGETS, cases

KEPT = [pytest.param(name, case, id=f"{name}-{number}") for name in TARGETS for number, case in enumerate(cases(name))]


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)
    HTTP.close()


@pytest.mark.parametrize(("name", "case"), KEPT)
def test_what_broke_a_reader_once_breaks_it_no_more(name: str, case: bytes) -> None:
    once(TARGETS[name], case)


@pytest.mark.parametrize("name", TARGETS)
def test_real_bytes_are_read(name: str) -> None:
    for data in TARGETS[name].seeds():
        once(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_spoiled_bytes_break_nothing(name: str) -> None:
    found = fuzz(name, seconds=60.0, first_seed=1, most=15)
    assert found.crash is None, said(name, found)
    assert found.executions >= 10
