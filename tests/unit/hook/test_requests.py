"""Dump requests: from whom, how often, and what answers them."""

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from stallwatch.hook import layout, recorder
from stallwatch.hook.identity import ProcessIdentity
from stallwatch.hook.publication import RankFile
from stallwatch.hook.requests import DumpRequest, Requests
from stallwatch.node.heartbeat_file import request_body


@pytest.fixture
def file(tmp_path: Path) -> RankFile:
    (tmp_path / ".daemon").mkdir()
    return RankFile(str(tmp_path), 3, ProcessIdentity(7, 100, 1, "n1"))


def ask(file: RankFile, body: object, uid: int | None = None) -> Path:
    path = Path(layout.request_path(file.directory, file.rank, file.key))
    part = path.with_suffix(".tmp")
    part.write_text(json.dumps(body))
    if uid is not None:
        os.chown(part, uid, -1)
    part.rename(path)
    return path


def answer_of(file: RankFile, request_id: int, recorder: str) -> Path:
    ends = layout.answer_ends(file.rank, file.key, request_id, recorder)
    (path,) = (path for path in Path(file.directory).iterdir() if layout.is_between(path.name, ends))
    return path


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The parts of torch that the hook touches, with two recorders."""
    distributed, bindings = ModuleType("torch.distributed"), ModuleType("torch._C._distributed_c10d")
    distributed.is_initialized = lambda: True  # type: ignore[attr-defined]

    def recorder_of(offset: int) -> recorder.Dump:
        def dump(*arguments: bool) -> bytes:
            words = {"last_enqueued_collective": 5 + offset, "last_completed_collective": 4 + offset}
            return pickle.dumps({"pg_status": {"0": words}, "arguments": arguments}, protocol=2)

        return dump

    bindings._dump_nccl_trace = recorder_of(0)  # type: ignore[attr-defined]
    bindings._dump_fr_trace = recorder_of(10)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", bindings)
    return bindings


def test_a_request_is_seen_once(file: RankFile) -> None:
    requests = Requests()
    assert requests.poll(file) is None
    ask(file, {"id": 1, "rung": "active"})
    assert requests.poll(file) == DumpRequest(1, "active")
    assert requests.poll(file) is None
    ask(file, {"id": 2, "rung": "stacks"})
    assert requests.poll(file) == DumpRequest(2, "stacks")


def test_a_moment_for_the_dump_is_waited_for_within_bounds(file: RankFile) -> None:
    requests = Requests()
    at_ns = time.monotonic_ns() + 3_000_000_000
    ask(file, {"id": 1, "rung": "entries", "at_ns": at_ns})
    request = requests.poll(file)
    assert request == DumpRequest(1, "entries", at_ns)
    assert 0 < request.delay_seconds() <= 3
    assert DumpRequest(2, "entries", at_ns + 3600 * 10**9).delay_seconds() == 4
    assert (
        DumpRequest(3, "entries", at_ns - 3600 * 10**9).delay_seconds()
        == DumpRequest(3, "entries").delay_seconds()
        == 0
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_only_root_the_directory_s_owner_and_the_job_s_user_may_ask(file: RankFile) -> None:
    requests = Requests()
    os.chown(file.directory, 1001, -1)
    ask(file, {"id": 1, "rung": "active"}, uid=1002)
    assert requests.poll(file) is None
    ask(file, {"id": 2, "rung": "active"}, uid=1001)
    assert requests.poll(file) == DumpRequest(2, "active")
    ask(file, {"id": 3, "rung": "active"}, uid=0)
    assert requests.poll(file) == DumpRequest(3, "active")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_who_took_a_name_that_was_anybodys_may_not_ask(tmp_path: Path) -> None:
    """As /dev/shm/stallwatch, where no daemon has made it: a user of the node who came first is no daemon."""
    tmp_path.chmod(0o1777)
    for directory in (tmp_path / "stallwatch", tmp_path / "stallwatch" / "inner"):
        (directory / ".daemon").mkdir(parents=True)
        os.chown(tmp_path / "stallwatch", 1001, -1)
        os.chown(directory, 1001, -1)
        file, requests = RankFile(str(directory), 3, ProcessIdentity(7, 100, 1, "n1")), Requests()
        ask(file, {"id": 1, "rung": "stacks"}, uid=1001)
        assert requests.poll(file) is None
        ask(file, {"id": 2, "rung": "active"}, uid=0)
        assert requests.poll(file) == DumpRequest(2, "active")


def test_links_and_pipes_are_no_requests(file: RankFile) -> None:
    requests = Requests()
    path = ask(file, {"id": 1, "rung": "active"})
    path.rename(path.with_name("elsewhere"))
    os.symlink(path.with_name("elsewhere"), path)
    with pytest.raises(OSError):
        requests.poll(file)
    path.unlink()
    os.mkfifo(path)
    assert requests.poll(file) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"id": "1", "rung": "active"},
        {"id": 1, "rung": "everything"},
        {"id": 1, "rung": "active", "at_ns": "soon"},
        "x" * 9000,
    ],
)
def test_what_is_not_understood_is_refused_once(file: RankFile, body: object) -> None:
    requests = Requests()
    ask(file, body)
    with pytest.raises((KeyError, TypeError, ValueError)):
        requests.poll(file)
    assert requests.poll(file) is None


@pytest.mark.parametrize(
    ("rung", "arguments"),
    [("active", (True, False, True)), ("entries", (True, False, False)), ("stacks", (True, True, False))],
)
def test_both_recorders_answer_at_the_rung_that_was_asked(
    file: RankFile, torch: ModuleType, rung: str, arguments: tuple[bool, ...]
) -> None:
    Requests().answer(file, DumpRequest(4, rung))
    for name in ("nccl", "gloo"):
        answer = answer_of(file, 4, name).read_bytes()
        assert pickle.loads(answer)["arguments"] == arguments  # noqa: TID251 - written by this test


class Handled:
    """torch's base classes of what its worker server's handlers are given."""


WHOLE = '{"entries": [{"record_id": 0}, {"record_id": 1}], "pg_status": {"0": {"last_enqueued_collective": "2"}}}'


def add_handler(torch: ModuleType, content: str = WHOLE) -> None:
    """Give `torch` the handlers of its worker server."""

    def handler(name: str) -> Callable[[Any, Any], None]:
        assert name == "fr_trace_json"

        def answer(request: Any, response: Any) -> None:
            assert (request.body(), request.params()) == (b"", {})
            response.set_content(content, "application/json")
            response.set_status(200)

        return answer

    parts = {"_Request": Handled, "_Response": Handled, "_get_handler": handler}
    vars(torch).update(parts, _get_handler_names=lambda: ["ping", "dump_nccl_trace_json", "fr_trace_json"])


@pytest.mark.parametrize("rung", ["active", "entries"])
def test_json_that_costs_no_gil_is_left_where_it_is_taken(file: RankFile, torch: ModuleType, rung: str) -> None:
    """Of gloo: NCCL's handler wants parameters of a type that Python cannot give it."""
    add_handler(torch)
    Requests().answer(file, DumpRequest(4, rung, takes_json=True))
    assert answer_of(file, 4, "gloo").read_bytes() == WHOLE.encode()
    assert answer_of(file, 4, "nccl").read_bytes()[:1] == b"\x80"
    Requests().answer(file, DumpRequest(5, rung))
    assert answer_of(file, 5, "gloo").read_bytes()[:1] == b"\x80"


def test_a_hundred_dumps_make_no_hundred_classes(file: RankFile, torch: ModuleType) -> None:
    """A job that stands for a day is asked a thousand times, and a class is some kilobytes that only the collector of
    cycles finds, which some jobs turn off."""
    add_handler(torch)
    own = type("Own", (Handled,), {})  # other tests' classes are Handled's
    vars(torch).update(_Request=own, _Response=own)
    for number in range(100):
        Requests().answer(file, DumpRequest(number + 1, "entries", takes_json=True))
    assert len(own.__subclasses__()) == 2


def test_call_sites_are_in_no_json(file: RankFile, torch: ModuleType) -> None:
    add_handler(torch)
    Requests().answer(file, DumpRequest(4, "stacks", takes_json=True))
    assert answer_of(file, 4, "gloo").read_bytes()[:1] == b"\x80"


@pytest.mark.parametrize("lacks", ["_get_handler_names", "_Request", "_get_handler", "entries"])
def test_a_torch_that_has_no_such_handler_answers_with_its_pickle(
    file: RankFile, torch: ModuleType, lacks: str
) -> None:
    add_handler(torch, WHOLE.replace('"record_id": 0', '"record_id": 7'))
    vars(torch).pop(lacks, None)
    Requests().answer(file, DumpRequest(4, "entries", takes_json=True))
    assert answer_of(file, 4, "gloo").read_bytes()[:1] == b"\x80"


@pytest.mark.parametrize(
    ("numbers", "enqueued", "whole"),
    [
        (range(2), 2, True),
        (range(0), 0, True),
        (range(0), 5, False),  # all of them completed, and left out
        (range(3, 5), 5, False),  # the first of them
        (range(2), 3, True),  # the last was begun while the dump was made
        ((0, 2), 3, False),
        (range(100, 2100), 2100, True),  # a ring that is full
        (range(100, 1100), 1100, False),
    ],
)
def test_a_dump_that_leaves_out_what_is_completed_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, numbers: Iterable[int], enqueued: int, whole: bool
) -> None:
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    monkeypatch.delenv("TORCH_NCCL_TRACE_BUFFER_SIZE", raising=False)
    entries = [{"record_id": number, "retired": True} for number in numbers]
    status = {"0": {"last_enqueued_collective": str(enqueued), "last_started_collective": "-1"}}
    assert recorder.is_whole(json.dumps({"entries": entries, "pg_status": status})) is whole


def test_the_ring_is_as_long_as_the_job_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "10")
    text = json.dumps({"entries": [{"record_id": number} for number in range(90, 100)]}, separators=(",", ":"))
    assert recorder.is_whole(text)


def test_a_daemon_says_that_it_takes_json(file: RankFile) -> None:
    """A job may bring a hook that is newer than the node's daemon, and an older one reads no more than it knows."""
    requests = Requests()
    ask(file, {"id": 1, "rung": "active"})
    assert requests.poll(file) == DumpRequest(1, "active", takes_json=False)
    ask(file, msgspec.json.decode(request_body(2, "active")))
    assert requests.poll(file) == DumpRequest(2, "active", takes_json=True)


def test_the_next_answer_takes_the_place_of_the_last(file: RankFile, torch: ModuleType) -> None:
    requests = Requests()
    requests.answer(file, DumpRequest(4, "active"))
    requests.answer(file, DumpRequest(5, "active"))
    assert sorted(Path(file.directory).glob("*.dump")) == sorted(
        answer_of(file, 5, name) for name in ("gloo", "nccl", "scene")
    )
    requests.remove_answers()
    assert list(Path(file.directory).glob("*.dump")) == []


def test_without_torch_there_is_nothing_to_answer(file: RankFile) -> None:
    Requests().answer(file, DumpRequest(4, "active"))
    assert list(Path(file.directory).glob("*.dump")) == []


def test_counters_of_both_recorders(torch: ModuleType) -> None:
    assert recorder.group_counters(recorder.statuses()) == (("gloo", 0, 15, 14), ("nccl", 0, 5, 4))


def test_a_build_without_nccl_has_one_recorder(torch: ModuleType) -> None:
    del torch._dump_nccl_trace
    assert recorder.group_counters(recorder.statuses()) == (("gloo", 0, 15, 14),)


def json_of(torch: ModuleType, *said: str) -> list[int]:
    """Have gloo's recorder say so in JSON, one after the other; return how often it was asked."""
    asked: list[int] = []

    def dump_json(entries: bool, only_active: bool) -> bytes:
        assert not entries
        assert not only_active
        asked.append(1)
        return said[min(len(asked), len(said)) - 1].encode()

    torch._dump_fr_trace_json = dump_json  # type: ignore[attr-defined]
    return asked


def read_once() -> tuple[recorder.RecorderStatus, ...]:
    """The recorders at the pulse after that at which they were found."""
    found = recorder.statuses()
    recorder.group_counters(found)
    return recorder.statuses(found)


def test_a_recorder_without_groups_is_asked_no_more_than_before(torch: ModuleType) -> None:
    """gloo's of a job that has NCCL's groups alone."""
    asked: list[int] = []

    def empty(*_: bool) -> bytes:
        asked.append(1)
        return pickle.dumps({"pg_status": {}}, protocol=2)

    torch._dump_fr_trace = empty  # type: ignore[attr-defined]
    assert json_of(torch, "{}") == []
    found = read_once()
    assert recorder.group_counters(recorder.statuses(found)) == (("nccl", 0, 5, 4),)
    assert len(asked) == 2


def status_json(enqueued: int, completed: int, more: str = "") -> str:
    words = f'"last_completed_collective":"{completed}","last_enqueued_collective":"{enqueued}"{more}'
    return f'{{"comm_lib_version":"","pg_config":{{}},"pg_status":{{"0":{{{words}}}}},"version":"2.10"}}'


def test_json_that_says_the_same_is_read_from_then_on(torch: ModuleType) -> None:
    asked = json_of(torch, status_json(15, 14, ',"last_started_collective":"-1"'), status_json(17, 16))
    found = read_once()
    counts = [recorder.group_counters(found)[0] for _ in range(3)]
    assert counts == [("gloo", 0, 17, 16)] * 3
    assert recorder.statuses(found) == found
    assert len(asked) == 4


@pytest.mark.parametrize("other", [status_json(15, 13), status_json(15, 14).replace(":", ": "), "{}", "nothing"])
def test_json_that_says_anything_else_is_never_read(torch: ModuleType, other: str) -> None:
    asked = json_of(torch, other, status_json(15, 14))
    found = read_once()
    for _ in range(3):
        found = recorder.statuses(found)
        assert recorder.group_counters(found)[0] == ("gloo", 0, 15, 14)
    assert len(asked) == 1


def test_json_is_not_judged_by_counts_in_motion(torch: ModuleType) -> None:
    count = 14

    def moving(*_: bool) -> bytes:
        nonlocal count
        count += 1
        words = {"last_enqueued_collective": count, "last_completed_collective": count}
        return pickle.dumps({"pg_status": {"0": words}}, protocol=2)

    still = vars(torch)["_dump_fr_trace"]
    torch._dump_fr_trace = moving  # type: ignore[attr-defined]
    asked = json_of(torch, status_json(15, 14))
    found = read_once()
    assert recorder.group_counters(found)[0] == ("gloo", 0, 18, 18)
    found[-1].dump = still
    for status in found:
        status.prove()
    assert recorder.group_counters(found)[0] == ("gloo", 0, 15, 14)
    assert len(asked) == 3


def test_json_that_changes_its_form_is_given_up(torch: ModuleType) -> None:
    json_of(torch, status_json(15, 14), "{}", "x", status_json(99, 99).replace("pg_status", "last_enqueued_collective"))
    found = read_once()
    assert [recorder.group_counters(found)[0] for _ in range(3)] == [("gloo", 0, 15, 14)] * 3


def test_a_recorder_is_not_touched_before_torch_distributed_is_initialised(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["torch.distributed"], "is_initialized", lambda: False)
    assert recorder.recorders() == ()
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))  # still being imported
    assert recorder.recorders() == ()
