"""What is wrong with the files of an incident costs only itself: damage, what is no file, what takes too much."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle.reader import load
from stallwatch.bundle.workers import Limits
from stallwatch.errors import UnusableInput
from tests.unit.bundle.test_reader import rank_of, ranks_with_recorders


def test_truncated_and_empty_files_are_caveats(flat: Path) -> None:
    path = flat / "nccl_trace_rank_1"
    path.write_bytes(path.read_bytes()[:20_000])
    (flat / "nccl_trace_rank_2").write_bytes(b"")
    evidence = load([flat])
    assert ranks_with_recorders(evidence) == [0, 1, 3]
    assert [caveat.split(":")[0] for caveat in evidence.caveats] == ["nccl_trace_rank_1", "nccl_trace_rank_2"]


def test_stray_json_beside_the_dumps_is_a_caveat(flat: Path) -> None:
    (flat / "config.json").write_text('{"learning_rate": 0.1}')
    (flat / "notes.md").write_text("not opened at all")
    (flat / "model_0.pt").write_bytes(b"\x80\x02ctorch\nload\n.")
    evidence = load([flat])
    assert ranks_with_recorders(evidence) == [0, 1, 2, 3]
    assert len(evidence.caveats) == 1
    assert evidence.caveats[0].startswith("config.json: ")


def test_hostile_pickle_is_a_caveat(flat: Path) -> None:
    (flat / "nccl_trace_rank_1").write_bytes(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00true\x85R.")
    (flat / "nccl_trace_rank_2").write_bytes(b"\x80\x02Nr\xff\xff\xff\x7f.")
    evidence = load([flat])
    assert ranks_with_recorders(evidence) == [0, 3]
    assert any("refused" in caveat for caveat in evidence.caveats)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)  # a socket's own name may have 107 bytes, a test's folder is longer
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [make_fifo, make_link, make_socket, make_folder])
def test_what_is_no_regular_file_is_not_opened(bundle: Path, make: Callable[[Path], None]) -> None:
    path = bundle / "ranks" / "1" / "process.json"
    path.unlink()
    make(path)
    evidence = load([bundle])
    assert len(rank_of(evidence, 1).processes) == 1  # the second look's
    assert any("ranks/1/process.json" in caveat for caveat in evidence.caveats)


@pytest.mark.parametrize(
    "name", ["bundle.json", "nodes/node0/gpus.json", "ranks/0/stacks.json", "ranks/0/process.json"]
)
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"nodes": 3, "pids": [], "frames": 7}'])
def test_damage_anywhere_is_no_end(bundle: Path, name: str, damage: bytes) -> None:
    (bundle / name).write_bytes(damage)
    assert ranks_with_recorders(load([bundle])) == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [None, "nothing of note\n"])
def test_nothing_readable_says_what_was_tried(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "readme.txt").write_text(content)
    with pytest.raises(UnusableInput, match="nothing about any rank could be read") as raised:
        load([tmp_path, tmp_path / "absent"])
    assert "absent" in str(raised.value)
    assert raised.value.help


def test_file_that_takes_too_much_memory_costs_only_itself(bundle: Path) -> None:
    (bundle / "ranks" / "1" / "flight_recorder.nccl.pickle").write_bytes(b"\x80\x02" + b"]" * 3_000_000)
    evidence = load([bundle], Limits(address_space_bytes=200 << 20))
    assert ranks_with_recorders(evidence) == [0, 1, 2, 3]
    assert len(rank_of(evidence, 1).recorders) == 1
    assert [caveat for caveat in evidence.caveats if "memory" in caveat]


def test_file_that_takes_too_long_costs_only_itself(flat: Path) -> None:
    # Interpreted, not matched by a template: every entry is new.
    entry = b"}(X\x0e\x00\x00\x00profiling_nameX\x01\x00\x00\x00aX\x05\x00\x00\x00pg_idu"[:-1]
    slow = b"\x80\x02}(X\x07\x00\x00\x00entries](" + (entry + b"K\x01u") * 2_000_000
    (flat / "nccl_trace_rank_1").write_bytes(slow)
    for seconds in (4.0, 16.0, 64.0):  # the other files need a moment too, a long one where the machine is busy
        with contextlib.suppress(UnusableInput):
            evidence = load([flat], Limits(seconds=seconds, bytes_per_second=1 << 50))
            if ranks_with_recorders(evidence) == [0, 2, 3]:
                break
    assert ranks_with_recorders(evidence) == [0, 2, 3]
    assert any("took too long" in caveat for caveat in evidence.caveats)


def test_bad_file_among_a_ranks_recorders_costs_only_itself_in_a_large_incident(bundle: Path) -> None:
    (bundle / "ranks" / "1" / "flight_recorder.nccl.pickle").write_bytes(b"\x80\x02" + b"]" * 3_000_000)
    evidence = load([bundle], Limits(address_space_bytes=200 << 20), summarised_bytes=0)
    assert len(rank_of(evidence, 1).recorders) == 1
    assert len([caveat for caveat in evidence.caveats if "memory" in caveat]) == 1


def test_names_that_are_not_utf8_are_read_and_can_be_written(bundle: Path) -> None:
    strange = os.fsencode(bundle / "ranks" / "0") + b"/flight_recorder.\xff.pickle"
    Path(os.fsdecode(strange)).write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(bundle / "nodes") + b"/\xfe")).mkdir()
    Path(os.fsdecode(os.fsencode(bundle / "nodes") + b"/\xfe/gpus.json")).write_bytes(b"[]")
    evidence = load([bundle])
    assert ranks_with_recorders(evidence) == [0, 1, 2, 3]
    msgspec.json.encode(evidence)


def test_a_flat_folder_with_a_name_that_is_not_utf8_is_read(flat: Path) -> None:
    (flat / "nccl_trace_rank_0").rename(os.fsdecode(os.fsencode(flat) + b"/\xffnccl_trace_rank_0"))
    evidence = load([flat])
    assert ranks_with_recorders(evidence) == [0, 1, 2, 3]
    msgspec.json.encode(evidence)


def test_compressed_dumps_are_a_caveat_that_says_what_to_do(bundle: Path) -> None:
    dump = next(bundle.glob("ranks/2/flight_recorder*.pickle"))
    dump.rename(dump.with_name(dump.name + ".gz"))
    assert any("compressed" in caveat and "ranks/2" in caveat for caveat in load([bundle]).caveats)
