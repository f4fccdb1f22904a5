import queue

import pytest

from stallwatch.outputs.latest_only_worker import LatestOnlyWorker

WAIT = 10.0  # a test that needs this long has failed


def test_a_value_that_cannot_be_handled_is_said_and_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    handled: queue.Queue[int] = queue.Queue()

    def handle(value: int) -> None:
        handled.put(value)
        if value == 1:
            raise MemoryError

    worker = LatestOnlyWorker("deadman", handle)
    worker.start()
    try:
        for value in (1, 2):
            worker.hand(value)
            assert handled.get(timeout=WAIT) == value
    finally:
        worker.close(WAIT, lambda: None)
    assert [record.getMessage() for record in caplog.records] == ["deadman: what it was handed is lost"]
