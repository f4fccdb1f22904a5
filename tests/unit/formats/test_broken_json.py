"""JSON that broke off anywhere: what was whole before is read, and nothing is made up."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch.formats import flight_recorder
from stallwatch.formats.broken_json import decode
from stallwatch.formats.unreadable import Unreadable

DUMP: dict[str, Any] = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 2}},
    "entries": [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number + 1,
            "p2p_seq_id": 0,
            "op_id": number + 1,
            "profiling_name": "gloo:all_reduce",
            "state": "scheduled",
            "is_p2p": False,
            "retired": number < 2,
            "input_sizes": [[8]],
            "frames": [{"name": 'odd "name", {[', "filename": "a\\b.py", "line": 3}],
        }
        for number in range(3)
    ],
}
TEXT = json.dumps(DUMP).encode()


@given(st.integers(1, len(TEXT) - 1))
def test_a_cut_anywhere_leaves_a_beginning_of_what_was_said(end: int) -> None:
    try:
        value, broke_off = decode(TEXT[:end])
    except Unreadable:
        assert end < TEXT.index(b",") + 1
        return
    assert broke_off
    assert value["version"] == "2.10"
    kept = value.get("entries", [])
    assert kept == DUMP["entries"][: len(kept)]


def test_entries_before_the_break_are_used_and_the_break_is_told() -> None:
    table = flight_recorder.parse_table(TEXT[: TEXT.rindex(b'"frames"')], "dump.json")
    read = flight_recorder.parse(TEXT[: TEXT.rindex(b'"frames"')], "dump.json")
    assert [operation.record_id for operation in read.operations] == [0, 1]
    assert read.cut_short
    assert any("broke off" in caveat for caveat in table.caveats)


def test_whole_json_is_not_broken() -> None:
    assert decode(TEXT) == (msgspec.json.decode(TEXT), False)
    assert not flight_recorder.parse(TEXT, "dump.json").cut_short


@pytest.mark.parametrize("data", [b"{", b'{"a": 1]', b"[1, 2}", b"{nonsense, more", b'{"a": 1} trailing, [', b""])
def test_other_damage_is_no_break(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(data)
