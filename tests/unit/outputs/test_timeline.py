from pathlib import Path

import msgspec
import pytest

from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import GroupCounter, ProcessEnd, RankSample
from stallwatch.outputs import timeline
from stallwatch.outputs.timeline import drawn, read_timeline
from tests.builders.clock import WALL_NS
from tests.unit.outputs.reports import GPU, JOB, beat, node_report, sample, with_snapshot

SECOND_NS = 1_000_000_000


def rank(step: int, pulse: int, *, pending: bool = False, phase: str = "") -> RankSample:
    groups = (GroupCounter("nccl", 0, step, step - pending),)
    stepped = msgspec.structs.replace(beat(0, groups, pulse=pulse), step=step, phase=phase)
    return msgspec.structs.replace(sample(0), heartbeat=Known(stepped, 0))


def lines(*ranks: RankSample) -> list[bytes]:
    return [
        msgspec.json.encode(
            with_snapshot(
                node_report(), ranks=(one,), wall_ns=WALL_NS + look * SECOND_NS, gpus=Known((GPU,), 0)
            ).snapshot
        )
        for look, one in enumerate(ranks)
    ]


def looks(*ranks: RankSample) -> str:
    (band,) = drawn("llama-7b-1", JOB, lines(*ranks)).ranks
    return band.looks


def test_a_rank_steps_waits_is_in_a_phase_or_does_neither() -> None:
    assert looks(rank(1, 1), rank(2, 2), rank(2, 3, pending=True), rank(2, 4, phase="eval"), rank(2, 5)) == "sswpn"


def test_before_its_first_step_a_rank_has_not_begun() -> None:
    assert looks(rank(0, 1), rank(0, 2), rank(1, 3), rank(1, 4)) == "bbsn"


def test_a_rank_that_steps_when_it_is_first_seen_has_not_stood_there() -> None:
    unseen = msgspec.structs.replace(rank(0, 0), heartbeat=Unavailable("no process yet", 0))
    assert looks(unseen, rank(3, 1), rank(9, 2), rank(9, 3)) == "?ssn"
    assert looks(unseen, rank(3, 1), rank(3, 2)) == "?nn"


def test_a_pulse_that_stands_for_some_seconds_is_seen_and_one_late_pulse_is_not() -> None:
    assert looks(rank(1, 1), rank(2, 2), rank(2, 2), rank(2, 3)) == "ssnn"
    assert looks(rank(1, 1), rank(2, 2), *[rank(2, 2)] * 5) == "ssnnnhh"


def test_an_end_and_what_is_not_known_are_their_own_letters() -> None:
    gone = msgspec.structs.replace(rank(1, 2), end=ProcessEnd(0, None, 9, "zombie"))
    unknown = msgspec.structs.replace(rank(1, 3), heartbeat=Unavailable("no hook", 0))
    assert looks(rank(2, 1), unknown, gone) == "n?x"


def test_gpus_are_curves_and_unknown_is_no_zero() -> None:
    known = lines(rank(1, 1))[0]
    blind = msgspec.json.encode(with_snapshot(node_report(), gpus=Unavailable("NVML hangs", 0)).snapshot)
    (gpu,) = drawn("llama-7b-1", JOB, [known, blind]).gpus
    assert (gpu.uuid, gpu.busy, gpu.power_watts) == ("GPU-0", (1.0, None), (118.5, None))


def test_a_line_cut_by_a_full_disk_is_left_out() -> None:
    first, second = lines(rank(1, 1), rank(2, 2))
    assert len(drawn("llama-7b-1", JOB, [first, second[: len(second) // 2]]).at) == 1


def test_no_timeline_is_an_empty_one_and_of_a_huge_one_the_end_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_timeline("llama-7b-1", JOB, str(tmp_path)).at == ()
    assert read_timeline("llama-7b-1", JOB, "").at == ()
    written = lines(rank(1, 1), rank(2, 2), rank(2, 3))
    (tmp_path / "timeline.jsonl").write_bytes(b"\n".join(written))
    assert len(read_timeline("llama-7b-1", JOB, str(tmp_path)).at) == 3
    monkeypatch.setattr(timeline, "_LARGEST_BYTES", len(written[1]) + len(written[2]) + 10)
    assert len(read_timeline("llama-7b-1", JOB, str(tmp_path)).at) == 2
