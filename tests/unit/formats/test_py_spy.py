import json
from pathlib import Path

import pytest

from stallwatch.formats.py_spy import parse
from stallwatch.formats.unreadable import Unreadable

BUNDLES = Path(__file__).parents[2] / "bundles"


@pytest.mark.parametrize("path", sorted(BUNDLES.glob("nccl-tp_dp/ranks/*/stacks*.json")), ids=lambda p: p.parent.name)
def test_real_stacks(path: Path) -> None:
    want, got = json.loads(path.read_bytes()), parse(path.read_bytes(), "s", 2)
    assert got.look == 2
    assert got.pid == want[0]["pid"]
    assert [thread.os_thread_id for thread in got.threads] == [thread["os_thread_id"] for thread in want]
    for thread, said in zip(got.threads, want, strict=True):
        assert [(f.name, f.filename, f.line) for f in thread.frames] == [
            (f["name"], f["filename"], f["line"]) for f in said["frames"]
        ]
        assert (thread.active, thread.owns_gil, thread.ident) == (said["active"], said["owns_gil"], said["thread_id"])


def test_failure_is_the_message() -> None:
    got = parse(b'{"error": "Error: Failed to get stack traces"}', "s")
    assert got.error == "Failed to get stack traces"
    assert got.threads == ()


@pytest.mark.parametrize("data", [b"", b"[", b"3", b'{"a": 1}', b"[3]", b"Error: Permission Denied"])
def test_what_is_not_py_spys_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data, "s")


def test_absent_and_odd_fields_do_no_harm() -> None:
    (thread,) = parse(b'[{"frames": [{"name": 3}, 7], "active": "yes", "thread_name": null}]', "s").threads
    assert thread.active is False
    assert thread.name == ""
    assert len(thread.frames) == 2
