import pytest

from stallwatch.formats.kernel_log import parse
from stallwatch.model.kernel import KernelEvent


def only(text: str) -> KernelEvent:
    (event,) = parse(text.encode()).events
    return event


@pytest.mark.parametrize("before", ["", "[ 1234.567890] ", "Nov 27 21:01:55 node0 kernel: ", "4,1234,99000000,-;"])
def test_xid_with_process(before: str) -> None:
    event = only(f"{before}NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 0000000a")
    assert (event.kind, event.xid, event.pci_bus_id) == ("xid", 45, "0000:61:00")
    assert (event.pid, event.process, event.caused_by_xid) == (1496200, "python3", None)


def test_xid_of_an_unknown_process_has_none() -> None:
    event = only("NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert (event.xid, event.pid, event.process, event.pci_bus_id) == (79, None, None, "0000:3b:00")


def test_xid_without_pid() -> None:
    assert only("NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus").xid == 79


def test_nvlink_event_says_whether_it_is_an_outage() -> None:
    told = parse(
        b"NVRM: Xid (PCI:0000:61:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x1 0x2 0x3 0x4 0x5 0x6)\n"
        b"NVRM: Xid (PCI:0000:61:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x1 0x2 0x3 0x4 0x5 0x6)\n"
        b"NVRM: Xid (PCI:0000:61:00): 45, pid=1, name=p, Ch 0000000a, caused by previous Xid 149\n"
    ).events
    assert [event.fatal for event in told] == [True, False, None]
    assert told[2].caused_by_xid == 149


def test_gpu_off_the_bus_without_a_xid_is_three_lines() -> None:
    event = only(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert (event.kind, event.pci_bus_id) == ("off_bus", "0000:b3:00")


def test_one_out_of_memory_kill_is_one_event() -> None:
    event = only(
        "[10.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,2-3,oom_memcg=/x,"
        "task_memcg=/x,task=python train,pid=4711,uid=1000\n"
        "[10.6] Memory cgroup out of memory: Killed process 4711 (python train) total-vm:1kB, anon-rss:2kB, UID:1000\n"
    )
    assert (event.kind, event.pid, event.process, event.constraint) == ("oom_kill", 4711, "python train", "memcg")
    assert event.seconds == 10.5


def test_out_of_memory_kill_of_the_whole_node() -> None:
    event = only("Out of memory: Killed process 12 (python3) total-vm:1kB, anon-rss:2kB")
    assert (event.kind, event.constraint, event.pid) == ("oom_kill", "none", 12)


def test_hung_task_and_pcie_error() -> None:
    event = only("INFO: task nvidia-smi:991 blocked for more than 120 seconds.")
    assert (event.kind, event.process, event.pid) == ("hung_task", "nvidia-smi", 991)
    event = only("pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)")
    assert (event.kind, event.corrected, event.pci_bus_id) == ("pcie_error", True, "0000:00:03")


def test_other_lines_are_kept_and_mean_nothing() -> None:
    log = parse(b"usb 1-1: new high-speed USB device\n")
    assert log.events == ()
    assert log.lines == ("usb 1-1: new high-speed USB device",)


def test_nvswitch_says_whether_it_is_an_outage() -> None:
    text = (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up\n"
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 46 egress non-posted PRIV error (First)\n"
    )
    events = parse(text.encode()).events
    assert [(event.kind, event.xid, event.fatal) for event in events] == [("sxid", 20034, True), ("sxid", 12028, False)]
    assert events[0].pci_bus_id == "0000:c1:00"


def test_task_that_waits_for_a_disk_is_hung_too() -> None:
    (event,) = parse(b"INFO: task python:1234 blocked in I/O wait for more than 122 seconds.").events
    assert (event.kind, event.pid, event.process) == ("hung_task", 1234, "python")


FORGED = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=42, name=python",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32",
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus",
    "oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=42,uid=1000",
    "Out of memory: Killed process 42 (python), UID:1000",
    "INFO: task python:42 blocked for more than 120 seconds",
    "nvme 0000:01:00.0: PCIe Bus Error: severity=Fatal, type=x",
    "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [python:42]",
    "amdgpu 0000:83:00.0: amdgpu: GPU reset begin!",
    "nfs: server x not responding, still trying",
)


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize(
    "line",
    [
        "sh[8437]: segfault at 0 ip 000055726c387132 sp 00007ffed7af5e80 error 6 in {}[1132,55726c387000+1000]",
        "NVRM: Xid (PCI:[8437]: segfault at 0 ip 000055726c387132 sp 00007ffed7af5e80 error 6 in {}[1132,1000+1000]",
        "traps: sh[8437] trap invalid opcode ip:55726c387132 sp:7ffed7af5e80 error:0 in {}[1132,55726c387000+1000]",
        "process '{}' started with executable stack",
    ],
)
@pytest.mark.parametrize("before", ["", "[ 7133.481076] ", "Nov 27 21:01:55 node0 kernel: ", "6,809,7133481076,-;"])
def test_a_name_that_a_user_gave_a_file_is_no_message(name: str, line: str, before: str) -> None:
    """The kernel prints the file in which a process crashed: anybody's name, with anybody's pid and GPU in it."""
    assert parse((before + line.format(name)).encode()).events == ()


@pytest.mark.parametrize(
    "line",
    [
        "eth0: Link DOWN[8437]: segfault at 0 ip 000055726c387132 sp 00007ffed7af5e80 error 6 in x[1132,5000+1000]",
        "traps: ib0: link down[8437] general protection fault ip:55726c387132 sp:7ffed7af5e80 error:0 in x[5000+1000]",
        "ice 0000:3b:0 [8437]: segfault at 0 ip 000055726c38 sp 00007ffed7af error 6 in internal error[1132,5000+1000]",
        "warning: `a: b link down' uses 32-bit capabilities (legacy support in use)",
        "mmap: eth0: Link DOWN (8437): VmData 12288 exceed data ulimit 4096. Update limits or use boot option",
        "eth0: Link DOWN (8437) used greatest stack depth: 11000 bytes left",
    ],
)
@pytest.mark.parametrize("before", ["", "[ 7133.481076] ", "Nov 27 21:01:55 node0 kernel: ", "6,809,7133481076,-;"])
def test_a_name_that_a_user_gave_a_program_is_no_message(line: str, before: str) -> None:
    """15 bytes of anybody's, where a driver's message has its heading."""
    assert parse((before + line).encode()).events == ()


@pytest.mark.parametrize(
    "before",
    [
        "", "[ 7133.481076] ", "[ 7133.481076][  T123] ", "[Thu Nov 27 21:01:55 2025] ", "6,809,7133481076,-;", "<4>",
        "Nov 27 21:01:55 node0 kernel: ", "Nov 27 21:01:55 node0 kernel: [ 7133.481076] ", "node0: [ 7133.481076] ",
        "2025-11-27T21:01:55.123456+00:00 node0 kernel: ", "kern  :err   : [ 7133.481076] ",
        "[ 7133.481076] node0 kernel: ", "<4>1 2025-11-27T21:01:55Z node0 kernel - - - ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", FORGED)
def test_a_message_is_one_behind_whatever_heading(name: str, before: str) -> None:
    assert len(parse((before + name).encode()).events) == 1


@pytest.mark.parametrize("part", [" ", "a: ", "kernel ", "kern :a: ", "[1]: ", "1,1,1,", "2025-11-27T21:01:55: "])
def test_a_long_heading_takes_no_time(part: str) -> None:
    """Tried in all ways, fifty parts that can be read in two ways take years."""
    assert parse(f"{part * 50}x {FORGED[0]}".encode()).events == ()


def test_a_server_s_silence_is_one_event_until_it_is_back() -> None:
    silent = "[512.1] nfs: server 10.1.1.5 not responding, still trying\n"
    assert [(event.kind, event.device) for event in parse((3 * silent).encode()).events] == [
        ("storage_silent", "10.1.1.5")
    ]
    back = "[530.1] nfs: server 10.1.1.5 OK\n"
    assert parse((silent + back).encode()).events == ()
    assert len(parse((silent + back + silent).encode()).events) == 1
    assert len(parse((silent + back.replace("1.5", "1.6")).encode()).events) == 1


@pytest.mark.parametrize(
    "before",
    [
        "/var/log/kern.log:",
        "/var/log/messages-20261129:",
        "kern.log.1:4711:",
        "> ",
        "     7\t",
        "  | 2026-11-27T21:14:00Z | ",
    ],
)
def test_what_grep_cat_and_mail_put_before_its_lines_is_none_of_them(before: str) -> None:
    lines = (
        "Nov 27 21:14:00 node3 kernel: [81234.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "[81234.567890] NVRM: Xid (PCI:0000:3b:00): 48, pid=77, name=python3",
    )
    (first, second) = parse("\n".join(before + line for line in lines).encode()).events
    assert (first.xid, second.xid, first.pci_bus_id) == (79, 48, "0000:3b:00")


@pytest.mark.parametrize("before", ["", "kern.log:", "> "])
def test_what_a_process_is_called_is_no_fault_behind_them(before: str) -> None:
    line = "log:sh[7]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:3b:00): 79, pid=42[1132,1000]"
    assert parse((before + line).encode()).events == ()
