"""What a GPU tells of a hang, and what its driver or the kernel says of it: before the structure of waits."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Evidence, NodeEvidence
from stallwatch.model.gpu import GpuEvent
from stallwatch.model.kernel import KernelEvent
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat
from tests.builders.job import SLEEPS, Rank, evidence, loop, world
from tests.builders.node import gpu_of

STEPS = loop(world(4), 6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"unavailable": "GPU is lost"}, "GPU is lost"),
        ({"recovery_action": 2}, "asks for recovery action 2"),
        ({"unavailable": "utilisation is Not Supported"}, ""),
        ({"recovery_action": 0}, ""),
    ],
)
def test_a_gpu_that_its_driver_gives_up_is_a_fault_of_the_rank_that_uses_it(fields: dict[str, Any], said: str) -> None:
    """What a device does not support is no fault of it."""
    gpus = [gpu_of(i, utilization_percent=100.0, power_watts=170.0 + i % 2, compute_pids=(1000 + i,)) for i in range(4)]
    gpus[1] = msgspec.structs.replace(gpus[1], **fields)
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    verdict = judge(evidence(*waiting, nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (("gpu_fault", (1,)) if said else ("comm_stuck", ()))
    assert said in verdict.because[0].fact


@pytest.mark.parametrize(
    ("percents", "culprits"),
    [
        ((18.182, 0.758, 18.182, 18.182), (1,)),  # an endless kernel of one block
        ((18.182, 18.182, 96.6, 18.182), (2,)),  # a matrix product
        ((18.182, 18.182, 18.182, 18.182), None),
        ((18.182, 18.0, 18.3, 18.182), None),
        ((18.182, 0.758, 0.758, 18.182), None),  # no majority
        ((18.182, 0.758, 12.0, 18.182), None),
        ((18.182, None, 18.182, 18.182), None),
        ((18.182, 0.758, None, 18.182), None),
    ],
)
def test_the_gpu_that_occupies_other_multiprocessors_than_those_in_the_collective_runs_something_else(
    percents: tuple[float | None, ...], culprits: tuple[int, ...] | None
) -> None:
    """All ranks have issued it; that of one lies behind a kernel that does not end."""
    gpus = [
        gpu_of(i, utilization_percent=100, power_watts=122.0, multiprocessors_percent=percent)
        for i, percent in enumerate(percents)
    ]
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    verdict = judge(evidence(*waiting, nodes=(node,))).verdicts[0]
    if culprits is None:
        assert (verdict.cause, verdict.culprits) == ("comm_stuck", ())
    else:
        assert (verdict.cause, verdict.culprits, verdict.confidence) == ("gpu_kernel_stuck", culprits, "likely")
        assert "of its multiprocessors, those of the others 18.2" in verdict.because[0].fact


def test_what_a_gpu_occupies_tells_nothing_where_another_program_is_on_it() -> None:
    gpus = [
        gpu_of(i, utilization_percent=100, power_watts=122.0, multiprocessors_percent=0.758 if i == 1 else 18.182)
        for i in range(4)
    ]
    gpus[1] = msgspec.structs.replace(gpus[1], compute_pids=(1001, 77))
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    assert judge(evidence(*waiting, nodes=(node,))).verdicts[0].cause == "comm_stuck"


def _waiting(*ranks: int) -> list[Rank]:
    return [Rank(r, (*STEPS, STEPS[0]), len(STEPS)) for r in ranks]


def _node(powers: tuple[float, ...], events: tuple[KernelEvent, ...] = ()) -> NodeEvidence:
    gpus = tuple(gpu_of(i, utilization_percent=100.0, power_watts=watts) for i, watts in enumerate(powers))
    return NodeEvidence("node0", (0, 1, 2, 3), (gpus,), kernel_events=events)


def test_a_gpu_busy_at_the_power_of_an_idle_one_runs_something_else() -> None:
    spinning = Rank(1, STEPS, frames=SLEEPS, state="R", wchan=None)
    node = _node((171.0, 125.0, 172.0, 170.0))
    verdict = judge(evidence(*_waiting(0, 2, 3), spinning, nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("gpu_kernel_stuck", (1,))


def test_a_collective_behind_a_kernel_that_never_ends_has_not_begun_on_that_gpu() -> None:
    """All have issued it and wait in one line; the GPU of one draws what an idle one does."""
    everybody = _waiting(0, 1, 2, 3)
    verdict = judge(evidence(*everybody, nodes=(_node((171.0, 125.0, 172.0, 170.0)),))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("gpu_kernel_stuck", (1,), "possible")
    verdict = judge(evidence(*everybody, nodes=(_node((171.0, 160.0, 172.0, 170.0)),))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("comm_stuck", ()), "equal GPUs differ by some percent"
    verdict = judge(evidence(*everybody, nodes=(_node((171.0, 125.0, 126.0, 170.0)),))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("comm_stuck", ()), "half of them: which half?"
    shared = tuple(msgspec.structs.replace(gpu, uuid="GPU-0") for gpu in _node((171.0, 125.0, 172.0, 170.0)).gpus[0])
    node = msgspec.structs.replace(_node(()), gpus=(shared,))
    assert judge(evidence(*everybody, nodes=(node,))).verdicts[0].cause == "comm_stuck", "it draws for all of them"


def test_who_notes_starts_tells_whose_gpu_has_not_come_to_the_collective() -> None:
    def seen(*states: str) -> Evidence:
        ranks = []
        for rank, state in zip(_waiting(0, 1, 2, 3), states, strict=True):
            found = rank.evidence()
            dumps = tuple(
                msgspec.structs.replace(
                    dump,
                    operations=tuple(
                        msgspec.structs.replace(
                            made,
                            state=made.state if made.retired else state,
                            started_ns=made.created_ns if made.retired else None,
                        )
                        for made in dump.operations
                    ),
                )
                for dump in found.recorders
            )
            ranks.append(msgspec.structs.replace(found, recorders=dumps))
        return msgspec.structs.replace(evidence(*_waiting(0, 1, 2, 3)), ranks=tuple(ranks))

    verdict = judge(seen("started", "started", "scheduled", "started")).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("gpu_kernel_stuck", (2,))
    for none in (("started",) * 4, ("scheduled",) * 4, ("started", "scheduled", "scheduled", "started")):
        assert judge(seen(*none)).verdicts[0].cause == "comm_stuck"


@pytest.mark.parametrize(
    ("busy_percent", "shared", "ticks", "where"),
    [
        (100.0, False, 1000, "gpu_sync"),
        (100.0, True, 1000, "busy_loop"),
        (0.0, False, 1000, "busy_loop"),
        (None, False, 1000, "busy_loop"),
        (100.0, True, 60, "busy_loop"),  # others want its core, too
        (100.0, True, 0, "gpu_sync"),  # it sleeps until its GPU is done
    ],
)
def test_who_spins_waits_for_its_gpu_only_if_that_works(
    busy_percent: float | None, shared: bool, ticks: int, where: str
) -> None:
    """Rank 1 evaluates on the CPU, in native code, while the others wait; a GPU that it shares is busy with them."""
    spinning = Rank(1, STEPS, frames=SLEEPS, state="R", wchan=None).evidence()
    threads = tuple(msgspec.structs.replace(thread, active=True) for thread in spinning.stacks[0].threads)
    stacks = tuple(msgspec.structs.replace(stack, threads=threads) for stack in spinning.stacks)
    node = _node((171.0,) * 4)
    sample = tuple(
        msgspec.structs.replace(gpu, utilization_percent=busy_percent if 1001 in (gpu.compute_pids or ()) else 100.0)
        for gpu in node.gpus[-1]
    )
    sample = tuple(msgspec.structs.replace(gpu, uuid="GPU-0") for gpu in sample) if shared else sample
    waiting = evidence(*_waiting(0, 2, 3), world_size=4, nodes=(msgspec.structs.replace(node, gpus=(sample,)),))
    processes = tuple(
        msgspec.structs.replace(
            look, threads=tuple(msgspec.structs.replace(t, cpu_ticks=ticks * look.look) for t in look.threads)
        )
        for look in spinning.processes
    )
    ranks = (*waiting.ranks, msgspec.structs.replace(spinning, stacks=stacks, processes=processes))
    verdict = judge(msgspec.structs.replace(waiting, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (1,), where)
    assert (verdict.ends_by_itself, verdict.confidence) == ("compute", "likely"), "it may as well compute"


def test_a_sleeping_host_does_not_wait_for_its_gpu() -> None:
    node = _node((171.0, 125.0, 172.0, 170.0))
    verdict = judge(evidence(*_waiting(0, 2, 3), Rank(1, STEPS, frames=SLEEPS), nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_a_gpu_off_the_bus_is_the_owners_fault_not_the_waiting_ranks() -> None:
    event = KernelEvent(
        "xid", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1003, GPU has fallen off the bus", 1, xid=79, pid=1003
    )
    node = _node((170.0,) * 4, (event,))
    verdict = judge(evidence(*_waiting(0, 1, 2, 3), nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("gpu_fault", (3,))


def test_a_follow_on_xid_is_rejected_with_its_reason() -> None:
    event = KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 45, pid=1003, Ch 0000000a", 1, xid=45, pid=1003)
    verdict = judge(
        evidence(*_waiting(0, 1, 3), Rank(2, STEPS, frames=SLEEPS), nodes=(_node((170.0,) * 4, (event,)),))
    ).verdicts[0]
    assert verdict.cause == "not_entered"
    assert any(item.cause == "gpu_fault" and "45" in item.why for item in verdict.rejected)


def test_an_nvlink_error_is_a_fault_of_the_fabric() -> None:
    event = KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal", 1, xid=149, fatal=True)
    verdict = judge(evidence(*_waiting(0, 1, 2, 3), nodes=(_node((170.0,) * 4, (event,)),))).verdicts[0]
    assert verdict.cause == "fabric_fault"
    assert verdict.culprits == ()


@pytest.mark.parametrize(("severity", "cause"), [("Fatal", "fabric_fault"), ("Non-fatal", "not_entered")])
def test_a_switch_that_fails_is_a_fault_of_the_fabric_and_nobodys(severity: str, cause: str) -> None:
    text = f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, {severity}, Link 32 LTSSM Fault Up"
    event = KernelEvent("sxid", text, 1, xid=20034, fatal=severity == "Fatal", pci_bus_id="0000:c1:00")
    node = _node((170.0,) * 4, (event,))
    verdict = judge(evidence(*_waiting(0, 1, 3), Rank(2, STEPS, frames=SLEEPS), nodes=(node,))).verdicts[0]
    assert verdict.cause == cause
    assert verdict.culprits == (() if cause == "fabric_fault" else (2,))


def test_a_xid_that_only_the_driver_tells_is_as_good_as_one_of_the_kernel() -> None:
    node = _node((170.0,) * 4)
    sample = tuple(
        msgspec.structs.replace(
            gpu, events=(GpuEvent("xid", 0, gpu.uuid, 79),) if 1003 in (gpu.compute_pids or ()) else ()
        )
        for gpu in node.gpus[-1]
    )
    node = msgspec.structs.replace(node, gpus=(*node.gpus[:-1], sample))
    verdict = judge(evidence(*_waiting(0, 1, 2, 3), nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("gpu_fault", (3,))
    assert any("XID 79" in fact.fact and fact.source == "NVML" for fact in verdict.because)


OLD = KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", 1, xid=79, seconds=1000.0)
DRIVER_SAYS = GpuEvent("xid", 1000 * SECOND_NS, "GPU-2", 79)


def _stepped_at(*seconds: float | None, event: KernelEvent | GpuEvent, pulse: float = 1200.0) -> str:
    """The cause of a wait whose processes were not looked at, by when each rank ended its last step."""
    node = _node((170.0,) * 4, (event,) if isinstance(event, KernelEvent) else ())
    if isinstance(event, GpuEvent):
        gpus = tuple(replace(gpu, events=(event,) if gpu.uuid == event.uuid else ()) for gpu in node.gpus[-1])
        node = replace(node, gpus=(gpus,))
    ranks = []
    for rank, at in zip(_waiting(0, 1, 2, 3), seconds, strict=True):
        ended_ns = None if at is None else int(at * SECOND_NS)
        step = None if at is None else 7
        beat = heartbeat(rank.rank, step=step, last_step_ns=ended_ns, pulse_ns=int(pulse * SECOND_NS), pulse_count=9)
        ranks.append(replace(rank.evidence(), processes=(), heartbeat=(beat,)))
    return judge(replace(evidence(world_size=4), ranks=tuple(ranks), nodes=(node,), backend="nccl")).verdicts[0].cause


@pytest.mark.parametrize("event", [OLD, DRIVER_SAYS], ids=["kernel", "driver"])
def test_an_error_after_which_every_rank_went_on_stepping_explains_no_standstill(event: KernelEvent | GpuEvent) -> None:
    assert _stepped_at(1190, 1190, 1190, 1190, event=event) != "gpu_fault"
    assert _stepped_at(1030, 1030, 1030, 1030, event=event) == "gpu_fault", "a host runs ahead of its GPU"
    assert _stepped_at(990, 990, 990, 990, event=event) == "gpu_fault"
    assert _stepped_at(None, None, None, None, event=event) == "gpu_fault", "nobody counts steps"


def test_an_error_whose_gpu_is_not_known_may_be_that_of_whoever_stands_since_then() -> None:
    assert _stepped_at(1190, 1190, 1005, 1190, event=OLD) == "gpu_fault"


def test_an_error_of_hours_ago_is_old_by_the_records_alone() -> None:
    assert _stepped_at(None, None, None, None, event=OLD, pulse=5000.0) != "gpu_fault"
