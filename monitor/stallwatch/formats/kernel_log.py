"""The kernel's log, as dmesg, journald or kmsg print it: GPU errors, out-of-memory kills, hung tasks, PCIe errors."""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from stallwatch.formats.log_prefix import strip_colours
from stallwatch.formats.outside_text import line_of
from stallwatch.formats.xid import ENDS_PROCESS
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.log_event import KernelLog

_KEPT_LINES: Final = 500
_KEPT_EVENTS: Final = 2_000
_MAXIMUM_LINE: Final = 2_048
_SECONDS: Final = re.compile(r"\[\s*(\d{1,10}\.\d+)\]")
_KMSG: Final = re.compile(r"\d+,\d+,(\d+),[^;]*;")  # /dev/kmsg: priority, number, microseconds
_WALL: Final = re.compile(
    r"(?:\[(?P<dmesg>[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4})\]"
    r"|(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*)"
    r"|(?P<syslog>[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d))"
)
# NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python, Ch 0000000a; pid and name may be '<unknown>' or absent
_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+)"
    r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name=(?P<name>[^,]*))?"
)
# NVSwitch: "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up". Most are non-fatal.
_SXID: Final = re.compile(r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<sxid>\d+), (?P<severity>Fatal|Non-fatal)")
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d+)")
_OFF_BUS_GPU: Final = re.compile(r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F:.]+)")
# No bracket between: a task called "NVRM:" has its pid there.
_OFF_BUS: Final = re.compile(r"NVRM: (?:GPU (?P<pci>[0-9a-fA-F:.]+):? )?[^\[]*fallen off the bus")
# The driver's word on a GPU that has no XID any more: nvstatuscodes.h of NVIDIA's open kernel modules.
_NO_STATUS: Final = re.compile(
    r"NVRM: [^\[]*(?:Reset required \[NV_ERR_RESET_REQUIRED\]|GPU lost from the bus \[NV_ERR_GPU_IS_LOST\])"
    # Its firmware (GSP) does not answer: before XID 119 and 120, and without them where the driver starts.
    r"|NVRM: (?:GPU\d+ )?_kgsp\w+: (?:Heartbeat timed out|\*+ GSP Timeout)"
)
_OOM_TASK: Final = re.compile(
    # Lists of nodes and CPUs hold commas, names of tasks spaces.
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>\w+),.*task=(?P<name>.+),pid=(?P<pid>\d+),uid=\d+"
)
_OOM_KILLED: Final = re.compile(
    r"(?P<where>Memory cgroup out of memory|Out of memory)[^:]*: Killed process (?P<pid>\d+) "
    r"\((?P<name>.*?)\)(?:,| total-vm)"
)
_HUNG: Final = re.compile(
    r"INFO: task (?P<name>.+):(?P<pid>\d+) blocked (?:in I/O wait )?for more than (?P<seconds>\d+) seconds"
)
# It spins in the kernel, where the one above waits; "watchdog:" and the like stand before it.
_LOCKUP: Final = re.compile(r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<name>.+):(?P<pid>\d+)\]")
# What ROCm's driver does about a GPU that does not get on: "amdgpu 0000:83:00.0: amdgpu: ring sdma0 timeout, signaled
# seq=50", or "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring …" of older ones, then "GPU reset begin!".
_AMD: Final = re.compile(
    r"(?:amdgpu (?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F:.]+): (?:amdgpu: )?"
    r"|\[drm:amdgpu_job_timedout \[amdgpu\]\] \*ERROR\* )(?:ring \S+ timeout|GPU reset begin)"
)
# A file server or a disk that does not answer: NFS, Lustre, NVMe, any block device. "OK" takes an NFS server's back.
_STORAGE: Final = re.compile(
    r"nfs4?: server (?P<nfs>\S+) (?:not responding|(?P<back>OK\b))"
    r"|Lustre: (?P<lustre>\S+): Connection to \S+ \(at \S+\) was lost"
    r"|nvme (?P<nvme>nvme\d+): I/O (?:tag )?\d+ .*?\btimeout"
    r"|(?:blk_update_request: |print_req_error: )?(?:critical medium|I/O) error, dev (?P<disk>\w+)"
)
_PCIE: Final = re.compile(
    r"(?:[\w.-]+ )?(?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F:.]+): PCIe Bus Error: severity=(?P<severity>[^,]+)"
)
# What may stand before a message: times, hosts, "kernel:", drivers. Elsewhere in a line the kernel repeats what users
# have named: "sh[7]: segfault at 0 … in NVRM: Xid (PCI:0000:3b:00): 79, pid=42[1132,…" is a file of that name.
_HEAD: Final = re.compile(  # one part of it: taken as it comes, for who tries all ways can be kept at it
    rf"\s+|{_WALL.pattern}(?=\s)|<\d+>\d?|\d+,\d+,\d+,[^;]*;|\{{\d+\}}|\[[^\]]*\]:?|[-|](?=\s)"
    r"|kern\s*:\w+\s*:"  # dmesg --decode
    r"|[\w.-]+(?=\s+kernel\b)|kernel(?=\s)"  # a host
    r"|[^\s:`'\"]+:(?=\s)|\(slave(?=\s)"
)
# What grep, cat and mail put before the lines of a kernel's log.
_QUOTED: Final = re.compile(
    r"(?:> ?)*(?:\s*\d{1,7}\t)?(?:[\w./~-]{0,80}(?:log|messages|dmesg|journal|txt)[\w.-]{0,40}:(?:\d+:)?)?"
)
# So begins what it says of a process: "sh[7]: segfault at 0", "sh (7): VmData 12 exceed data ulimit". The name has up
# to 15 bytes and is anybody's to choose, "eth0: Link DOWN" too.
_OF_A_PROCESS: Final = re.compile(r"[^\[(]{1,15}(?:\[\d+\]| ?\(\d+\))(?=[:, ])")
_LONGEST_HEAD: Final = 256
# Forms: driver, PCI address and interface, then "Link down", "Port: 1 Link DOWN" or "NIC Link is Down"; "ib0: link
# down"; "link status definitely down for interface". Bridges and containers' ends are no ports.
_LINK: Final = re.compile(
    r"(?:(?:\w+ )?(?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F:.]+):? )?(?<![\w.-])(?!veth|docker|br-|virbr|cali|cni|lo\b)"
    r"(?P<device>[a-zA-Z][\w.-]*):? (?:[Pp]ort:? ?\d* )?(?:NIC |Port )?"
    r"(?:[Ll]ink (?:is )?(?:[Dd]own|DOWN)\b|link status definitely down)"
)
_ADAPTER: Final = re.compile(
    r"(?P<driver>mlx[45]_core|mlx5_ib|bnxt_en|bnxt_re|irdma|ice|efa|hfi1|hns3)"
    r" (?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F:.]+)[: ]"
    r".*?(?:health compromised|device's health|Fatal error|assert_var|internal error|tx timeout|TX timeout"
    r"|command timeout|cmd_exec timeout|timeout\. Will cause a leak|adapter is in error state|hardware error)"
)
# Whatever is of note holds one of these.
NEEDLES: Final = (
    "NVRM:", "SXid (PCI", "oom-kill:", "Killed process", "blocked for more than", "blocked in I/O wait",
    "PCIe Bus Error", "ink down", "ink DOWN", "ink is Down", "ink is down", "definitely down", "health compromised",
    "device's health", "Fatal error", "assert_var", "internal error", "x timeout", "X timeout", "command timeout",
    "cmd_exec timeout", "Will cause a leak", "in error state", "hardware error", "soft lockup", "GPU reset begin",
    "amdgpu_job_timedout", ": ring ", "fs: server ", "fs4: server ", "Lustre: ", ": I/O ", " error, dev ",
)  # fmt: skip


def parse(data: bytes) -> KernelLog:
    """Given a kernel log's bytes (its end, when it is long), return its last lines and what is of note in it."""
    raw = data.decode("utf-8", "surrogateescape").splitlines()
    lines = [line_of(strip_colours(line))[:_MAXIMUM_LINE] for line in raw]
    reading = KernelLogReading()
    for number, line in enumerate(lines, 1):
        reading.feed(line, number)
    return KernelLog(tuple(lines[-_KEPT_LINES:]), tuple(with_lost_causes(reading.events)[-_KEPT_EVENTS:]))


def with_lost_causes(events: Sequence[KernelEvent]) -> list[KernelEvent]:
    """Given a log's events, return them with each XID that is told only as the one for which a process was ended: the
    log has lost that one's own line, or a person left it out."""
    told = {event.xid for event in events if event.kind == "xid"}
    found: list[KernelEvent] = []
    ended: set[tuple[int, str | None]] = set()
    for event in events:
        cause, place = event.caused_by_xid, event.pci_bus_id
        if cause is not None and event.xid in ENDS_PROCESS and cause not in told and (cause, place) not in ended:
            ended.add((cause, place))
            found.append(replace(event, xid=cause, caused_by_xid=None))
        found.append(event)
    return found


def may_tell(line: str) -> bool:
    """Whether a line holds a word that every line of note has one of."""
    return any(needle in line for needle in NEEDLES)


class KernelLogReading:
    """Fed line by line, of any log: of a line that the kernel did not write it takes no notice."""

    def __init__(self) -> None:
        self.events: list[KernelEvent] = []
        self._gpu = ""  # named by the first of the three lines that report a GPU off the bus without a XID
        self._gpu_line = 0

    def feed(self, line: str, number: int) -> None:
        """Given the log's next line and its number, note the event that it tells, if any; some events take several
        lines."""
        if not may_tell(line):
            return
        line = line_of(strip_colours(line))[:_MAXIMUM_LINE]
        if match := _said(_XID, line):
            self._add("xid", line, number, **_xid(match, line))
        elif match := _said(_SXID, line):
            self._add(
                "sxid",
                line,
                number,
                xid=int(match["sxid"]),
                pci_bus_id=_pci(match["pci"]),
                fatal=match["severity"] == "Fatal",
            )
        elif match := _said(_OFF_BUS, line):
            pci = match["pci"] or (self._gpu if number - self._gpu_line <= 4 else "")
            self._add("off_bus", line, number, pci_bus_id=_pci(pci))
        elif match := _said(_OFF_BUS_GPU, line):
            self._gpu, self._gpu_line = match["pci"], number
        elif _said(_NO_STATUS, line):
            self._add("gpu_reset", line, number)
        elif match := _said(_OOM_TASK, line):
            self._add(
                "oom_kill",
                line,
                number,
                pid=int(match["pid"]),
                process=match["name"],
                constraint=match["constraint"].lower(),
            )
        elif match := _said(_OOM_KILLED, line):
            constraint = "memcg" if match["where"].startswith("Memory cgroup") else "none"
            if not self._same_kill(int(match["pid"]), number):
                self._add("oom_kill", line, number, pid=int(match["pid"]), process=match["name"], constraint=constraint)
        elif match := _said(_HUNG, line) or _said(_LOCKUP, line):
            self._add("hung_task", line, number, pid=int(match["pid"]), process=match["name"])
        elif match := _said(_LINK, line):
            self._add("link_down", line, number, device=match["device"], pci_bus_id=_pci(match["pci"] or ""))
        elif match := _said(_ADAPTER, line):
            self._add("adapter_error", line, number, pci_bus_id=_pci(match["pci"]), device=match["driver"])
        elif match := _said(_PCIE, line):
            self._add(
                "pcie_error", line, number, pci_bus_id=_pci(match["pci"]), corrected=match["severity"] == "Corrected"
            )

        elif match := _said(_AMD, line):
            self._add("gpu_reset", line, number, pci_bus_id=_pci(match["pci"] or ""))
        elif match := _said(_STORAGE, line):
            self._of_storage(match, line, number)

    def _of_storage(self, match: re.Match[str], line: str, number: int) -> None:
        """One event a server or disk, until it is back."""
        name = next(name for group, name in match.groupdict().items() if name and group != "back")
        known = [event for event in self.events if event.kind == "storage_silent" and event.device == name]
        if match["back"]:
            self.events = [event for event in self.events if event not in known]
        elif not known:
            self._add("storage_silent", line, number, device=name)

    def _same_kill(self, pid: int, number: int) -> bool:
        """The kernel reports one kill in two lines."""
        return any(e.kind == "oom_kill" and e.pid == pid and number - e.line <= 20 for e in self.events[-20:])

    def _add(self, kind: str, line: str, number: int, **fields: Any) -> None:
        seconds, kmsg, wall = _SECONDS.search(line), _KMSG.match(line), _WALL.search(line)
        when = float(seconds[1]) if seconds else int(kmsg[1]) / 1e6 if kmsg else None
        at = next((text for text in wall.groups() if text), None) if wall else None
        self.events.append(KernelEvent(kind, line, number, seconds=when, at=at, **fields))


def _said(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """The match that is the message itself, and not a name in somebody's message."""
    match = pattern.search(line)
    if match is None or match.start() > _LONGEST_HEAD:
        return None
    quoted = _QUOTED.match(line)
    at = quoted.end() if quoted else 0
    while not _OF_A_PROCESS.match(line, at):
        if at >= match.start():
            return match if at == match.start() else None
        part = _HEAD.match(line, at)
        if part is None:
            return None
        at = part.end()
    return None


def _xid(match: re.Match[str], line: str) -> dict[str, Any]:
    caused = _CAUSED_BY.search(line)
    name = (match["name"] or "").strip().strip("'")
    return {
        "xid": int(match["xid"]),
        "pci_bus_id": _pci(match["pci"]),
        "pid": int(match["pid"]) if match["pid"] and match["pid"].isdecimal() else None,
        "process": name if name and name != "<unknown>" else None,
        # NVLink events say it: "NETIR_LINK_EVT Nonfatal" is no outage.
        "fatal": False if "Nonfatal" in line else True if re.search(r"\bFatal\b", line) else None,
        "caused_by_xid": int(caused[1]) if caused else None,
    }


def _pci(text: str) -> str | None:
    """Return "0000:3b:00" for "0000:3B:00.0" and for NVML's "00000000:3B:00.0"."""
    parts = text.lower().split(".")[0].split(":")
    if len(parts) < 2:
        return None
    domain, rest = (parts[0], parts[1:3]) if len(parts) >= 3 else ("0000", parts)
    return ":".join((domain[-4:].rjust(4, "0"), *rest))
