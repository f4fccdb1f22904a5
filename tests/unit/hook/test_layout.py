"""The byte definition: it may grow, and what it holds never moves."""

import hashlib
import struct
from binascii import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch.hook import layout
from stallwatch.hook.image import encode, fitting
from stallwatch.model.snapshot import CounterLook, GroupCounter
from stallwatch.node.heartbeat_file import LayoutError, TornRecord
from tests.builders.records import decoded

WORDS = {
    "pid": 4711,
    "start_ticks": 99,
    "pid_namespace": 4026531836,
    "rank": 3,
    "local_rank": 1,
    "world_size": 8,
    "restart_count": 2,
    "is_child": 0,
    "notify": 1,
    "step": 5,
    "phase_since_ns": 40,
    "pulse_count": 7,
    "pulse_ns": 1_000,
    "dump_started_ns": 0,
    "answered_request": 6,
    "ended": 0,
    "exit_code": -1,
    "ended_ns": 0,
    "attached_ns": 12,
    "errors": 0,
    "training_ident": 140737353815104,
    "training_tid": 4711,
    "frame_changes": 17,
}
STRINGS = {
    "phase": "checkpoint",
    "node": "n1",
    "training_job": "llama-1",
    "epoch": "n1:29500/8/2/x",
    "exception": "",
}
GOLDEN_1 = "3e304b4220ef2fa9be503f6f6bd8c864e9b55411695d166981b80723237a9267"  # SHA-256 of what version 1 wrote
GOLDEN = "b567a74e37d5b19279ffef7fa3882b327e55e1c7a620cc548b8d4ec35fbdc74a"  # SHA-256 of image()
GROUPS = (("nccl", 0, 10, 9), ("gloo", 1, 4, 4))


def ring_of(*times: int) -> tuple[int, ...]:
    """A ring after steps 1, 2, … at these times."""
    ring = [0] * layout.RING_SLOTS
    for number, time_ns in enumerate(times, start=1):
        ring[number % layout.RING_SLOTS] = time_ns
    return tuple(ring)


def image(**changes: int) -> bytes:
    return encode({**WORDS, **changes}, ring_of(100, 110, 130, 160, 200), GROUPS, STRINGS)


def test_the_bytes_of_version_2_never_change() -> None:
    data = image()
    assert len(data) == layout.RECORD_BYTES == 8192
    assert data[:8] == b"STALLWCH"
    assert struct.unpack_from("<12q", data, 8)[0] == 2
    # word 12 is the step, the ring begins at 1024, groups at 1536, strings at 5632
    assert struct.unpack_from("<q", data, 12 * 8)[0] == 5
    assert struct.unpack_from("<2q", data, 1024 + 8) == (100, 110)
    assert struct.unpack_from("<4q", data, 1536) == (0, 0, 10, 9)
    assert data[5632:5643] == b"checkpoint\0"
    assert hashlib.sha256(data).hexdigest() == GOLDEN


def of_version_1(data: bytes) -> bytes:
    """The record as a hook of version 1 wrote it: without the words that it did not know."""
    old = bytearray(data)
    old[25 * 8 : layout.RING_OFFSET] = bytes(layout.RING_OFFSET - 25 * 8)
    struct.pack_into("<2q", old, 8, 1, 0)
    struct.pack_into("<q", old, 16, crc32(old))
    return bytes(old)


def test_a_record_of_version_1_is_read_and_says_nothing_of_its_training_thread() -> None:
    data = of_version_1(image())
    assert hashlib.sha256(data).hexdigest() == GOLDEN_1
    record = decoded(data)
    assert (record.step, record.errors) == (5, 0)
    assert (record.training_ident, record.training_tid, record.frame_changes) == (None, None, None)


def test_a_record_says_what_was_written() -> None:
    record = decoded(image())
    assert (record.pid, record.start_ticks, record.pid_namespace) == (4711, 99, 4026531836)
    assert (record.rank, record.local_rank, record.world_size, record.restart_count) == (3, 1, 8, 2)
    assert (record.node, record.training_job, record.epoch) == ("n1", "llama-1", "n1:29500/8/2/x")
    assert (record.step, record.last_step_ns, record.step_durations_ns) == (5, 200, (10, 20, 30, 40))
    assert (record.phase, record.phase_since_ns) == ("checkpoint", 40)
    assert (record.pulse_count, record.pulse_ns, record.attached_ns) == (7, 1_000, 12)
    assert record.groups == tuple(GroupCounter(*group) for group in GROUPS)
    assert (record.training_ident, record.training_tid, record.frame_changes) == (140737353815104, 4711, 17)
    assert record.groups_dropped == 0
    assert (record.is_child, record.notify, record.answered_request) == (False, True, 6)
    assert (record.ended, record.exit_code, record.ended_ns, record.dump_started_ns) == (False, None, None, None)


def test_the_last_looks_are_kept_in_their_order() -> None:
    looks = tuple(
        layout.CounterLook(number, 10 * number, number, 3, 2, 1, 0) for number in range(5, 5 + layout.LOOK_SLOTS)
    )
    record = decoded(encode(WORDS, ring_of(), GROUPS, STRINGS, looks))
    assert record.looks == tuple(CounterLook(*look) for look in looks)
    assert record.exception == ""
    assert decoded(image()).looks == ()


def test_unknown_is_not_zero() -> None:
    record = decoded(image(step=layout.UNKNOWN))
    assert record.step is None
    assert record.last_step_ns is None
    before_the_first = decoded(image(step=0))
    assert before_the_first.step == 0
    assert before_the_first.last_step_ns is None
    ended = decoded(image(ended=1, ended_ns=9, exit_code=-1))
    assert (ended.ended, ended.ended_ns, ended.exit_code) == (True, 9, None)
    assert decoded(image(ended=1, exit_code=0)).exit_code == 0


@given(st.integers(min_value=0, max_value=400), st.integers(min_value=1, max_value=1000))
def test_durations_come_from_the_newest_steps_alone(steps: int, spacing_ns: int) -> None:
    times = [1000 + number * spacing_ns for number in range(steps)]
    record = decoded(encode({**WORDS, "step": steps}, ring_of(*times), (), STRINGS))
    assert record.step_durations_ns == (spacing_ns,) * max(0, min(steps - 1, layout.RING_SLOTS - 2))
    assert record.last_step_ns == (times[-1] if times else None)


def test_a_slot_that_is_ahead_of_its_counter_is_not_read() -> None:
    times = [1000 + number for number in range(100)]
    ring = list(ring_of(*times))
    ring[101 % layout.RING_SLOTS] = 999_999  # step 101 has stored its time and not yet counted
    record = decoded(encode({**WORDS, "step": 100}, tuple(ring), (), STRINGS))
    assert max(record.step_durations_ns) == 1


def test_every_damaged_byte_is_noticed() -> None:
    data = bytearray(image())
    for place in (8, 100, 1030, 1540, 5640, 8191):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(LayoutError):
            decoded(bytes(damaged))


def test_half_of_one_record_and_half_of_the_next_is_torn() -> None:
    with pytest.raises(TornRecord):
        decoded(image()[:64] + image(pulse_count=8, step=6)[64:])


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", LayoutError, "truncated"),
        (image()[:-1], LayoutError, "truncated"),
        (bytes(8192), TornRecord, "still empty"),
        (b"\x7fELF" * 2048, LayoutError, "foreign"),
        (b"STALLWCH" + struct.pack("<q", 77) + bytes(8176), LayoutError, "version 77"),
    ],
)
def test_what_is_no_record_is_refused_with_a_sentence(data: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        decoded(data)


def test_a_reader_takes_the_version_before_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    older = of_version_1(image())
    monkeypatch.setattr(
        layout, "WORDS", tuple((name, 2 if name == "errors" else since) for name, since in layout.WORDS)
    )
    monkeypatch.setattr(
        layout,
        "STRINGS",
        tuple((name, size, 2 if name == "exception" else since) for name, size, since in layout.STRINGS),
    )
    record = decoded(older)
    assert (record.step, record.phase, record.errors, record.exception) == (5, "checkpoint", 0, "")
    assert decoded(image()).step == 5
    monkeypatch.setattr(layout, "VERSION", 3)
    monkeypatch.setattr(layout, "READABLE_VERSIONS", (2, 3))
    with pytest.raises(LayoutError, match="version 1, this reader takes 2 to 3"):
        decoded(older)


def test_groups_beyond_the_room_are_counted() -> None:
    groups = tuple(("gloo", number, 1, 1) for number in range(layout.GROUP_CAPACITY + 3))
    record = decoded(encode(WORDS, ring_of(), groups, STRINGS))
    assert len(record.groups) == layout.GROUP_CAPACITY
    assert record.groups_dropped == 3


def test_the_tables_fit_the_record() -> None:
    assert len(layout.WORDS) <= layout.WORD_CAPACITY
    assert layout.STRING_OFFSET + sum(size for _, size, _ in layout.STRINGS) <= layout.LOOK_OFFSET


@given(st.text(max_size=300), st.integers(min_value=16, max_value=256))
def test_text_is_fitted_without_breaking_a_character(text: str, size: int) -> None:
    fitted = fitting(text, size)
    assert len(fitted) <= size
    fitted.decode("utf-8")


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, other = "job-" * 100 + "1", "job-" * 100 + "2"
    assert fitting(one, 256) != fitting(other, 256)
    assert fitting("short", 256) == b"short"


MARK = "0123456789abcdef"


def test_names_of_files() -> None:
    assert layout.record_name(12, 345) == "rank-12-345.beat"
    assert layout.parse_record_name("rank-12-345.beat") == (12, "345")
    assert layout.answer_name(12, 345, 6, "nccl") == "rank-12-345.6.nccl.dump"
    assert layout.facts_name(12, 345) == "rank-12-345.facts.json"
    assert layout.record_name(12, "345-" + MARK) == f"rank-12-345-{MARK}.beat"
    assert layout.parse_record_name(f"rank-12-345-{MARK}.beat") == (12, "345-" + MARK)
    assert layout.answer_name(12, "345-" + MARK, 6, "nccl", MARK) == f"rank-12-345-{MARK}.6.{MARK}.nccl.dump"
    assert layout.facts_name(12, "345-" + MARK, MARK) == f"rank-12-345-{MARK}.{MARK}.facts.json"
    assert layout.request_path("/run/x", 12, 345) == "/run/x/.daemon/12-345.request"


@pytest.mark.parametrize(
    "name",
    [
        "rank-1-2.facts.json",
        "rank-1.beat",
        "rank--1-2.beat",
        "rank-a-2.beat",
        ".rank-1-2.beat",
        "rank-1-2.beat.tmp",
        "rank-1-2-0123.beat",
    ],
)
def test_other_names_are_no_records(name: str) -> None:
    assert layout.parse_record_name(name) is None
