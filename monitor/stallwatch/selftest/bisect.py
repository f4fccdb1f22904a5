"""Which setting or which GPU makes the failing step pass: the step again in child jobs, with one thing changed each.

Planning and concluding are pure; a trial is a function that is handed in.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from stallwatch.errors import StallwatchError
from stallwatch.selftest.result import BEFORE_COLLECTIVES, Bisection, BisectTrial, Failure, TrialResult

# NVLS is only ever switched off: switching it on where an administrator took it away can bring a node down.
_SETTINGS: tuple[tuple[str, str, str, str, str], ...] = (
    ("GPU peer-to-peer off", "NCCL_P2P_DISABLE", "1", "nccl",
     "Direct copies between GPUs are what breaks: see PCIe ACS, IOMMU, NVLink errors and `nvidia-smi topo -p2p r`."),
    ("shared memory off", "NCCL_SHM_DISABLE", "1", "nccl",
     "Shared memory is what breaks: look at the size of /dev/shm and the container's --ipc and --shm-size."),
    ("InfiniBand off", "NCCL_IB_DISABLE", "1", "nccl",
     "InfiniBand or RoCE is what breaks: look at port states, GID index, memlock limits and the fabric."),
    ("loopback interface", "NCCL_SOCKET_IFNAME", "lo", "nccl",
     "The chosen network interface is what breaks: look at its address, its firewall and NCCL_SOCKET_IFNAME."),
    ("loopback interface", "GLOO_SOCKET_IFNAME", "lo", "gloo",
     "The chosen network interface is what breaks: look at its address, its firewall, the host name's address and "
     "GLOO_SOCKET_IFNAME."),
    ("NVLS off", "NCCL_NVLS_ENABLE", "0", "nccl",
     "NVLink multicast is what breaks: look at the Fabric Manager and its version against the driver's."),
)  # fmt: skip
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_")
# Take these away and the run shows less or NVLS comes on: they are left as they are.
_KEPT = ("NCCL_NVLS_ENABLE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
_FIRST_STEPS = (*BEFORE_COLLECTIVES, "barrier", "last barrier")


class Change(msgspec.Struct, frozen=True):
    """What one trial of the search changes of the job that failed, and what to say where the step passes with it."""

    what: str
    environment: dict[str, str | None] = {}  # None: taken away
    devices: tuple[int, ...] = ()  # empty: as before
    ranks: int | None = None  # None: as before
    advice: str = ""


class Setup(msgspec.Struct, frozen=True):
    """The job that failed, as far as a smaller one may differ from it."""

    backend: str
    ranks: int
    devices: tuple[int, ...]  # GPUs by index; empty on the CPU
    environment: Mapping[str, str]


RunTrial = Callable[[Change, tuple[str, ...]], TrialResult]


def settings(setup: Setup) -> Iterator[Change]:
    """The job as it was, then without what the environment sets, then with one path of communication off each."""
    yield Change("once more, unchanged")
    given = [n for n in sorted(setup.environment) if n.startswith(_PREFIXES) and n not in _KEPT]
    for name in given:
        advice = f"{name}={setup.environment[name]} of this environment is what breaks: correct it or take it away."
        yield Change(f"without {name}={setup.environment[name]}", {name: None}, advice=advice)
    for what, name, value, backend, advice in _SETTINGS:
        if backend == setup.backend and setup.environment.get(name) != value:
            yield Change(f"{what} ({name}={value})", {name: value}, advice=advice)


def smaller(setup: Setup) -> Iterator[Change]:
    """Fewer ranks; where there are GPUs, each of them alone and each pair."""
    if not setup.devices:
        counts = sorted({setup.ranks // 2, 2, 1} - {0, setup.ranks}, reverse=True)
        yield from (Change(f"{count} ranks" if count > 1 else "1 rank", ranks=count) for count in counts)
        return
    for device in setup.devices:
        yield Change(f"GPU {device} alone", devices=(device,), ranks=1)
    if setup.ranks > 2:
        half = setup.ranks // 2
        for part in (setup.devices[:half], setup.devices[half:]):
            if len(part) > 2:
                yield Change(f"GPUs {', '.join(map(str, part))}", devices=part, ranks=len(part))
        for pair in itertools.combinations(setup.devices, 2):
            yield Change(f"GPUs {pair[0]} and {pair[1]}", devices=pair, ranks=2)


def focus(failure: Failure, ranks: int) -> tuple[str, ...]:
    """The steps of a trial that show the failure again, by the names that `--only` takes."""
    name = failure.step.removesuffix(" bandwidth")
    if name == "teardown" or name.startswith("after "):
        return ()  # nothing less shows it
    if name in _FIRST_STEPS or ranks == 1:
        # Alone there is nobody to send to; a GPU shows by one collective whether it works at all.
        return ("all_reduce",) if ranks == 1 and name not in _FIRST_STEPS else ("barrier",)
    if name.startswith("exchange") and (name == "exchange" or int(name.rpartition("+")[2]) >= ranks):
        return ("exchange +1",)
    if name.startswith(("new_group", "sub-groups")):
        return ("all_reduce",) if ranks < 4 else (name.replace("new_group", "sub-groups"),)
    return (name,)


def bisect(
    setup: Setup,
    failure: Failure,
    run: RunTrial,
    seconds: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Bisection:
    """Run every change for which there is time. A trial that does not work is said and is no answer."""
    until = clock() + seconds
    trials: list[BisectTrial] = []
    changes = [*settings(setup), *smaller(setup)]
    for change in changes:
        ranks = change.ranks or setup.ranks
        if clock() > until:
            trials.append(_trial(change, ranks, "not_run", f"{seconds:.0f} s were over"))
            continue
        tell(f"bisect: {change.what}")
        began = clock()
        try:
            result = run(change, focus(failure, ranks))
        except StallwatchError as error:
            trials.append(_trial(change, ranks, "not_run", f"the trial itself did not work: {error}"))
            continue
        trials.append(_judged(change, ranks, failure, result, clock() - began))
    return Bisection(tuple(trials), tuple(conclude(changes, trials)))


def _judged(change: Change, ranks: int, failure: Failure, result: TrialResult, seconds: float) -> BisectTrial:
    if result.failure is None:
        return _trial(change, ranks, "passes", "", seconds)
    same = _base(result.failure.step) == _base(failure.step)
    return _trial(change, ranks, "fails" if same else "fails_otherwise", result.failure.summary, seconds)


def _base(step: str) -> str:
    return step.removesuffix(" bandwidth").partition(" +")[0]


def _trial(change: Change, ranks: int, outcome: str, detail: str, seconds: float = 0.0) -> BisectTrial:
    return msgspec.convert(
        {
            "change": change.what,
            "environment": change.environment,
            "ranks": ranks,
            "devices": change.devices,
            "outcome": outcome,
            "detail": detail,
            "seconds": round(seconds, 1),
        },
        BisectTrial,
    )


def conclude(changes: Sequence[Change], trials: Sequence[BisectTrial]) -> Iterator[str]:
    """What the trials say together, the plainest first. Never a setting as a cure: it shows where to look."""
    done = [(change, trial) for change, trial in zip(changes, trials, strict=True) if trial.outcome != "not_run"]
    if done and done[0][1].outcome == "passes" and not (done[0][0].environment or done[0][0].ranks):
        yield "Repeated unchanged the step passes: it does not fail every time, so no change proves much."
        return
    for change, trial in done:
        if change.environment and trial.outcome == "passes":
            yield f"It passes {'' if change.what.startswith('without') else 'with '}{change.what}. {change.advice}"
    yield from _about_devices([trial for _, trial in done if trial.devices])
    for change, trial in done:
        if change.ranks and not change.devices and trial.outcome == "passes":
            yield f"It passes with {change.what}: it depends on how many take part."
            break
    if done and all(trial.outcome != "passes" for _, trial in done):
        yield "No change makes it pass: what all trials share is at fault, or the deadline is too short."


def _about_devices(trials: Sequence[BisectTrial]) -> Iterator[str]:
    alone = {trial.devices[0]: trial.outcome for trial in trials if len(trial.devices) == 1}
    pairs = {trial.devices: trial.outcome for trial in trials if len(trial.devices) == 2}
    sick = [device for device, outcome in alone.items() if outcome != "passes"]
    if sick and len(sick) < len(alone):
        yield f"GPU {', '.join(map(str, sick))} fails by itself; the others do not."
        return
    failing = [pair for pair, outcome in pairs.items() if outcome != "passes"]
    if not failing or len(failing) == len(pairs):
        return
    guilty = [
        device
        for device in sorted({device for pair in pairs for device in pair})
        if all((outcome != "passes") == (device in pair) for pair, outcome in pairs.items())
    ]
    if guilty:
        yield f"Every pair with GPU {guilty[0]} fails and every other pair passes: GPU {guilty[0]} or its links."
    else:
        named = ", ".join(f"{a}-{b}" for a, b in failing)
        yield f"Between these GPUs it fails, between the others it passes: {named}."
