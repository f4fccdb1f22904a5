"""A bundle may be anybody's: what it announces, and how much of it there is, must not be the reader's cost."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.bundle.bounds import MOST_CAVEATS, MOST_RANKS
from stallwatch.bundle.discovery import survey
from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.bundle.workers import Limits
from stallwatch.errors import UnusableInput
from stallwatch.model.evidence import Evidence
from tests.builders.heartbeat import heartbeat


def bundle_of(folder: Path, description: dict[str, Any] | None = None) -> Path:
    (folder / "ranks" / "0").mkdir(parents=True)
    (folder / "bundle.json").write_text(json.dumps(description or {"world_size": 2, "nodes": {"h": [0, 1]}}))
    (folder / "ranks/0/process.json").write_text(json.dumps({"pid": 100, "state": "S"}))
    return folder


def record(**changes: Any) -> bytes:
    """A record with numbers that no builder would take."""
    return json.dumps({**msgspec.to_builtins(heartbeat(0, world_size=2)), **changes}).encode()


def reported(folder: Path, limits: Limits | None = None) -> Evidence:
    evidence = load([folder]) if limits is None else load([folder], limits)
    make_report(evidence)
    return evidence


@pytest.mark.parametrize("size", [MOST_RANKS + 1, 10**9, 2**62, "9" * 18])
def test_a_world_that_no_job_has_is_not_believed(tmp_path: Path, size: int | str) -> None:
    evidence = reported(
        bundle_of(tmp_path / "b", {"world_size": size, "nodes": {"h": [0, 2**61]}, "pids": {str(2**61): 1}})
    )
    assert evidence.world_size is None
    assert any("ranks is not believed" in caveat for caveat in evidence.caveats)


def test_a_record_of_such_a_world_neither(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b", {"nodes": {"h": [0]}})
    (folder / "ranks/0/heartbeat.json").write_bytes(record(world_size=2**60))
    assert reported(folder).world_size is None


def test_a_number_beyond_64_bits_costs_its_file(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    (folder / "ranks/0/heartbeat.json").write_bytes(record(pulse_ns=10**40))
    evidence = reported(folder)
    assert evidence.ranks[0].processes
    assert any("heartbeat.json: it holds what no such file does" in caveat for caveat in evidence.caveats)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("stacks.json", b"[" * 1_000_000),
        ("flight_recorder.a.json", b'{"entries":' + b"[" * 1_000_000),
        ("flight_recorder.a.json", b'{"entries":[{"profiling_name":"' + b"x" * 5_000_000),
        ("flight_recorder.a.json", b'{"entries":[{"collective_seq_id":' + b"9" * 1_000_000 + b"}]}"),
        ("attempts.json", b'[{"what":' * 100_000),
        ("process-2.json", b'{"pid": 1e999}'),
        ("log.txt", b"[rank" + b"9" * 3000 + b"]: Traceback (most recent call last):\nValueError: x\n"),
        (
            "stacks.json",
            b'[{"thread_name":"\\ud800\\u001b[2J","frames":[{"name":"\\udcff\\n","filename":"\\u202e","line":1}]}]',
        ),
        ("flight_recorder.a.pickle", pickle.dumps({"entries": [{"profiling_name": "gloo:\ud800", "frames": 1}]}, 0)),
    ],
)
def test_what_cannot_be_used_costs_its_file_and_shows_nothing_raw(tmp_path: Path, name: str, data: bytes) -> None:
    folder = bundle_of(tmp_path / "b")
    (folder / "ranks/0" / name).write_bytes(data)
    evidence = reported(folder)
    assert evidence.ranks[0].processes
    assert all(caveat.isprintable() for caveat in evidence.caveats)
    for stacks in evidence.ranks[0].stacks:
        assert all(thread.name.isprintable() for thread in stacks.threads)
        assert all(frame.name.isprintable() for thread in stacks.threads for frame in thread.frames)


def test_files_that_are_too_much_are_not_tried_for_ever(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    for number in range(30):
        (folder / "ranks/0" / f"flight_recorder.{number}.json").write_bytes(b'{"entries":[' + b"[]," * 100_000)
    with pytest.raises(UnusableInput, match="not read: files before it were too much for their reader"):
        load([folder], Limits(seconds=0.0, bytes_per_second=1 << 50, lost_seconds=0.0))


def test_what_all_files_say_is_bounded(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    for number in range(2, 40):
        (folder / "ranks/0" / f"log-{number}.txt").write_bytes(b"a line of a log\n" * 3000)
    evidence = reported(folder, Limits(answers_bytes=100_000))
    assert any("not read: the files before it say more than fits" in caveat for caveat in evidence.caveats)


def test_caveats_are_bounded(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    for number in range(MOST_CAVEATS + 50):
        (folder / "ranks" / f"no-rank-{number}").mkdir()
    caveats = reported(folder).caveats
    assert len(caveats) == MOST_CAVEATS + 1
    assert "more of these" in caveats[-1]


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    node = os.fsencode(folder) + b"/nodes/h\xff\x1b[2J"
    os.makedirs(node)
    with open(node + b"/kernel_log.txt", "wb") as file:
        file.write(b"a line\x1b[2J\xe2\x80\xae\n")
    evidence = reported(folder)
    assert r"h\xff\x1b[2J" in {node.host for node in evidence.nodes}
    assert all(line.isprintable() for node in evidence.nodes for line in node.kernel_log or ())


def test_nothing_that_can_be_used_is_said_with_exit_65(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "rank0").write_bytes(b"{" + b'"a":{' * 100_000)
    with pytest.raises(UnusableInput) as raised:
        load([tmp_path / "b"])
    assert raised.value.exit_code == 65


def test_a_link_that_cannot_be_followed_costs_nothing_else(tmp_path: Path) -> None:
    """Into a folder that is closed to us, or to a name that is too long: what it is cannot be asked."""
    (tmp_path / "log.txt").write_text("[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: bad batch\n")
    (tmp_path / "leads-nowhere").symlink_to("x" * 300)
    assert [file.path.name for file in survey([tmp_path]).files if file.path.name == "log.txt"] == ["log.txt"]
