"""Who waits for the next request of a server of the standard library, and who ends one or is inside of a request."""

import pytest

from stallwatch.diagnosis.activity import read_activity
from tests.builders.rank_evidence import MODULE, process, rank, stack, stacks, thread


def test_a_server_of_the_standard_library_waits_for_requests() -> None:
    """It counted as stuck: a rank that served nobody, whose RPC workers waited in `shutdown`."""
    serves = stack("select@PY/selectors.py:415", "serve_forever@PY/socketserver.py:235", "serve@JOB:4", MODULE)
    waits = rank(serves, stacks=(stacks(thread(serves)),), processes=(process("S", "poll_schedule_timeout"),))
    assert read_activity(waits).progress.ends_by_itself == "request"
    handles = stack("acquire@JOB:9", "finish_request@PY/socketserver.py:348", *("serve@JOB:4", MODULE))
    stands = rank(handles, stacks=(stacks(thread(handles)),), processes=(process("S", "futex_wait_queue"),))
    assert read_activity(stands).progress.ends_by_itself != "request", "a request that it does not come out of"


@pytest.mark.parametrize(
    "names",
    [
        ("wait@PY/threading.py:629", "shutdown@PY/socketserver.py:250"),
        ("join@PY/threading.py:1096", "join@PY/socketserver.py:661", "server_close@PY/socketserver.py:700"),
        ("readinto@PY/socket.py:706", "process_request@PY/socketserver.py:349", "serve_forever@PY/socketserver.py:238"),
    ],
)
def test_who_ends_a_server_or_is_held_up_by_a_request_waits_for_none(names: tuple[str, ...]) -> None:
    """Metrics that a rank serves, and which it cannot close after its training: without a hook nobody was ever told."""
    stands = stack(*names, "after_training@JOB:4", MODULE)
    ends = rank(stands, stacks=(stacks(thread(stands)),), processes=(process("S", "futex_wait_queue"),))
    assert read_activity(ends).progress.ends_by_itself != "request"
