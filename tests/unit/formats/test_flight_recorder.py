"""Dumps of real jobs, compared with Python's own unpickler, and the forms that other versions and tools write."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch.formats.flight_recorder import parse, parse_table
from stallwatch.formats.recorder_entries import BadEntry, EntryReader
from stallwatch.formats.recorder_table import TableBuilder, expand
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import GroupStatus, RecordedGroup

BUNDLES = Path(__file__).parents[2] / "bundles"
DUMPS = sorted(BUNDLES.glob("*/ranks/*/flight_recorder*.pickle"))

Edit = Callable[[dict[str, Any]], None]


def reference(data: bytes) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(data)  # noqa: TID251  a capture of ours, not a job's file
    return dump


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_813_306_336_812_003,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[2, 3]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "f", "filename": "/app/train.py", "line": 3}],
    } | changes


def dump(*entries: Any, **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 0}
        },
        "comm_lib_version": "2.28.9",
        "entries": list(entries),
    } | changes


def pickled(value: object) -> bytes:
    return pickle.dumps(value, 2)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parts[-4]}-{path.parts[-2]}-{path.stem}")
def test_real_dump_equals_what_pickle_says(path: Path) -> None:
    data = path.read_bytes()
    want, got = reference(data), parse(data, path.name)
    assert got.version == want["version"]
    assert [op.record_id for op in got.operations] == [e["record_id"] for e in want["entries"]]
    for op, e in zip(got.operations, want["entries"], strict=True):
        assert f"{op.backend}:{op.name}" == e["profiling_name"]
        assert (op.group_name, op.group_description) == e["process_group"]
        assert (op.collective_seq_id, op.p2p_seq_id, op.op_id, op.pg_id) == (
            e["collective_seq_id"],
            e["p2p_seq_id"],
            e["op_id"],
            e["pg_id"],
        )
        assert (op.created_ns, op.started_ns, op.completed_ns) == (
            e["time_created_ns"],
            e["time_discovered_started_ns"],
            e["time_discovered_completed_ns"],
        )
        assert [list(size) for size in op.input_sizes] == e["input_sizes"]
        assert [list(size) for size in op.output_sizes] == e["output_sizes"]
        assert list(op.input_dtypes) == e["input_dtypes"]
        assert (op.state, op.retired, op.is_p2p, op.timeout_ms) == (
            e["state"],
            e["retired"],
            e["is_p2p"],
            e["timeout_ms"],
        )
        assert [(f.name, f.filename, f.line) for f in op.frames] == [
            (f["name"], f["filename"], f["line"]) for f in e.get("frames", [])
        ]
        assert (op.thread_id, op.thread_name) == (e["thread_id"], e["thread_name"])
    assert {status.pg_id: status.enqueued for status in got.status} == {
        int(key): value["last_enqueued_collective"] for key, value in want["pg_status"].items()
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_reads_alike(protocol: int) -> None:
    value = dump(*(entry(record_id=i, collective_seq_id=i + 1) for i in range(300)))
    assert parse(pickle.dumps(value, protocol), "x") == parse(pickled(value), "x")


def test_json_form_says_the_same_without_frames() -> None:
    data = (BUNDLES / "nccl-tp_dp" / "ranks" / "0" / "flight_recorder.nccl.pickle").read_bytes()
    said = reference(data)
    for each in said["entries"]:
        del each["frames"]
        # torch's JSON writes 0 for "not yet" and numbers of pg_status as text
        each["time_discovered_started_ns"] = each["time_discovered_started_ns"] or 0
        each["time_discovered_completed_ns"] = each["time_discovered_completed_ns"] or 0
    for status in said["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})
    want, got = parse(data, "x"), parse(json.dumps(said).encode(), "x")
    assert got.status == want.status
    assert got.groups == want.groups
    assert [(op.record_id, op.name, op.created_ns, op.completed_ns) for op in got.operations] == [
        (op.record_id, op.name, op.created_ns, op.completed_ns) for op in want.operations
    ]
    assert all(op.frames == () for op in got.operations)


def test_torchs_own_json_writer_is_read() -> None:
    """As `_dump_fr_trace_json` of torch 2.13 printed it."""
    data = (
        b'{"comm_lib_version":"","entries":[{"collective_seq_id":1,"input_dtypes":["Float"],"input_sizes":[[3]],'
        b'"is_p2p":false,"op_id":1,"output_dtypes":["Float"],"output_sizes":[[3]],"p2p_seq_id":0,"pg_id":0,'
        b'"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":0,"retired":true,'
        b'"state":"scheduled","thread_id":"140470458375040","thread_name":"python",'
        b'"time_created_ns":1795820506547056949,"time_discovered_completed_ns":0,"time_discovered_started_ns":0,'
        b'"timeout_ms":1800000}],"nccl_comm_state":{},"pg_config":{"":{"desc":"","name":"","ranks":"[0]"}},'
        b'"pg_status":{"0":{"last_completed_collective":"2","last_enqueued_collective":"2",'
        b'"last_started_collective":"-1"}},"version":"2.10"}'
    )
    got = parse(data, "x")
    assert got.backend == "gloo"
    assert got.status == (GroupStatus(0, 2, -1, 2),)
    assert got.operations[0].completed_ns is None
    assert got.groups == (RecordedGroup("0", "default_pg", (0,)),)


def test_group_of_gloo_without_members_stays_without() -> None:
    got = parse(pickled(dump(entry(), pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})), "x")
    assert got.groups == (RecordedGroup("", "", ()),)


@pytest.mark.parametrize("used", ["entry", "status"])
def test_members_that_gloo_tells_are_not_the_default_group_s_where_another_was_used(used: str) -> None:
    """torch 2.14 writes those of whichever group was made last under the name "", counted within it."""
    counts = {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 1}
    entries = [entry(profiling_name="gloo:barrier")]
    if used == "entry":
        entries.append(entry(process_group=("1", "undefined"), pg_id=1, profiling_name="gloo:all_reduce"))
    status = {"0": counts} | ({"1": counts} if used == "status" else {})
    last = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    got = parse(pickled(dump(*entries, pg_config=last, pg_status=status)), "x")
    assert got.groups == (RecordedGroup("", "", (0, 1)),)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("[0, 1, 2]", (0, 1, 2)),
        ("[]", ()),
        ("[7]", (7,)),
        ("[0,1,]", (0, 1)),
        ("__import__('os').system('true')", ()),
        ("[0, -1]", ()),
        ([3, "4"], (3, 4)),
        (None, ()),
    ],
)
def test_ranks_are_read_without_evaluating_them(text: object, ranks: tuple[int, ...]) -> None:
    got = parse(pickled(dump(entry(), pg_config={"0": {"name": "0", "desc": "d", "ranks": text}})), "x")
    assert got.groups[0].ranks == ranks


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"collective_seq_id": "17"}, "collective_seq_id", 17),
        ({"process_group": ["5", "tp"]}, "group_description", "tp"),
        ({"process_group": "5"}, "group_name", "5"),
        ({"process_group": (5, None)}, "group_name", "5"),
        ({"profiling_name": "xccl:broadcast"}, "backend", "xccl"),
        ({"profiling_name": "nccl:send 0->1", "is_p2p": None}, "is_p2p", True),
        ({"profiling_name": "all_reduce"}, "backend", ""),
        ({"state": None, "time_discovered_completed_ns": 5}, "state", "completed"),
        ({"duration_ms": 3.5}, "duration_ms", 3.5),
        ({"duration_ms": float("nan")}, "duration_ms", None),
        ({"time_created_ns": 2**70}, "created_ns", None),
        ({"frames": None}, "frames", ()),
        ({"frames": [7, {"name": "g"}]}, "frames", None),
        ({"input_sizes": "[[1]]"}, "input_sizes", ()),
        ({"retired": "yes"}, "retired", False),
        ({"thread_id": 99}, "thread_id", "99"),
    ],
)
def test_odd_fields_do_not_lose_the_entry(changes: dict[str, Any], field: str, value: object) -> None:
    (operation,) = parse(pickled(dump(entry(**changes))), "x").operations
    if value is not None or field == "created_ns" or field == "duration_ms":
        assert getattr(operation, field) == value


@pytest.mark.parametrize("missing", sorted(entry().keys() - {"profiling_name", "collective_seq_id"}))
def test_any_absent_key_does_not_lose_the_entry(missing: str) -> None:
    one = entry()
    del one[missing]
    assert len(parse(pickled(dump(one)), "x").operations) == 1


@pytest.mark.parametrize("missing", ["version", "pg_config", "pg_status", "comm_lib_version"])
def test_any_absent_part_does_not_lose_the_dump(missing: str) -> None:
    said = dump(entry())
    del said[missing]
    assert len(parse(pickled(said), "x").operations) == 1


def test_dump_without_entries_says_what_groups_did() -> None:
    said = dump()
    del said["entries"]
    assert parse(pickled(said), "x").status[0].enqueued == 1


def test_bad_entry_is_dropped_and_named_and_the_rest_stays() -> None:
    table = parse_table(pickled(dump(entry(), "not an entry", entry(profiling_name=7), entry(record_id=3))), "x")
    assert [op.record_id for op in parse(pickled(dump(entry(), "no", entry(record_id=3))), "x").operations] == [0, 3]
    assert len(table.caveats) == 2
    assert all("of 4 entries dropped" in caveat for caveat in table.caveats)


def test_old_dump_counts_with_seq_id() -> None:
    one = entry(seq_id=9)
    del one["collective_seq_id"]
    assert parse(pickled(dump(one)), "x").operations[0].collective_seq_id == 9


def test_older_torch_names_its_library_version_otherwise() -> None:
    said = dump(entry(), nccl_version="2.26.2", version="2.9")
    del said["comm_lib_version"]
    assert parse(pickled(said), "x").comm_lib_version == "2.26.2"


def test_back_end_of_an_empty_ring_is_told_by_its_file_or_library() -> None:
    assert parse(pickled(dump()), "flight_recorder.gloo.pickle").backend == "gloo"
    assert parse(pickled(dump()), "x").backend == "nccl"
    assert parse(pickled(dump(comm_lib_version="")), "x").backend == ""


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_truncated_dump_keeps_what_was_complete(share: float) -> None:
    data = (BUNDLES / "nccl-tp_dp" / "ranks" / "0" / "flight_recorder.nccl.pickle").read_bytes()
    whole = parse(data, "x")
    table = parse_table(data[: int(len(data) * share)], "x")
    cut = parse(data[: int(len(data) * share)], "x")
    assert 0 < len(cut.operations) < len(whole.operations)
    assert cut.operations == whole.operations[: len(cut.operations)]
    assert cut.status == whole.status
    assert any("what was complete before is used" in caveat for caveat in table.caveats)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\x80\x02", "not a whole pickle"),
        (pickled([1, 2]), "not a flight recorder's dump"),
        (pickled({"a": 1}), "neither entries nor process groups"),
        (pickled({"entries": 3}), "neither entries nor process groups"),
        (b'{"a": ', "not JSON"),
        (b'{"a": 1}', "neither entries nor process groups"),
        (b"[" * 100_000, "not JSON"),
        (b"\x80\x09.", "protocol 9"),
    ],
)
def test_what_is_no_dump_is_said_to_be_none(data: bytes, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        parse(data, "x")


def test_an_entry_that_is_repeated_by_reference_counts_once() -> None:
    one = entry()
    table = parse_table(pickled(dump(one, one, one)), "x")
    assert len(table.kind_of) // 4 == 1
    assert table.caveats == ("2 of 3 entries dropped: the entry is the same record again",)


def test_what_entries_may_refer_to_is_bounded() -> None:
    reader = EntryReader(TableBuilder(), budget=5)
    reader.add(entry(), 0)  # one shape and one type of input and of output, one frame
    with pytest.raises(BadEntry, match="repeats more"):
        reader.add(entry(), 1)


@pytest.mark.parametrize("number", ["x", None, -5, 2**62])
def test_an_entry_without_a_number_is_dropped_not_numbered_zero(number: object) -> None:
    entry = {"profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"), "state": "scheduled"}
    dump = {"version": "2.10", "entries": [{**entry, "collective_seq_id": 1}, {**entry, "collective_seq_id": number}]}
    read = parse_table(pickle.dumps(dump, protocol=2), "x")
    assert len(expand(read).operations) == 1
    assert read.cut_short
    assert "number" in read.caveats[0]


def test_a_state_that_no_version_writes_is_told_by_the_times() -> None:
    entry = {"profiling_name": "nccl:all_reduce", "state": "weird"}
    done = {**entry, "collective_seq_id": 1, "time_discovered_completed_ns": 5}
    dump = {"version": "2.10", "entries": [done, {**entry, "collective_seq_id": 2}]}
    states = [operation.state for operation in parse(pickle.dumps(dump, protocol=2), "x").operations]
    assert states == ["completed", "scheduled"]


# What differs by type alone, or cannot be written as it is, is not the same.
ALIKE: list[dict[str, Any]] = [
    {"retired": True},
    {"retired": 1},
    {"retired": 1.0},
    {"pg_id": 1},
    {"pg_id": True},
    {"pg_id": "1"},
    {"pg_id": 2**70},
    {"is_p2p": True},
    {"is_p2p": 1},
    {"profiling_name": "gloo:send"},
    {"profiling_name": ["gloo:send"]},
    {"process_group": ["1", "other"]},
    {"process_group": "1"},
    {"state": "COMPLETED"},
    {"state": "completed"},
    {"state": ["completed"]},
    {"state": "weird", "time_discovered_completed_ns": 5},
    {"state": "weird"},
    {"input_sizes": [[2, 3]]},
    {"input_sizes": [[2], [3]]},
    {"output_sizes": [[True]]},
    {"input_dtypes": ["Int"]},
    {"output_dtypes": ["Int"]},
    {"timeout_ms": 5},
    {"timeout_ms": 5.0},
    {"timeout_ms": 5.5},
    {"thread_id": "5"},
    {"thread_id": 6},
    {"thread_name": "MainThread"},
    {"frames": [{"name": "step", "filename": "train.py", "line": 3}]},
    {"frames": {}},
]


def test_entries_of_json_that_are_alike_are_read_once_and_others_each_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = json.loads(json.dumps(entry(state="scheduled", frames=None)))
    entries = [usual | change | {"collective_seq_id": n} for n, change in enumerate([{}, *ALIKE] * 3)]
    tables = []
    for of_json in (True, False):
        builder = TableBuilder()
        reader, read = EntryReader(builder, 1 << 20, of_json=of_json), 0
        whole = EntryReader._read_kind

        def counted(self: EntryReader, entry: dict[Any, Any], whole: Callable[..., int] = whole) -> int:
            nonlocal read
            read += 1
            return whole(self, entry)

        monkeypatch.setattr(EntryReader, "_read_kind", counted)
        said = []
        for ordinal, one in enumerate(entries):
            try:
                reader.add(one, ordinal)
            except BadEntry as error:
                said.append((ordinal, str(error)))
        monkeypatch.setattr(EntryReader, "_read_kind", whole)
        tables.append((builder.kinds, bytes(builder.kind_of), bytes(builder.numbers), said))
        assert read <= len(ALIKE) + 16 if of_json else read == len(entries)
    assert tables[0] == tables[1]
    assert len(tables[0][0]) > 15
    data = json.dumps({"entries": entries, "pg_config": {}}).encode()
    assert parse_table(data, "x").kinds == tables[1][0]
