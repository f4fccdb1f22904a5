"""The fast way must say exactly what the slow one says."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from stallwatch.formats import flight_recorder
from stallwatch.formats.entry_templates import EntryTemplates, TemplateLibrary
from stallwatch.formats.recorder_entries import EntryReader
from stallwatch.formats.recorder_table import expand
from stallwatch.model.evidence import Recorder

BUNDLES = Path(__file__).parents[2] / "bundles"
DUMPS = sorted(BUNDLES.glob("*/ranks/*/flight_recorder*.pickle"))


def slowly(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    with monkeypatch.context() as patched:
        patched.setattr(EntryTemplates, "after_dict", lambda self, machine: False)
        return flight_recorder.parse(data, "x")


def with_library(data: bytes, library: TemplateLibrary) -> Recorder:
    return expand(flight_recorder.parse_table(data, "x", 1, library))


def ring(count: int, name: str = "nccl:all_reduce", first: int = 0, **shared: Any) -> bytes:
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number + 1,
            "op_id": number + 1,
            "profiling_name": name,
            "time_created_ns": 1_795_813_306_336_812_003 + number,
            "state": "completed",
            "frames": [{"name": "f", "filename": "/app/train.py", "line": number % 3}],
        }
        | shared
        for number in range(first, first + count)
    ]
    return pickle.dumps({"version": "2.10", "entries": entries, "pg_status": {}}, 2)


def test_real_dumps_one_after_the_other_through_one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = TemplateLibrary()
    for path in DUMPS:
        data = path.read_bytes()
        assert with_library(data, library) == slowly(data, monkeypatch), path


def test_equal_bytes_that_mean_another_name_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name lies in the first entry; the others refer to it by the same memo index."""
    library = TemplateLibrary()
    for name in ("nccl:all_reduce", "nccl:broadcast_", "nccl:all_reduce", "gloo:all_gather"):
        data = ring(40, name)
        got = with_library(data, library)
        assert got == slowly(data, monkeypatch)
        assert {operation.name for operation in got.operations} == {name.partition(":")[2]}


def test_lists_that_entries_of_one_dump_share_are_not_taken_for_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    library = TemplateLibrary()
    for size in (3, 4, 3):
        data = ring(40, input_sizes=[[size]])
        got = with_library(data, library)
        assert got == slowly(data, monkeypatch)
        assert {operation.input_sizes for operation in got.operations} == {((size,),)}


@pytest.mark.parametrize("early", [77, 301, 320])
def test_values_that_a_skipped_entry_memoised_are_found_later(early: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump pickled by Python shares what torch writes anew: here the frames of an early entry come again."""
    said = pickle.loads(ring(400))  # noqa: TID251  ours
    said["entries"][-1]["frames"] = said["entries"][early]["frames"]
    data, library = pickle.dumps(said, 2), TemplateLibrary()
    for _ in range(2):
        assert with_library(data, library) == slowly(data, monkeypatch)


def test_programs_that_part_from_one_another_whole_and_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of different lengths within each other, of which each rank leaves some calls out, in rings that begin
    anywhere: what follows again and again is compared in one go, until it does not follow."""
    compared: list[bool] = []
    adopt = EntryTemplates._adopt_block

    def counted(self: EntryTemplates, block: Any) -> bool:
        compared.append(adopt(self, block))
        return compared[-1]

    monkeypatch.setattr(EntryTemplates, "_adopt_block", counted)
    for seed in range(8):
        drawn, library = random.Random(seed), TemplateLibrary()
        loop = "".join(drawn.choice("abc") * drawn.randint(1, 20) for _ in range(3))
        for _ in range(4):
            calls = [call for call in loop * 20 if drawn.random() > 0.002][drawn.randint(0, 20) :][:300]
            said = pickle.loads(ring(len(calls), first=drawn.choice((0, 100, 65_400))))  # noqa: TID251  ours
            for entry, call in zip(said["entries"], calls, strict=True):
                entry["profiling_name"] = f"nccl:{call}"
            data = pickle.dumps(said, 2)
            for cut in (len(data), drawn.randint(len(data) // 2, len(data))):
                assert with_library(data[:cut], library) == slowly(data[:cut], monkeypatch)
    assert compared.count(True) > 100


@pytest.mark.parametrize("first", [0, 250, 65_500])
def test_numbers_of_every_width_are_read(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    data = ring(100, first=first)
    assert flight_recorder.parse(data, "x") == slowly(data, monkeypatch)


def test_most_entries_of_a_loop_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    add = EntryReader.add

    def counted(self: EntryReader, entry: object, ordinal: int) -> None:
        slow.append(ordinal)
        add(self, entry, ordinal)

    monkeypatch.setattr(EntryReader, "add", counted)
    library = TemplateLibrary()
    with_library(ring(1000), library)
    assert 0 < len(slow) < 30
    slow.clear()
    with_library(ring(1000), library)
    assert len(slow) <= 2, "the second rank's dump is known already"
