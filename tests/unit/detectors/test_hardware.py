from typing import Any, Unpack

import msgspec
import pytest

from stallwatch.model.gpu import Gpu, GpuEvent
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import HostSample, NodeSnapshot
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import JOB, START_NS
from tests.builders.node import GpuFields, gpu_of, with_beat
from tests.builders.running_job import found, four, job_run, run

ADDRESS = "00000000:3B:00.0"
FAULT_NS = START_NS + 20 * SECOND_NS


def gpu(**fields: Unpack[GpuFields]) -> Gpu:
    return msgspec.structs.replace(gpu_of(1, uuid="GPU-b", pci_bus_id=ADDRESS), **fields)


def node(
    *, faulty: Gpu | None = None, notices: tuple[KernelEvent, ...] = (), begins: float = 17.0
) -> list[NodeSnapshot]:
    """Four ranks; rank 1 (pid 1001) uses GPU 1, of which there is news from second 20 on."""
    shots = []
    for shot in job_run(four(), begins + 6, first_second=begins):
        late = shot.at_ns >= FAULT_NS
        host = HostSample(notices if late else (), None, None, None, None)
        shots.append(
            msgspec.structs.replace(
                shot,
                gpus=Known((faulty if faulty is not None and late else gpu(),), shot.at_ns),
                host=Known(host, shot.at_ns),
            )
        )
    return shots


def told(xid: int | None = 79, kind: str = "xid") -> Gpu:
    return gpu(events=(GpuEvent(kind, FAULT_NS, "GPU-b", xid),))


def notice(xid: int | None = 79, kind: str = "xid", **fields: Any) -> KernelEvent:
    values = {"pci_bus_id": "0000:3b:00"} | fields
    return KernelEvent(kind, "NVRM: …", at_ns=FAULT_NS, xid=xid, **values)


def test_xid_that_stops_work_is_found_at_once_with_the_rank_on_that_gpu() -> None:
    second, finding = found(run(node(faulty=told())), "hardware")[0]
    assert (second, finding.stage, finding.job, finding.ranks) == (20, "confirmed", JOB, (1,))
    assert finding.reason == "GPU 1 reported XID 79"
    assert (finding.since_ns, finding.limit_seconds, finding.resolvable) == (FAULT_NS, 0.0, False)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 92, 94])
def test_xid_of_the_jobs_own_bug_or_a_follow_on_is_none(xid: int) -> None:
    assert not found(run(node(faulty=told(xid), notices=(notice(xid),))), "hardware")


@pytest.mark.parametrize("kind", ["double_bit_ecc", "fatal_poison", "gpu_unavailable"])
def test_what_the_driver_reports_without_a_xid_is_found(kind: str) -> None:
    assert found(run(node(faulty=told(None, kind))), "hardware", "confirmed")


def test_gpu_that_is_lost_is_believed_at_the_second_look_and_its_rank_is_remembered() -> None:
    lost = gpu(compute_pids=None, unavailable="NVML: GPU is lost", unavailable_kind="lost")
    findings = found(run(node(faulty=lost)), "hardware")
    assert [(second, finding.stage, finding.ranks) for second, finding in findings[:2]] == [
        (20, "suspect", (1,)),
        (21, "confirmed", (1,)),
    ]


@pytest.mark.parametrize("kind", ["no_answer", "timeout", "unknown_error"])
def test_silence_that_may_pass_is_no_fault(kind: str) -> None:
    silent = gpu(compute_pids=None, unavailable="NVML: …", unavailable_kind=kind)
    assert not found(run(node(faulty=silent)), "hardware")


def test_kernel_names_the_gpu_by_its_place_and_that_names_the_rank() -> None:
    (_, finding), *_ = found(run(node(notices=(notice(pid=None),))), "hardware")
    assert (finding.ranks, finding.reason) == ((1,), "GPU 1 reported XID 79")


def test_kernel_names_the_process_where_no_gpu_is_read() -> None:
    shots = [
        msgspec.structs.replace(shot, gpus=Known((), shot.at_ns))
        for shot in node(notices=(notice(119, pid=1002, pci_bus_id="0000:5d:00"),))
    ]
    (_, finding), *_ = found(run(shots), "hardware")
    assert (finding.ranks, finding.reason) == ((2,), "GPU 0000:5d:00 reported XID 119")


def test_gpu_off_the_bus_without_a_xid_is_found() -> None:
    (_, finding), *_ = found(run(node(notices=(notice(None, "off_bus"),))), "hardware")
    assert finding.reason == "GPU 1 has fallen off the bus"


def test_link_event_that_the_driver_calls_nonfatal_is_none() -> None:
    assert not found(run(node(notices=(notice(149, fatal=False),))), "hardware")
    assert found(run(node(notices=(notice(149, fatal=True),))), "hardware")


def test_switch_that_fails_concerns_every_rank_with_a_gpu() -> None:
    assert found(run(node(notices=(notice(20034, "sxid", pid=None, pci_bus_id="0000:c1:00", fatal=True),))), "hardware")
    assert not found(run(node(notices=(notice(12028, "sxid", pid=None, fatal=False),))), "hardware")


def test_fault_before_a_rank_came_is_not_its_own() -> None:
    assert not found(run(node(faulty=told(), begins=25.0)), "hardware")


def test_fault_of_a_gpu_that_no_rank_uses_is_nobodys() -> None:
    assert not found(run(node(notices=(notice(pid=4, pci_bus_id="0000:99:00"),))), "hardware")


def test_a_kernel_line_without_a_time_is_of_the_tick_that_reads_it() -> None:
    undated = msgspec.structs.replace(notice(), at_ns=None)
    second, finding = found(run(node(notices=(undated,))), "hardware")[0]
    assert (second, finding.since_ns, finding.ranks) == (20, FAULT_NS, (1,))


@pytest.mark.parametrize(
    ("attached_ns", "its_own"), [(FAULT_NS - 1, True), (FAULT_NS, True), (FAULT_NS + 1, False), (0, False)]
)
def test_a_fault_is_of_the_ranks_that_had_attached_though_they_are_seen_later(attached_ns: int, its_own: bool) -> None:
    """0: its record does not say when; then it is there since it was seen."""
    shots = [
        msgspec.structs.replace(shot, ranks=tuple(with_beat(rank, attached_ns=attached_ns) for rank in shot.ranks))
        for shot in node(faulty=told(), begins=25.0)
    ]
    assert bool(found(run(shots), "hardware")) is its_own


def test_of_a_gpu_that_nobody_has_used_a_fault_is_nobodys() -> None:
    shots = [
        msgspec.structs.replace(shot, gpus=Known((msgspec.structs.replace(told(), compute_pids=()),), shot.at_ns))
        for shot in node()
    ]
    assert not found(run(shots), "hardware")
