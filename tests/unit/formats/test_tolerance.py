"""No parser may raise anything but Unreadable, whatever another program wrote into its file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch.bundle import description
from stallwatch.formats import flight_recorder, gpus, kernel_log, process, py_spy, ras, training_log
from stallwatch.formats.unreadable import Unreadable

BUNDLES = Path(__file__).parents[2] / "bundles"
NODE = BUNDLES / "nccl-tp_dp" / "nodes" / "node0"
RANK = BUNDLES / "nccl-tp_dp" / "ranks" / "0"
PARSERS: dict[str, tuple[Callable[[bytes], Any], Path]] = {
    "stacks": (lambda data: py_spy.parse(data, "s"), RANK / "stacks.json"),
    "process": (lambda data: process.parse(data, "p"), RANK / "process.json"),
    "gpus": (gpus.parse, NODE / "gpus.json"),
    "ras": (ras.parse, NODE / "nccl_ras.json"),
    "description": (description.parse, BUNDLES / "nccl-tp_dp" / "bundle.json"),
}
odd: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
)


def spoiled(value: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """The value with something in it exchanged for something else."""
    if draw(st.integers(0, 3)) == 0 or not isinstance(value, (list, dict)) or not value:
        return draw(odd)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], spoiled(value[place], draw), *value[place + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    return value | {key: spoiled(value[key], draw)}


@pytest.mark.parametrize("name", PARSERS)
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_field_may_be_anything(name: str, data: st.DataObject) -> None:
    parse, path = PARSERS[name]
    said = spoiled(json.loads(path.read_bytes()), data.draw)
    try:
        parse(json.dumps(said).encode())
    except Unreadable:
        pass


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_field_of_a_dump_may_be_anything(data: st.DataObject) -> None:
    entry = {
        "record_id": 1,
        "process_group": ["0", "d"],
        "profiling_name": "nccl:send 0->1",
        "input_sizes": [[1]],
        "input_dtypes": ["Float"],
        "frames": [{"name": "f", "filename": "g", "line": 1}],
        "duration_ms": 1.5,
        "time_created_ns": 5,
    }
    dump = {
        "version": "2.10",
        "entries": [entry, entry],
        "pg_config": {"0": {"name": "0", "desc": "d", "ranks": "[0]"}},
        "pg_status": {"0": {"last_enqueued_collective": 1}},
    }
    try:
        flight_recorder.parse(json.dumps(spoiled(dump, data.draw)).encode(), "x")
    except Unreadable:
        pass


WORDS = """
WorkNCCL( SeqNum=1, OpType=A, [rank3]: [PG ID 0 PG GUID 0(default_pg) Rank 1] last enqueued work: 5 last completed
work: 4 Traceback (most recent call last): File "a.py", line 1 Error: x NVRM: Xid (PCI:0000:61:00): 79,
oom-kill:constraint= CONSTRAINT_MEMCG,task=a,pid=1,uid=1 Root Cause (first observed failure): [0]: rank : 2
(local_rank: 2) exitcode : -9 (pid: 3) EADDRINUSE port: 5 DataLoader worker (pid 5) exits with return code = 9999999999
"""
words = st.sampled_from([*WORDS.replace("\n", " ").split(" "), "\n"])


@given(st.lists(words | st.text(max_size=8), max_size=60))
@settings(deadline=None, max_examples=100)
def test_any_text_may_be_a_log(parts: list[str]) -> None:
    text = " ".join(parts).encode("utf-8", "surrogatepass")
    training_log.parse(text)
    kernel_log.parse(text)
