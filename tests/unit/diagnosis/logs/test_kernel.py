"""Kernels' logs, alone and among others."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import NodeEvidence
from stallwatch.model.kernel import KernelEvent
from tests.builders.job import Rank, evidence
from tests.builders.texts import AGENT, RAISED, marked, of_logs, ranked, timed_out, told, verdict

XID = "NVRM: Xid (PCI:0000:61:00): {}, pid={}, name=python3, {}"

FAULTS = ("gpu_fault", "fabric_fault")


@pytest.mark.parametrize("stamp", ["", "[ 512.123456] ", "[Thu Nov 26 03:11:02 2026] ",
                                   "Nov 26 03:11:02 node0 kernel: ",
                                   "2026-11-26T03:11:02.123456+00:00 node0 kernel: "])  # fmt: skip
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (XID.format(79, "'<unknown>'", "GPU has fallen off the bus."), "gpu_fault"),
        (
            XID.format(13, 418822, "Graphics SM Warp Exception on (GPC 3, TPC 2, SM 0): Out Of Range Address"),
            "gpu_fault",
        ),
        (
            XID.format(31, 418822, "Ch 00000010, MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f_0"),
            "gpu_fault",
        ),
        (XID.format(74, 418822, "NVLink: fatal error detected on link 2"), "fabric_fault"),
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:2kB", "rank_exited"),
        ("mlx5_core 0000:12:00.0: mlx5_0: Port: 1 Link DOWN", "fabric_fault"),
        ("mlx5_core 0000:12:00.0 ens1f0np0: Link down", "fabric_fault"),
    ],
)
def test_a_kernel_log_alone_tells_its_fault(stamp: str, line: str, cause: str) -> None:
    assert told(f"{stamp}usb 1-1: new device\n{stamp}{line}\n") == (cause, ())


@pytest.mark.parametrize(("cause", "told_as"), [(149, "fabric_fault"), (79, "gpu_fault")])
def test_what_caused_an_xid_is_told_by_that_one_where_its_own_line_is_lost(cause: int, told_as: str) -> None:
    line = XID.format(45, 4711, f"Ch 00000008 caused by previous Xid {cause}") + "\n"
    assert told(line) == (told_as, ())
    failed = ranked(RAISED.replace("ValueError: shard 17 is empty", "RuntimeError: CUDA error: unknown error"), 2)
    assert told(line, failed + AGENT["2.4"].format(code=1, rank=2, pid=4711)) == (told_as, (2,))


def test_who_ended_another_work_of_its_own_caused_no_fault() -> None:
    assert told(XID.format(45, 4711, "Ch 00000008 caused by previous Xid 43") + "\n")[0] not in FAULTS


@pytest.mark.parametrize("line", [XID.format(43, 1, "Ch 00000008"), XID.format(45, 1, "Ch 00000008"),
                                  "eth0: renamed from veth12",
                                  "docker0: port 1(veth1) entered disabled state"])  # fmt: skip
def test_what_follows_or_is_ordinary_accuses_no_gpu_and_no_port(line: str) -> None:
    found = judge(of_logs(f"[512.1] {line}\n")).verdicts[0]
    assert found.cause == "undecided"


def test_a_kernel_log_that_holds_what_training_logs_quote_is_read_as_both() -> None:
    log = "Nov 28 10:00:00 node0 kernel: " + XID.format(79, 1, "GPU has fallen off the bus.") + "\n"
    log += marked(ranked(timed_out("2.6", 0, 9).removeprefix("[rank0]:"), 0), "Nov 28 10:10:00 node0 python3[70]: ")
    assert verdict(log).cause == "gpu_fault"


@pytest.mark.parametrize(
    ("killed", "pids_known", "cause"),
    [
        (30444, True, "undecided"),  # hours ago, of somebody else: what is looked at next says what happened here
        (1001, True, "rank_exited"),
        (30444, False, "rank_exited"),  # logs that somebody gathered
    ],
)
def test_a_kill_of_a_process_that_is_no_rank_s_did_not_end_the_job_that_could_not_be_looked_at(
    killed: int, pids_known: bool, cause: str
) -> None:
    line = f"Memory cgroup out of memory: Killed process {killed} (python) total-vm:368248kB, anon-rss:48768kB"
    event = KernelEvent("oom_kill", line, line=3, seconds=11005.9, pid=killed, process="python", constraint="memcg")
    unseen = [replace(Rank(rank, dumped=False).evidence(), processes=()) for rank in (0, 1)]
    ranks = tuple(rank if pids_known else replace(rank, pid=None) for rank in unseen)
    node = NodeEvidence("node0", (0, 1), kernel_log=(line,), kernel_events=(event,))
    verdict = judge(replace(evidence(world_size=2), ranks=ranks, nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, ())


@pytest.mark.parametrize(
    ("line", "cause", "step"),
    [
        ("nfs: server 10.1.1.5 not responding, still trying", "undecided", "<mount>"),
        ("Lustre: scratch-OST0012-osc-ffff: Connection to scratch-OST0012 (at 10.1.1.7@o2ib) was lost; in progress "
         "operations using this service will wait for recovery to complete", "undecided", "<mount>"),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "undecided", "<mount>"),
        ("I/O error, dev sda, sector 1234 op 0x0:(READ) flags 0x0", "undecided", "<mount>"),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:1234]", "undecided", "/proc/<pid>/stack"),
        ("amdgpu 0000:83:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=123", "gpu_fault", "amdgpu"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=50", "gpu_fault", "amdgpu"),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!", "gpu_fault", "amdgpu"),
    ],
)  # fmt: skip
def test_what_does_not_answer_its_kernel_is_told_with_what_to_do(line: str, cause: str, step: str) -> None:
    found = verdict(f"[512.1] usb 1-1: new device\n[612.1] {line}\n")
    assert (found.cause, found.culprits) == (cause, ())
    assert line in found.because[0].fact
    assert step in found.next_steps[0]
