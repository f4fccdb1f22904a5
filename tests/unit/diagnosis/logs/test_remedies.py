"""What a kind of failure means and what mends it, by the line that tells it."""

from typing import Any

import pytest

from stallwatch.diagnosis.logs.consequence import LoggedFailure, meaning
from stallwatch.diagnosis.logs.remedies import words_for
from stallwatch.model.evidence import LogEvent


def event(kind: str, text: str = "", **fields: Any) -> LogEvent:
    return LogEvent(kind=kind, line=1, text=text, **fields)


@pytest.mark.parametrize(
    ("kind", "text", "fields", "remedy"),
    [
        ("launcher_failure", "", {"exit_signal": 9}, "killed process"),
        ("process_failed", "", {"exit_signal": 7}, "df -h /dev/shm"),
        ("process_failed", "", {"exit_signal": 11}, "PYTHONFAULTHANDLER=1"),
        ("launcher_failure", "", {"exit_signal": 6}, "this rank's own log"),
        ("init_timeout", "", {"ranks": (3,)}, "rank 3's own log"),
        ("out_of_memory", "CUDA out of memory. Tried to allocate 2.00 GiB", {}, "smaller batch"),
        ("nccl_connect", "connect to 127.0.0.1<29500> failed : Connection refused", {}, "NCCL_SOCKET_IFNAME"),
        ("gloo_connect", "connectFullMesh failed with SocketTimeout: 127.0.0.1:29500", {}, "GLOO_SOCKET_IFNAME"),
        ("no_such_kind", "", {}, "read the lines around it"),
    ],
)
def test_a_line_tells_what_mends_it(kind: str, text: str, fields: dict[str, Any], remedy: str) -> None:
    assert remedy in words_for(LoggedFailure(event(kind, text, **fields), 2, kind)).remedy


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("OSError", "[Errno 98] Address already in use", "address_in_use"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("ValueError", "bad shard", "exception"),
    ],
)
def test_an_exception_is_taken_as_what_its_text_tells(exception: str, message: str, kind: str) -> None:
    told = meaning(event("exception", f"{exception}: {message}", exception=exception, message=message))
    assert (told.kind, told.consequence) == (kind, "")
