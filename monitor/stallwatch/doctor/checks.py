"""All checks, written out. A new one is a class in its area's folder and a line here."""

from stallwatch.doctor.advice.containers import SharedMemorySize
from stallwatch.doctor.advice.launch_checks import FewerGpusThanRanks, LoopbackLaunch
from stallwatch.doctor.advice.scripts import HarmfulAdvice
from stallwatch.doctor.advice.variables import VariablesInScripts
from stallwatch.doctor.check import Check
from stallwatch.doctor.environment.by_version import NotReadByThisVersion, RecorderOff
from stallwatch.doctor.environment.combinations import Contradictions
from stallwatch.doctor.environment.files import NamedFiles
from stallwatch.doctor.environment.rank_directory import RankDirectory
from stallwatch.doctor.environment.rank_settings import RanksDiffer
from stallwatch.doctor.environment.syntax import WrongSyntax
from stallwatch.doctor.environment.values import DebugLeftOn, OutOfRange
from stallwatch.doctor.environment.variable_names import (
    InventedVariables,
    RemovedVariables,
    RenamedVariables,
    UnknownVariables,
)
from stallwatch.doctor.failed_run.decision_tree import DecisionTree
from stallwatch.doctor.failed_run.logs import FailedRun
from stallwatch.doctor.frameworks.deepspeed import DeepSpeedSettings, DeepSpeedTimeout
from stallwatch.doctor.frameworks.deepspeed_keys import DeepSpeedKeys
from stallwatch.doctor.frameworks.deepspeed_values import DeepSpeedValues
from stallwatch.doctor.frameworks.versions import (
    Compatible,
    DriverSupportsCuda,
    KnownBugs,
    NewerThanTested,
    TorchPresent,
)
from stallwatch.doctor.gpu.device_state import DeviceAnswers, DriverAnswers, MemoryErrors, Throttled
from stallwatch.doctor.gpu.links import FabricReady, PcieWidth, PeerRedirect, Topology
from stallwatch.doctor.gpu.use import LeftOverProcesses, SharedGpu, VisibleDevices
from stallwatch.doctor.host.permissions import (
    ClockInSync,
    ContainerNetwork,
    KernelLogReadable,
    PtraceAllowed,
    PySpyReads,
    SocketsAllowed,
)
from stallwatch.doctor.host.resource_limits import CgroupMemory, Cpus, LockedMemory, OpenFiles
from stallwatch.doctor.host.storage import DiskSpace, NetworkCaches, SharedMemory, StaleBuildLocks
from stallwatch.doctor.network.host_names import AddressFamily, HostName, MasterAddress
from stallwatch.doctor.network.interfaces import FabricPorts, InterfaceExists, Loopback
from stallwatch.doctor.network.meeting import MeetingPlaceAnswers
from stallwatch.doctor.network.ports import MasterPort, RasPort
from stallwatch.doctor.network.reach import MasterReachable
from stallwatch.doctor.training_script.data import SamplerEpoch, UnevenShards, UnshardedLoader
from stallwatch.doctor.training_script.debugging import AnomalyDetection
from stallwatch.doctor.training_script.devices import (
    FewerGpusThanDevices,
    GlobalRankDevice,
    LateDevice,
    LateVisibleDevices,
)
from stallwatch.doctor.training_script.divergence import RankConditionalCollective, SwallowedCollective
from stallwatch.doctor.training_script.process_group import ProcessGroupCall
from stallwatch.doctor.training_script.saving import ShardedSave

CHECKS: tuple[Check, ...] = (
    FailedRun(), DecisionTree(),
    RenamedVariables(), RemovedVariables(), InventedVariables(), UnknownVariables(), OutOfRange(), WrongSyntax(),
    NamedFiles(), DebugLeftOn(), Contradictions(), RecorderOff(), NotReadByThisVersion(), RanksDiffer(),
    RankDirectory(),
    DriverAnswers(), DeviceAnswers(), MemoryErrors(), Throttled(), LeftOverProcesses(), VisibleDevices(), SharedGpu(),
    FabricReady(), PcieWidth(), Topology(), PeerRedirect(),
    HostName(), MasterAddress(), MasterReachable(), MasterPort(), InterfaceExists(), AddressFamily(), Loopback(),
    FabricPorts(), RasPort(), MeetingPlaceAnswers(),
    OpenFiles(), LockedMemory(), SharedMemory(), DiskSpace(), StaleBuildLocks(), NetworkCaches(), SocketsAllowed(),
    PtraceAllowed(), PySpyReads(), KernelLogReadable(), ClockInSync(), Cpus(), CgroupMemory(), ContainerNetwork(),
    TorchPresent(), DriverSupportsCuda(), Compatible(), KnownBugs(), NewerThanTested(),
    DeepSpeedKeys(), DeepSpeedValues(), DeepSpeedSettings(), DeepSpeedTimeout(),
    RankConditionalCollective(), SwallowedCollective(), ShardedSave(), ProcessGroupCall(), LateDevice(),
    GlobalRankDevice(), LateVisibleDevices(), UnshardedLoader(), SamplerEpoch(), UnevenShards(), AnomalyDetection(),
    FewerGpusThanDevices(),
    HarmfulAdvice(), SharedMemorySize(), VariablesInScripts(), LoopbackLaunch(), FewerGpusThanRanks(),
)  # fmt: skip


def checks_table() -> str:
    """Return a Markdown table of all checks: name, area, what each looks for."""
    rows = [f"| `{check.name}` | {check.area} | {check.looks_for} |" for check in CHECKS]
    return "\n".join(("| check | area | finds |", "|---|---|---|", *rows)) + "\n"
