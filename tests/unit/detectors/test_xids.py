import msgspec

from stallwatch.detectors.xids import XidState, count, totals
from stallwatch.model.gpu import Gpu, GpuEvent
from stallwatch.model.incident import XidCount
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import HostSample
from tests.builders.running_job import four, job_run

GPU = Gpu(index=0, uuid="GPU-0", name="H100", serial="165", pci_bus_id="00000000:18:00.0")
EMPTY = job_run(four(), 1)[0]


def counted(
    state: XidState, *events: GpuEvent, notices: tuple[KernelEvent, ...] = ()
) -> tuple[XidState, tuple[XidCount, ...]]:
    host = Known(HostSample(notices, None, None, None, None), 0)
    gpus = Known((msgspec.structs.replace(GPU, events=events),), 0)
    after = count(state, msgspec.structs.replace(EMPTY, gpus=gpus, host=host))
    return after, totals(after)


def test_an_xid_is_counted_once_by_code_whoever_tells_of_it_and_stays_counted() -> None:
    first, again = GpuEvent("xid", 10, "GPU-0", 79), GpuEvent("xid", 20, "GPU-0", 79)
    notice = KernelEvent("xid", "NVRM: Xid 79", at_ns=11, xid=79, pci_bus_id="0000:18:00")
    once, twice = XidCount("0", "GPU-0", 79, 1), XidCount("0", "GPU-0", 79, 2)
    state, seen = counted(XidState(), first, notices=(notice,))
    assert seen == (once,)
    state, seen = counted(state, first, notices=(notice,))
    assert seen == (once,)
    state, seen = counted(state, first, again)
    assert seen == (twice,)
    state, seen = counted(state)
    assert seen == (twice,)
    gone = KernelEvent("xid", "NVRM: Xid 79", at_ns=30, xid=79, pci_bus_id="0000:3b:00")
    assert XidCount("", "pci:0000:3b:00", 79, 1) in counted(state, notices=(gone,))[1]


def test_what_cannot_be_read_for_a_moment_adds_nothing_and_takes_nothing_away() -> None:
    event, notice = GpuEvent("xid", 10, "GPU-0", 79), KernelEvent("xid", "NVRM: Xid 48", at_ns=11, xid=48)
    state, seen = counted(XidState(), event, notices=(notice,))
    assert seen == (XidCount("", "pci:", 48, 1), XidCount("0", "GPU-0", 79, 1))
    nothing = Unavailable("no answer", 0)
    unread = count(state, msgspec.structs.replace(EMPTY, gpus=nothing, host=nothing))
    assert totals(unread) == seen
    assert counted(unread, event, notices=(notice,))[1] == seen, "what it told before is no news"


def test_events_and_kernel_lines_that_are_no_xids_are_not_counted() -> None:
    notice = KernelEvent("oom_kill", "Out of memory: Killed process 7", at_ns=11)
    assert counted(XidState(), GpuEvent("ecc", 10, "GPU-0", None), notices=(notice,))[1] == ()
