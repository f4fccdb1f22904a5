"""A summary by kinds must say what the reduction of every entry says."""

import pickle
import random
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stallwatch.bundle import rank_summary
from stallwatch.bundle.rank_summary import shorten, summarise
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.formats.flight_recorder import parse_table
from stallwatch.formats.recorder_table import RecorderTable, expand
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import NO_CALL, RankSummary

BUNDLES = Path(__file__).parents[2] / "bundles"
DUMPS = sorted(BUNDLES.glob("*/ranks/*/flight_recorder*.pickle"))


def in_full(tables: list[RecorderTable]) -> RankSummary:
    recorders = tuple(expand(table) for table in tables)
    return reduce_rank(RankEvidence(rank=0, host=None, pid=None, recorders=recorders))


def meaning(summary: RankSummary) -> Any:
    """A summary without the numbers that it gives to calls, and without the period, which few entries tell too."""

    def calls(packed: bytes) -> list[Any]:
        known = (None if number == NO_CALL else summary.calls[number] for number in array("H", packed))
        return [
            call and (summary.streams[call.stream].description, call.operation, call.elements, call.dtype, call.site)
            for call in known
        ]

    streams = {
        (s.description, s.name): (s.backend, s.ranks, s.first_seq, calls(s.calls), s.completed, s.size_hint)
        for s in summary.streams
    }
    pending = [(p.record, p.lane, p.seq, p.transfers, p.created_ns, p.timed_out) for p in summary.pending]
    pairs = [(p.source, p.destination, p.done, p.pending, p.whole) for p in summary.pairs]
    return streams, pending, pairs, [calls(lane) for lane in summary.program], summary.whole, summary.backends


@pytest.mark.parametrize("kept", [4, 128])
def test_real_dumps(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(rank_summary, "_KEPT_ENTRIES", kept)
    monkeypatch.setattr(rank_summary, "_KEPT_ENTRIES_PER_GROUP", kept)
    by_kinds = 0
    for path in DUMPS:
        table = parse_table(path.read_bytes(), path.name)
        by_kinds += rank_summary._History(table).length > 0
        assert meaning(summarise(0, [table])) == meaning(in_full([table])), path
    assert (by_kinds > 0) == (kept == 4), "the short way was taken where it could be"


def drawn_ring(drawn: random.Random) -> bytes:
    """Calls of one or two groups whose numbers count up, but leave some out or come twice now and then."""
    groups, seqs, entries = drawn.choice(("0", "01")), Counter[str](), list[dict[str, Any]]()
    created = 1_795_813_306_336_812_003
    for number in range(drawn.randint(1, 120)):
        group = drawn.choice(groups)
        seqs[group] += drawn.choice((0, 2)) if drawn.random() < 0.02 else 1
        created += drawn.randint(1, 2)
        entries.append(
            {
                "record_id": number,
                "pg_id": int(group),
                "process_group": (group, f"group {group}"),
                "collective_seq_id": seqs[group],
                "op_id": number + 1,
                "profiling_name": drawn.choice(("nccl:all_reduce", "nccl:_all_gather_base")),
                "time_created_ns": created,
                "state": "completed" if number < 90 else drawn.choice(("completed", "scheduled")),
                "frames": [{"name": "f", "filename": "/app/train.py", "line": number % 3}],
            }
        )
    return pickle.dumps({"version": "2.10", "entries": entries, "pg_status": {}}, 2)


def test_numbers_that_count_up_leave_some_out_or_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_summary, "_KEPT_ENTRIES", 4)
    monkeypatch.setattr(rank_summary, "_KEPT_ENTRIES_PER_GROUP", 4)
    lengths = []
    for seed in range(60):
        table = parse_table(drawn_ring(random.Random(seed)), "x")
        lengths.append(rank_summary._History(table).length)
        assert meaning(summarise(0, [table])) == meaning(in_full([table])), seed
    assert sum(length > 0 for length in lengths) > 30


def test_two_recorders_are_reduced_together() -> None:
    folder = BUNDLES / "gloo-two_backends" / "ranks" / "0"
    tables = [parse_table(path.read_bytes(), path.name) for path in sorted(folder.glob("flight_recorder*"))]
    assert summarise(0, tables) == in_full(tables)


def test_shortened_table_holds_the_newest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_summary, "_KEPT_ENTRIES", 16)
    table = parse_table((BUNDLES / "nccl-tp_dp" / "ranks" / "0" / "flight_recorder.nccl.pickle").read_bytes(), "x")
    whole, short = expand(table), expand(shorten(table))
    assert len(whole.operations) > len(short.operations) == 16
    assert short.operations == whole.operations[-16:]
    assert short.status == whole.status
