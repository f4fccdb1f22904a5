"""What is different about a slow rank, in words beside the finding."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stallwatch.detectors.history import NodeHistory, advance
from stallwatch.detectors.why_slow import why_slow
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import RankSample
from tests.builders.running_job import four, job_run
from tests.unit.detectors.test_health import GIB, gpu


def seen(
    edit: Callable[[RankSample], RankSample] = lambda rank: rank, seconds: float = 3, **by_gpu: Any
) -> NodeHistory:
    """Four ranks on four GPUs after some seconds; gpu2={…} changes words of one GPU."""
    history = None
    for shot in job_run(four(), seconds, edit=lambda second, rank: edit(rank)):
        gpus = tuple(gpu(index, **by_gpu.get(f"gpu{index}", {})) for index in range(4))
        history = advance(history, msgspec.structs.replace(shot, gpus=Known(gpus, shot.at_ns)))
    assert history is not None
    return history


def why(history: NodeHistory, rank: int = 2) -> str:
    ((_, ranks),) = history.jobs()
    return why_slow(rank, [one for one in ranks if one.alive], history)


def with_process(rank: RankSample, **fields: Any) -> RankSample:
    assert isinstance(rank.process, Known)
    changed = msgspec.structs.replace(rank.process.value, **fields)
    return msgspec.structs.replace(rank, process=Known(changed, rank.process.at_ns))


def test_where_all_is_alike_nothing_is_said() -> None:
    assert why(seen()) == ""
    assert why(seen(gpu2={"sm_clock_mhz": 900}), rank=9) == "", "a rank that is not there"


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (0, "the driver gives no reason"),
        (None, "the driver gives no reason"),
        (0x4, "power cap"),
        (0x40, "hardware thermal"),
        (0x44, "hardware thermal"),
        (0x48, "hardware slowdown, hardware thermal"),
    ],
)
def test_a_lower_clock_than_its_peers_with_its_reason(reasons: int | None, said: str) -> None:
    lower = {"sm_clock_mhz": 1500, "clock_event_reasons": reasons}
    assert why(seen(gpu2=lower)) == f"; its GPU 2 runs at 1500 MHz, its peers' at 1980 MHz ({said})"


def test_a_clock_near_its_peers_or_unknown_says_nothing() -> None:
    limit = 0.93 * 1980
    assert why(seen(gpu2={"sm_clock_mhz": int(limit) + 1})) == ""
    assert why(seen(gpu2={"sm_clock_mhz": int(limit)})) != ""
    assert why(seen(gpu2={"sm_clock_mhz": None})) == ""
    unknown = {"sm_clock_mhz": None}
    assert why(seen(gpu0=unknown, gpu1=unknown, gpu3=unknown, gpu2={"sm_clock_mhz": 900})) == "", "nothing to compare"
    assert why(seen(gpu2={"sm_clock_mhz": 900, "compute_pids": None})) == "", "whose GPU it is nobody knows"


def test_lanes_of_its_link_and_memory_that_is_full() -> None:
    narrow, wide = ({"pcie_link": (4, lanes), "pcie_link_maximum": (5, 16)} for lanes in (8, 16))
    assert why(seen(gpu2=narrow, gpu3=wide)) == "; the PCIe link of its GPU 2 has 8 of 16 lanes"
    assert why(seen(gpu2=narrow, gpu3=narrow)) == "", "all alike is how the board is made"
    assert why(seen(gpu2={"memory_used_bytes": 79 * GIB})) == "; the memory of its GPU 2 is 99% full"
    assert why(seen(gpu2={"memory_used_bytes": 77 * GIB})) == ""
    assert why(seen(gpu2={"memory_used_bytes": 79 * GIB, "memory_total_bytes": None})) == ""
    both = why(seen(gpu2={**narrow, "memory_used_bytes": 79 * GIB}, gpu3=wide))
    assert both == "; the PCIe link of its GPU 2 has 8 of 16 lanes and the memory of its GPU 2 is 99% full"


def test_a_core_that_it_has_to_wait_for() -> None:
    def waits(rank: RankSample) -> RankSample:
        return with_process(rank, main_thread_state="R") if rank.rank == 2 else rank

    assert why(seen(waits, 40)).startswith("; its main thread waits for a CPU core 7")
    assert why(seen(waits, 40), rank=1) == ""
    assert why(seen(lambda rank: with_process(rank, main_thread_state="R"), 40)) == "", "so do its peers"


def children(*states: str) -> tuple[ChildProcess, ...]:
    return tuple(ChildProcess(pid=5000 + place, state=state) for place, state in enumerate(states))


def test_data_loaders_that_work_where_its_peers_rest() -> None:
    def loads(rank: RankSample) -> RankSample:
        return with_process(rank, children=children("R", "D", "S", "S") if rank.rank == 2 else children("S", "S"))

    said = why(seen(loads))
    assert said == "; its child processes work (50% of them run or wait for storage), its peers' rest (0%)"
    assert why(seen(loads), rank=1) == ""
    alone = seen(lambda rank: with_process(rank, children=children("R")) if rank.rank == 2 else rank)
    assert why(alone) == "", "its peers have none"


def test_a_process_that_cannot_be_read_says_nothing() -> None:
    def unread(rank: RankSample) -> RankSample:
        busy = with_process(rank, children=children("R"))
        return msgspec.structs.replace(busy, process=Unavailable("not ours", 0)) if rank.rank == 2 else busy

    assert why(seen(unread)) == ""
