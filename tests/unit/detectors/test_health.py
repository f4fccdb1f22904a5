from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import msgspec

from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import DiskSample, HostSample, JobKey, NetworkPort, NodeSnapshot, RankSample
from tests.builders.node import GpuFields, gpu_of, with_beat
from tests.builders.running_job import found, four, job_run, run

GIB = 1 << 30


def gpu(index: int, **fields: Unpack[GpuFields]) -> Gpu:
    """A healthy one, at work."""
    values: GpuFields = {
        "sm_clock_mhz": 1980,
        "memory_used_bytes": 60 * GIB,
        "memory_total_bytes": 80 * GIB,
        "clock_event_reasons": 0,
    }
    values.update(fields)
    return gpu_of(index, **values)


def host(**fields: Any) -> HostSample:
    values: dict[str, Any] = {
        "notices": (),
        "shared_memory_bytes": (GIB, 64 * GIB),
        "open_files": (1000, 100_000),
        "memory_available_bytes": 500 * GIB,
        "ports": (),
    }
    return HostSample(**(values | fields))


def node(seconds: float = 90, host_sample: HostSample | None = None, **by_gpu: Gpu) -> list[NodeSnapshot]:
    """A job of four ranks on four GPUs; gpu0=… replaces one of them from second 10 on."""
    shots = []
    for shot in job_run(four(), seconds):
        changed = shot.tick >= 10
        gpus = tuple(by_gpu.get(f"gpu{i}", gpu(i)) if changed else gpu(i) for i in range(4))
        there = Known(host_sample if host_sample and changed else host(), shot.at_ns)
        shots.append(msgspec.structs.replace(shot, gpus=Known(gpus, shot.at_ns), host=there))
    return shots


def told(shots: list[NodeSnapshot]) -> dict[str, tuple[int, ...]]:
    return {finding.reason: finding.ranks for _, finding in found(run(shots), "health", "confirmed")}


def test_a_healthy_node_has_no_finding() -> None:
    assert not found(run(node()), "health")


def test_a_slowdown_that_lasts_is_told_with_its_reason_and_its_rank() -> None:
    hot = gpu(2, clock_event_reasons=0x40, temperature_celsius=93, sm_clock_mhz=900)
    assert told(node(gpu2=hot)) == {"GPU 2 is slowed down: hardware thermal at 93 °C, 900 MHz": (2,)}


def test_a_slowdown_that_passes_and_a_power_cap_are_not_told() -> None:
    assert not told(node(40, gpu2=gpu(2, clock_event_reasons=0x40)))
    assert not told(node(gpu2=gpu(2, clock_event_reasons=0x4)))


def test_unknown_is_not_a_fault() -> None:
    nothing = Gpu(index=1, uuid="GPU-1", compute_pids=None)
    assert not told(node(gpu1=nothing))


def test_memory_of_one_rank_far_from_its_peers_near_its_end() -> None:
    reasons = told(node(gpu3=gpu(3, memory_used_bytes=79 * GIB)))
    assert list(reasons.values()) == [(3,)]
    assert "out of memory is near" in next(iter(reasons))


def test_memory_that_is_full_everywhere_is_a_habit_of_allocators() -> None:
    zero, one, two, three = (gpu(i, memory_used_bytes=79 * GIB) for i in range(4))
    assert not told(node(gpu0=zero, gpu1=one, gpu2=two, gpu3=three))


def test_error_counters_that_rise_are_told_and_those_that_stand_are_not() -> None:
    def shots(step: int) -> list[NodeSnapshot]:
        made = []
        for shot in node():
            gpus = tuple(gpu(i, slow_at_ns=shot.tick // 10 + 1, nvlink_errors=(("crc", 0),)) for i in range(3))
            count = 500 + step * (shot.tick // 10)
            rising = gpu(3, slow_at_ns=shot.tick // 10 + 1, nvlink_errors=(("crc", count),))
            made.append(msgspec.structs.replace(shot, gpus=Known((*gpus, rising), shot.at_ns)))
        return made

    assert told(shots(1000)) == {"GPU 3: NVLink errors are rising": (3,)}
    assert not told(shots(0))
    assert not told(shots(5))


def test_memory_rows_and_lanes_of_a_gpu_are_told_of_its_rank() -> None:
    assert told(node(gpu1=gpu(1, remap_pending=True))) == {
        "GPU 1 has a row remapping pending: reset it between jobs": (1,)
    }
    failed = gpu(1, remap_pending=True, remap_failed=True)
    assert told(node(gpu1=failed)) == {"GPU 1 could not remap a bad memory row: replace it": (1,)}
    narrow, wide = (partial(gpu, pcie_link=(4, lanes), pcie_link_maximum=(5, 16)) for lanes in (8, 16))
    assert told(node(gpu0=wide(0), gpu1=narrow(1))) == {"GPU 1 has 8 of 16 PCIe lanes": (1,)}
    every = node(gpu0=narrow(0), gpu1=narrow(1), gpu2=narrow(2), gpu3=narrow(3))
    assert not told(every), "all alike is how the board is made"


def test_a_gpu_that_no_rank_holds_concerns_nobody() -> None:
    assert not told(node(gpu1=gpu(1, remap_failed=True, compute_pids=(99,))))
    assert not told(node(gpu1=gpu(1, remap_failed=True, compute_pids=None)))


def test_what_concerns_one_job_is_not_told_of_the_other() -> None:
    other = JobKey("other", "127.0.0.1:29501/4/0")

    def two_jobs(second: float, rank: RankSample) -> RankSample:
        unlike = with_beat(rank, differs=(("NCCL_ALGO", "Ring" if rank.rank == 1 else "not set"),))
        return msgspec.structs.replace(unlike, job=other) if rank.rank > 1 else unlike

    findings = [finding for _, finding in found(run(job_run(four(), 70, edit=two_jobs)), "health", "confirmed")]
    assert {(finding.job.training_job, finding.ranks) for finding in findings} == {("train", (1,))}


def test_what_concerns_the_node_concerns_every_rank() -> None:
    everyone = (0, 1, 2, 3)
    full = told(node(host_sample=host(shared_memory_bytes=(63 * GIB, 64 * GIB))))
    assert list(full.values()) == [everyone]
    assert "/dev/shm" in next(iter(full))
    assert list(told(node(host_sample=host(open_files=(99_000, 100_000)))).values()) == [everyone]
    assert list(told(node(host_sample=host(memory_available_bytes=100 << 20))).values()) == [everyone]


def test_a_port_that_was_up_and_is_down_is_told_one_that_never_was_is_not() -> None:
    def port(device: str, state: str) -> NetworkPort:
        return NetworkPort(device, 1, "infiniband", state, ())

    shots = []
    for shot in node():
        ports = (port("mlx5_0", "active" if shot.tick < 10 else "down"), port("mlx5_9", "down"))
        shots.append(msgspec.structs.replace(shot, host=Known(host(ports=ports), shot.at_ns)))
    assert list(told(shots)) == ["network port mlx5_0/1 is down; it was up before"]


def test_a_rank_with_another_environment_is_named_with_both_values() -> None:
    def unlike(second: float, rank: RankSample) -> RankSample:
        return with_beat(rank, differs=(("NCCL_ALGO", "Ring" if rank.rank == 2 else "not set"),))

    findings = [finding for _, finding in found(run(job_run(four(), 70, edit=unlike)), "health", "confirmed")]
    assert {finding.ranks for finding in findings} == {(2,)}
    assert findings[0].reason == "ranks differ: NCCL_ALGO is Ring on rank 2, not set on rank 0, 1, 3"


def told_of_ranks(edit: Callable[[RankSample], RankSample]) -> dict[str, tuple[int, ...]]:
    shots = job_run(four(), 70, edit=lambda second, rank: edit(rank))
    return {finding.reason: finding.ranks for _, finding in found(run(shots), "health", "confirmed")}


def with_files(rank: RankSample, count: int) -> RankSample:
    process = msgspec.structs.replace(rank.process.value, open_files=(count, 1024))  # type: ignore[union-attr]
    return msgspec.structs.replace(rank, process=Known(process, 0))


def test_a_rank_that_runs_out_of_file_handles_is_named_and_one_that_has_some_left_is_not() -> None:
    told = told_of_ranks(lambda rank: with_files(rank, 1000 if rank.rank == 2 else 900))
    assert told == {"rank 2 has 1000 of 1024 file handles open (ulimit -n)": (2,)}


def disk(free_bytes: int, size_bytes: int, largest_file_bytes: int = 0) -> Callable[[RankSample], RankSample]:
    there = DiskSample("/ckpt/run7", free_bytes, size_bytes, largest_file_bytes, 0)
    return lambda rank: msgspec.structs.replace(rank, disks=(there,) if rank.rank == 0 else ())


def test_a_disk_that_is_nearly_gone_is_told_once_with_who_writes_there() -> None:
    told = told_of_ranks(disk(GIB, 1000 * GIB))
    assert told == {"the disk of /ckpt/run7 has 1.0 GiB (0.1%) left, and rank 0 writes there": (0,)}


def test_a_disk_on_which_the_last_checkpoint_would_not_fit_again_is_told() -> None:
    (reason,) = told_of_ranks(disk(100 * GIB, 1000 * GIB, largest_file_bytes=140 * GIB))
    assert reason.endswith("a file of 140.0 GiB, as before, does not fit any more")


def test_a_disk_with_room_is_not_told_nor_are_two_per_cent_of_a_large_one() -> None:
    assert not told_of_ranks(disk(100 * GIB, 1000 * GIB, largest_file_bytes=10 * GIB))
    assert not told_of_ranks(disk(1000 * GIB, 100_000 * GIB))
    assert not told_of_ranks(lambda rank: rank)
