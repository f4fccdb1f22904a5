from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stallwatch.model.gpu import Gpu
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from tests.unit.detectors.nodes import START, found, four, job_run, process, run

Fields = Callable[[float, int], dict[str, Any]]


def hookless(fields: Fields, seconds: float = 100, late: tuple[float, ...] = ()) -> list[NodeSnapshot]:
    """A job without hooks; `fields` says what /proc shows of a rank at a second."""

    def edit(second: float, rank: RankSample) -> RankSample:
        shown = process(rank.rank, **fields(second, rank.rank))
        return msgspec.structs.replace(rank, heartbeat=Unavailable("no hook", START), process=Known(shown, START))

    shots = job_run(four(), seconds, edit=edit)
    return [msgspec.structs.replace(shot, late_seconds=20.0) if shot.tick in late else shot for shot in shots]


def works_until(last: float) -> Fields:
    return lambda second, rank: {"cpu_ticks": int(100 * min(second, last))}


def test_job_that_worked_and_no_longer_does_is_looked_at_after_a_minute() -> None:
    findings = found(run(hookless(works_until(20))), "quiet")
    assert [(second, finding.stage) for second, finding in findings[:3]] == [
        (80, "suspect"), (81, "suspect"), (82, "confirmed")
    ]  # fmt: skip
    assert findings[0][1].ranks == (0, 1, 2, 3)
    assert "stallwatch.attach()" in findings[0][1].reason


def test_one_rank_that_works_is_a_job_that_works() -> None:
    assert not found(run(hookless(lambda second, rank: {"cpu_ticks": int(100 * second) * (rank == 2)})), "quiet")


def test_polling_is_no_work_and_reading_is() -> None:
    assert found(run(hookless(lambda second, rank: {"cpu_ticks": int(2 * second)})), "quiet")
    assert not found(run(hookless(lambda second, rank: {"read_bytes": int(second * (1 << 20))})), "quiet")


def test_a_child_that_works_is_the_ranks_own_work() -> None:
    def compiles(second: float, rank: int) -> dict[str, Any]:
        return {"children": (ChildProcess(7, "R", "cc1plus", int(100 * second)),)}

    assert not found(run(hookless(compiles)), "quiet")


def test_time_in_which_we_did_not_look_is_not_counted() -> None:
    first = found(run(hookless(works_until(20), late=(40, 60))), "quiet")
    assert not first


def test_job_with_a_hook_is_watched_by_what_that_says() -> None:
    assert not found(run(job_run(four(counts_steps=False), 100)), "quiet")


def test_rank_that_cannot_be_read_is_unknown_and_not_quiet() -> None:
    shots = [
        msgspec.structs.replace(
            shot,
            ranks=tuple(
                msgspec.structs.replace(rank, process=Unavailable("not ours", START)) if rank.rank == 3 else rank
                for rank in shot.ranks
            ),
        )
        for shot in hookless(works_until(20))
    ]
    assert not found(run(shots), "quiet")


def on_gpus(seconds: float, gpu_at: Callable[[float], tuple[int, int, float]]) -> list[NodeSnapshot]:
    """A job without hooks whose threads spin all the time; `gpu_at`: utilisation, memory controller, watts."""
    shots = hookless(lambda second, rank: {"cpu_ticks": int(400 * second)}, seconds)
    return [
        msgspec.structs.replace(shot, gpus=Known(tuple(gpu(rank, *gpu_at(tick)) for rank in range(4)), shot.at_ns))
        for tick, shot in enumerate(shots)
    ]


def gpu(rank: int, used: int, memory: int, watts: float) -> Gpu:
    return Gpu(
        rank, f"GPU-{rank}", utilization_percent=used, memory_utilization_percent=memory, power_watts=watts,
        compute_pids=(1000 + rank,),
    )  # fmt: skip


def test_a_wait_under_nccl_is_seen_by_gpus_that_spin() -> None:
    trains, waits = (90, 30, 400.0), (100, 0, 170.0)
    findings = found(run(on_gpus(120, lambda second: trains if second < 20 else waits)), "quiet")
    assert 80 <= findings[0][0] <= 82
    assert findings[0][1].ranks == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "works",
    [
        lambda second: (95, 20, 300.0),
        lambda second: (95, 0, 300.0 + 40 * (int(second) % 3)),
        lambda second: (5, 0, 90.0),
    ],
    ids=["its memory is used", "its power varies", "it computes on the CPU"],
)
def test_what_works_under_nccl_is_not_looked_at(works: Callable[[float], tuple[int, int, float]]) -> None:
    assert not found(run(on_gpus(150, works)), "quiet")


def test_a_job_that_was_never_seen_to_work_has_not_begun() -> None:
    idle = run(hookless(lambda second, rank: {}, 80))
    assert not idle[-1][1].jobs[0].begun
    assert not idle[-1][1].jobs[0].hooked
    assert run(hookless(works_until(20), 80))[-1][1].jobs[0].begun
