import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.host.permissions import (
    ClockInSync,
    ContainerNetwork,
    KernelLogReadable,
    PtraceAllowed,
    PySpyReads,
    SocketsAllowed,
)
from stallwatch.doctor.surroundings import CommandResult, DaemonFacts, Interface, Question
from tests.unit.doctor.fakes import DAEMON, STATUS, FakeCommands, FakeSockets, FakeTraining, Node, one, rank

NO_PTRACE = STATUS.replace("000001ffffffffff", "000001fffff7ffff")
SEVERAL = Question(nodes=2)


def test_a_sandbox_that_refuses_sockets_is_told_with_its_kind(node: Node) -> None:
    refused = FakeSockets(errors={0: "Operation not permitted"})
    node.write("proc/self/status", STATUS.replace("Seccomp:\t0", "Seccomp:\t2"))
    assert "seccomp" in one(SocketsAllowed().look(node.around(sockets=refused))).seen
    node.write("sys/fs/selinux/enforce", "1")
    found = one(SocketsAllowed().look(node.around(sockets=refused)))
    assert "audit2allow" in found.remedy
    assert SocketsAllowed().look(node.around()) == ()


@pytest.mark.parametrize(
    ("user", "scope", "severity"), [(0, "1", "warning"), (1000, "2", "warning"), (1000, "1", "info")]
)
def test_no_right_to_read_stacks_is_told(node: Node, user: int, scope: str, severity: str) -> None:
    node.write("proc/self/status", NO_PTRACE)
    node.write("proc/sys/kernel/yama/ptrace_scope", scope)
    assert one(PtraceAllowed().look(node.around(user_id=user))).severity == severity


def test_with_the_capability_stacks_can_be_read(node: Node) -> None:
    assert PtraceAllowed().look(node.around(user_id=0)) == ()


def test_unreadable_capabilities_are_unknown(node: Node) -> None:
    node.write("proc/self/status", "")
    with pytest.raises(Undetermined):
        PtraceAllowed().look(node.around())


def test_py_spy_that_does_not_know_this_python_is_told(node: Node) -> None:
    commands = FakeCommands(
        {"py_spy_probe": CommandResult(1, "", "Error: Failed to find python version from target process")}
    )
    found = one(PySpyReads().look(node.around(commands=commands)))
    assert "cannot read Python 3.11.4" in found.seen
    assert PySpyReads().look(node.around()) == ()


@pytest.mark.parametrize("message", ["Permission Denied: Try running again", "Failed to get process executable name."])
def test_py_spy_that_was_refused_leaves_it_unknown(node: Node, message: str) -> None:
    node.write("proc/self/status", NO_PTRACE)
    with pytest.raises(Undetermined):
        PySpyReads().look(node.around(commands=FakeCommands({"py_spy_probe": CommandResult(1, "", message)})))


def test_py_spy_needs_an_interpreter_to_try(node: Node) -> None:
    with pytest.raises(Undetermined):
        PySpyReads().look(node.around(training=FakeTraining("python has not answered for 3 s")))


def test_a_kernel_log_that_is_absent_or_root_only_is_mentioned(node: Node) -> None:
    assert KernelLogReadable().look(node.around()) == ()
    node.write("proc/sys/kernel/dmesg_restrict", "1")
    assert "root" in one(KernelLogReadable().look(node.around())).seen
    assert KernelLogReadable().look(node.around(user_id=0)) == ()
    (node.root / "dev/kmsg").unlink()
    assert one(KernelLogReadable().look(node.around(user_id=0))).severity == "info"


def test_what_the_node_s_daemon_reads_is_not_called_unreadable(node: Node) -> None:
    node.write("proc/self/status", NO_PTRACE)
    node.write("proc/sys/kernel/yama/ptrace_scope", "1")
    node.write("proc/sys/kernel/dmesg_restrict", "1")
    of_service = node.around(daemon=DAEMON)
    assert PtraceAllowed().look(of_service) == ()
    assert KernelLogReadable().look(of_service) == ()
    own = DaemonFacts(user_id=1000, sensors={"host": "no kernel log: Operation not permitted"})
    assert one(PtraceAllowed().look(node.around(daemon=own))).severity == "info"
    assert one(KernelLogReadable().look(node.around(daemon=own))).severity == "info"


def test_a_user_whose_own_jobs_alone_run_here_can_read_them_all(node: Node) -> None:
    node.write("proc/self/status", NO_PTRACE)
    node.write("proc/sys/kernel/yama/ptrace_scope", "0")
    assert PtraceAllowed().look(node.around(ranks=(rank(0),))) == ()
    assert one(PtraceAllowed().look(node.around(ranks=(rank(0), rank(1, uid=7))))).severity == "info"


def test_a_free_clock_matters_to_several_nodes(node: Node) -> None:
    free = FakeCommands({"clock_probe": CommandResult(0, "5 64", "")})
    assert one(ClockInSync().look(node.around(commands=free, question=SEVERAL))).severity == "warning"
    assert one(ClockInSync().look(node.around(commands=free))).severity == "info"
    with pytest.raises(Inapplicable):
        ClockInSync().look(node.around(commands=free, question=Question(nodes=1)))
    assert ClockInSync().look(node.around(question=SEVERAL)) == ()
    with pytest.raises(Undetermined):
        ClockInSync().look(node.around(commands=FakeCommands({"clock_probe": CommandResult(1, "", "")})))


def test_a_bridge_network_matters_to_several_nodes(node: Node) -> None:
    bridge = FakeSockets((Interface("eth0", True, ("172.17.0.2",)),))
    with pytest.raises(Inapplicable):
        ContainerNetwork().look(node.around(sockets=bridge, question=SEVERAL))
    node.write(".dockerenv", "")
    assert "--network=host" in one(ContainerNetwork().look(node.around(sockets=bridge, question=SEVERAL))).remedy
    assert ContainerNetwork().look(node.around(question=SEVERAL)) == ()
    with pytest.raises(Inapplicable):
        ContainerNetwork().look(node.around(sockets=bridge))


def test_py_spy_that_is_refused_in_spite_of_the_capability_is_told_with_the_likely_reason(node: Node) -> None:
    refused = FakeCommands({"py_spy_probe": CommandResult(1, "", "Error: Permission denied (os error 13)")})
    assert "SELinux" in one(PySpyReads().look(node.around(commands=refused))).remedy
    node.write("proc/self/status", STATUS.replace("Seccomp:\t0", "Seccomp:\t2"))
    assert "a seccomp filter is in force" in one(PySpyReads().look(node.around(commands=refused))).seen


def test_selinux_that_denies_ptrace_to_everybody_is_told(node: Node) -> None:
    node.write("sys/fs/selinux/booleans/deny_ptrace", "1 1")
    assert "setsebool" in one(PtraceAllowed().look(node.around(user_id=0))).remedy
    node.write("sys/fs/selinux/booleans/deny_ptrace", "0 0")
    assert PtraceAllowed().look(node.around(user_id=0)) == ()
