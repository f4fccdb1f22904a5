"""What this process may do: sockets, ptrace, the kernel's log, py-spy on the training interpreter; and the clock."""

import re
import sys
from typing import ClassVar

from stallwatch.captures import stacks
from stallwatch.captures.folder import NotCaptured
from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.network.host_names import spans_nodes
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.formats.addresses import kind_of_address
from stallwatch.model.reading import Known

_CAP_SYS_PTRACE = 1 << 19  # linux/capability.h
_UNSYNCHRONISED, _CLOCK_ERROR = 0x0040, 5  # adjtimex(2): STA_UNSYNC, TIME_ERROR
_PY_SPY_SECONDS = 3.0


def _status(surroundings: Surroundings, name: str) -> str:
    match = re.search(rf"^{name}:\s*(\S+)", surroundings.text("/proc/self/status") or "", re.MULTILINE)
    return match[1] if match else ""


class SocketsAllowed:
    """Tries to listen at a port that the kernel chooses; an error, for neither store nor bootstrap can begin."""

    name: ClassVar[str] = "sockets_allowed"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a sandbox (seccomp, SELinux) that refuses sockets"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One error where no port can be listened on at all, with who is the likely reason."""
        error = surroundings.sockets.can_listen(0)
        if not error:
            return ()
        enforcing = (surroundings.text("/sys/fs/selinux/enforce") or "").strip() == "1"
        filtered = _status(surroundings, "Seccomp") == "2"
        by = "SELinux" if enforcing else "a seccomp filter" if filtered else "the system"
        return (
            finding(
                self, "error", "sockets",
                seen=f"No port can be listened on at all: {error} ({by} is the likely reason).",
                why="Neither PyTorch's store nor NCCL's bootstrap can begin.",
                remedy="ausearch -m avc -ts recent | audit2allow -M training; semodule -i training.pp  (do not switch "
                "SELinux off)"
                if enforcing
                else "start the container with a seccomp profile that allows socket, bind, listen (docker's default "
                "does)",
            ),
        )  # fmt: skip


class PtraceAllowed:
    """Judges by what /proc and /sys say of our rights; Undetermined where our capabilities are not told."""

    name: ClassVar[str] = "ptrace_allowed"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "no right to read stacks: CAP_SYS_PTRACE taken away, Yama, seccomp"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for whatever takes the right to read stacks away: SELinux, Yama, seccomp, a missing capability."""
        effective = _status(surroundings, "CapEff")
        if not effective:
            raise Undetermined("/proc/self/status does not tell the capabilities")
        if (surroundings.text("/sys/fs/selinux/booleans/deny_ptrace") or "").startswith("1"):
            return (
                finding(
                    self, "warning", "SELinux",
                    seen="SELinux' deny_ptrace is on: nobody may read another process' stacks, whatever his rights.",
                    why="After a hang no Python stack can be read, so the line that a rank stands at stays unknown.",
                    remedy="setsebool -P deny_ptrace 0  (do not switch SELinux off)",
                    source="selinux(8), deny_ptrace",
                ),
            )  # fmt: skip
        if int(effective, 16) & _CAP_SYS_PTRACE:
            return ()
        scope = (surroundings.text("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
        why = "After a hang no Python stack can be read, so the line that a rank stands at stays unknown."
        if surroundings.user_id == 0:
            return (
                finding(
                    self, "warning", "CAP_SYS_PTRACE",
                    seen="This is root without CAP_SYS_PTRACE, as in a container.",
                    why=why + " py-spy then says \"Failed to get process executable name\", which misleads.",
                    remedy="docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext.capabilities.add: "
                    "[SYS_PTRACE]",
                    source="py-spy#12, py-spy PR#459",
                ),
            )  # fmt: skip
        if scope in ("2", "3"):
            return (
                finding(
                    self, "warning", "kernel.yama.ptrace_scope",
                    seen=f"kernel.yama.ptrace_scope is {scope}: only root may read stacks"
                    + (", and not even root." if scope == "3" else "."),
                    why=why,
                    remedy="run the daemon with CAP_SYS_PTRACE (the shipped systemd unit does)"
                    if scope == "2"
                    else "sysctl kernel.yama.ptrace_scope=1 after a reboot (3 cannot be lowered)",
                ),
            )  # fmt: skip
        daemon = surroundings.daemon
        if daemon is not None and daemon.user_id != surroundings.user_id:
            return ()  # the node's daemon reads them with rights of its own
        if scope != "1" and all(rank.uid == surroundings.user_id for rank in surroundings.ranks):
            return ()  # whose jobs run here are his own
        return (
            finding(
                self, "info", "ptrace",
                seen="This user reads stacks of " + ("children only." if scope == "1" else "own processes only."),
                why=why + " The daemon of the shipped systemd unit may.",
                remedy="nothing, where the daemon runs as a service",
            ),
        )  # fmt: skip


class PySpyReads:
    """Has py-spy read a new process of the training interpreter; Undetermined where there is none to start, or no
    answer."""

    name: ClassVar[str] = "py_spy"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "py-spy absent, or unable to read the training interpreter (tried on a process of it)"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning where py-spy is absent or cannot read a process of the training interpreter, with its own words."""
        try:
            py_spy = stacks.py_spy(configured="")
        except NotCaptured:
            return (
                finding(
                    self, "warning", "py-spy",
                    seen="py-spy is not installed beside stallwatch, where alone the daemon takes it from.",
                    why="After a hang no Python stack can be read.",
                    remedy=f"{sys.executable} -m pip install py-spy",
                ),
            )  # fmt: skip
        training = surroundings.training.ask()
        if not isinstance(training, Known):
            raise Undetermined(f"no training interpreter to try it on: {training.reason}")
        probe = ("-m", "stallwatch.doctor.host.py_spy_probe", py_spy, training.value.executable)
        reading = surroundings.commands.run((sys.executable, *probe), _PY_SPY_SECONDS)
        if not isinstance(reading, Known):
            raise Undetermined(f"py-spy: {reading.reason}")
        if reading.value.exit_code == 0:
            return ()
        message = reading.value.stderr.strip()
        if "ermission" in message or "executable name" in message or "not permitted" in message:
            if int(_status(surroundings, "CapEff") or "0", 16) & _CAP_SYS_PTRACE == 0:
                raise Undetermined("py-spy was refused; ptrace_allowed tells why")
            filtered = _status(surroundings, "Seccomp") == "2"
            return (
                finding(
                    self, "warning", "ptrace",
                    seen="py-spy is refused although CAP_SYS_PTRACE is there"
                    + (": a seccomp filter is in force." if filtered else "."),
                    why="After a hang no Python stack can be read, so the line that a rank stands at stays unknown.",
                    remedy="start the container with a seccomp profile that allows ptrace and process_vm_readv "
                    "(Docker's own does with --cap-add=SYS_PTRACE)"
                    if filtered
                    else "ausearch -m avc -ts recent (SELinux), dmesg | grep -i apparmor: allow ptrace for it",
                    source="docs.docker.com, seccomp security profiles",
                ),
            )  # fmt: skip
        return (
            finding(
                self, "warning", training.value.executable,
                seen=f"py-spy cannot read Python {training.value.python}: {message[-200:] or 'no message'}.",
                why="After a hang no Python stack of this interpreter can be read.",
                remedy=f"{sys.executable} -m pip install -U py-spy  (each Python needs a py-spy that knows it)",
            ),
        )  # fmt: skip


class KernelLogReadable:
    """An info, and none where this node's daemon reads the log."""

    name: ClassVar[str] = "kernel_log"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a kernel log that cannot be read: XIDs and out-of-memory kills stay unknown"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One info where nobody here can read the kernel log."""
        path = surroundings.root / "dev/kmsg"
        restricted = (surroundings.text("/proc/sys/kernel/dmesg_restrict") or "0").strip() == "1"
        if path.exists() and (surroundings.user_id == 0 or not restricted):
            return ()
        of_daemon = surroundings.daemon.sensors.get("host") if surroundings.daemon else None
        if of_daemon is not None and "kernel log" not in of_daemon:
            return ()  # the node's daemon reads it
        return (
            finding(
                self, "info", "/dev/kmsg",
                seen="There is no kernel log here." if not path.exists() else "The kernel log is root's to read.",
                why="GPU errors (XID) and out-of-memory kills are then \"not known\", which is not \"none\".",
                remedy="run the daemon on the host, or give its container /dev/kmsg and CAP_SYSLOG",
            ),
        )  # fmt: skip


class ClockInSync:
    """Asks the kernel (adjtimex) whether anybody keeps its clock; Inapplicable to a job of this node alone."""

    name: ClassVar[str] = "clock"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a clock that nothing keeps in step: logs of several nodes cannot be put in order"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One finding where the kernel says that its clock is free. Raise Undetermined where it does not tell."""
        reading = surroundings.commands.run((sys.executable, "-m", "stallwatch.doctor.host.clock_probe"), 2.0)
        if not isinstance(reading, Known) or reading.value.exit_code != 0:
            raise Undetermined("adjtimex does not tell")
        state, status = (int(word) for word in reading.value.stdout.split()[:2])
        if state != _CLOCK_ERROR and not status & _UNSYNCHRONISED:
            return ()
        if spans_nodes(surroundings) is False:
            raise Inapplicable("the clock is free, and the job is on this node alone")
        return (
            finding(
                self, "warning" if spans_nodes(surroundings) else "info", "clock",
                seen="The kernel says that nobody keeps this clock in step (adjtimex: unsynchronised).",
                why="Which rank failed first cannot be told across nodes by their logs; TLS and file times go wrong.",
                remedy="systemctl enable --now chronyd  (virtual machines kept by their host can ignore this)",
            ),
        )  # fmt: skip


class ContainerNetwork:
    """Inapplicable outside of Docker and Podman, and where nothing says that the job spans nodes."""

    name: ClassVar[str] = "container_network"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a container with a network of its own for a job that spans nodes"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding where all addresses are the container's own and other nodes cannot reach them."""
        marks = ("/.dockerenv", "/run/.containerenv")
        if not any((surroundings.root / mark.lstrip("/")).exists() for mark in marks):
            raise Inapplicable("not in a Docker or Podman container")
        if not spans_nodes(surroundings):
            raise Inapplicable("nothing says that the job spans nodes")
        addresses = [
            address
            for one in surroundings.sockets.interfaces()
            for address in one.addresses
            if kind_of_address(address) == "container"
        ]
        if not addresses:
            return ()
        return (
            finding(
                self, "warning", "container",
                seen=f"The container's address is {addresses[0]}, of a bridge network.",
                why="Ranks of other nodes cannot reach it: the store accepts nobody, or NCCL's bootstrap hangs.",
                remedy="docker run --network=host --ipc=host --ulimit memlock=-1, or an overlay network",
                source="NCCL user guide, Docker",
            ),
        )  # fmt: skip
