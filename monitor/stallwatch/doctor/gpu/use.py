"""Who uses which GPU: left-over processes, visible devices against local ranks, two ranks on one GPU."""

from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.environment.job_size import local_ranks
from stallwatch.doctor.gpu.device_state import gpu_state, label
from stallwatch.doctor.process_table import command_of, process_state
from stallwatch.doctor.surroundings import NamedEnvironment, RankFacts, Surroundings
from stallwatch.model.gpu import Gpu

_HELD_BYTES = 1 << 30  # contexts of monitors take some hundred MiB
# nvidia-persistenced, DCGM, Xorg and the like hold devices for good reasons.
_DAEMONS = ("nvidia-", "nv-", "dcgm", "Xorg", "gnome-shell", "Xwayland")


class LeftOverProcesses:
    """By NVML's memory in use and the processes that compute; Inapplicable while a rank runs here."""

    name: ClassVar[str] = "gpu_left_over"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "GPU memory held while no rank runs here, and by whom"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each GPU whose memory is held, with the processes that hold it as far as they are seen."""
        state = gpu_state(surroundings)
        if any(rank.alive for rank in surroundings.ranks):
            raise Inapplicable("a job runs here")
        found = []
        for gpu in state.gpus:
            if (gpu.memory_used_bytes or 0) < _HELD_BYTES:
                continue
            holders = [
                f"pid {pid} ({command_of(surroundings.proc, pid) or 'not visible from here'}"
                f"{', state ' + held if (held := process_state(surroundings.proc, pid)) else ''})"
                for pid in gpu.compute_pids or ()
                if not command_of(surroundings.proc, pid).split("/")[-1].startswith(_DAEMONS)
            ]
            gib = (gpu.memory_used_bytes or 0) / (1 << 30)
            found.append(
                finding(
                    self, "warning", label(gpu),
                    seen=f"{gib:.1f} GiB are in use"
                    + (f" by {', '.join(holders)}." if holders else ", and NVML names no process."),
                    why="One rank then has less memory than the others: it fails alone with \"out of memory\" and the "
                    "others wait for it.",
                    remedy=f"kill {' '.join(str(pid) for pid in gpu.compute_pids)}  (after a look: ps -o "
                    f"pid,ppid,stat,user,cmd -p {','.join(str(pid) for pid in gpu.compute_pids)})"
                    if gpu.compute_pids
                    else "look for processes of other containers on the host: `fuser -v /dev/nvidia*`",
                )
            )  # fmt: skip
        return tuple(found)


class VisibleDevices:
    """Compares each environment's names with NVML's GPUs; where NVML does not answer the names are still counted."""

    name: ClassVar[str] = "visible_devices"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = (
        "CUDA_VISIBLE_DEVICES with devices that are not there, twice the same, or fewer than local ranks"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Findings for each environment whose CUDA_VISIBLE_DEVICES names what is not there or names it twice. Raise as
        NVML does where nothing could be compared."""
        try:
            gpus: tuple[Gpu, ...] | None = gpu_state(surroundings).gpus
        except (Inapplicable, Undetermined):
            gpus = None  # how many names there are can be counted without them
        found = tuple(
            record
            for environment in surroundings.environments
            if not environment.is_file and (value := environment.values.get("CUDA_VISIBLE_DEVICES")) is not None
            for record in self._one(surroundings, environment, value, gpus)
        )
        if not found and gpus is None:
            gpu_state(surroundings)  # says why nothing could be compared
        return found

    def _one(
        self, surroundings: Surroundings, environment: NamedEnvironment, value: str, gpus: tuple[Gpu, ...] | None
    ) -> Iterator[FindingRecord]:
        entries = [entry.strip() for entry in value.split(",") if entry.strip()]
        named: list[object] = list(entries)
        if gpus is not None:
            indexes = [_index(entry, [gpu.uuid for gpu in gpus]) for entry in entries]
            missing = [entry for entry, index in zip(entries, indexes, strict=True) if index is None]
            if missing:
                yield finding(
                    self, "error", environment.place,
                    seen=f"CUDA_VISIBLE_DEVICES={value}: {', '.join(missing)} is not on this node "
                    f"({count(len(gpus), 'GPU')}).",
                    why="CUDA stops reading at the first entry that does not exist: \"invalid device ordinal\" on "
                    "later ranks, and the others wait for them.",
                    remedy="export CUDA_VISIBLE_DEVICES=" + ",".join(str(gpu.index) for gpu in gpus),
                    source="CUDA programming guide",
                )  # fmt: skip
                return
            named = list(indexes)
        if len(set(named)) < len(named):
            yield finding(
                self, "error", environment.place,
                seen=f"CUDA_VISIBLE_DEVICES={value} names a GPU twice.",
                why="CUDA then shows no device at all.",
                remedy="name each GPU once",
                source="CUDA programming guide",
            )  # fmt: skip
            return
        yield from self._ranks(surroundings, environment, len(entries))

    def _ranks(
        self, surroundings: Surroundings, environment: NamedEnvironment, visible: int
    ) -> Iterator[FindingRecord]:
        said = local_ranks(environment.values)
        ranks, least = (said, 2) if said else (surroundings.question.local_ranks or 0, 1)
        least = 2 if environment.rank is not None else least
        # One device for each rank (set by Slurm or Ray) is as right as all devices for all; what a launcher's shell
        # says is for all of its ranks.
        if least <= visible < ranks:
            rank = environment.values.get("LOCAL_RANK", "")
            yield finding(
                self, "error", environment.place,
                seen=f"{count(visible, 'GPU')} {'is' if visible == 1 else 'are'} visible to {ranks} local ranks"
                + (f" (LOCAL_RANK={rank})." if rank else "."),
                why="cuda:LOCAL_RANK does not exist for some ranks, or two of them share a GPU, which NCCL answers "
                "with an error or a hang.",
                remedy=f"torchrun --nproc-per-node={visible}, or make {ranks} GPUs visible",
            )  # fmt: skip


def _index(entry: str, uuids: list[str]) -> int | None:
    if entry.isdigit():
        return int(entry) if int(entry) < len(uuids) else None
    if entry.startswith("MIG-"):
        return hash(entry)  # an instance: not counted by NVML's devices
    return next((index for index, uuid in enumerate(uuids) if uuid and uuid.startswith(entry)), None)


class SharedGpu:
    """Compares living ranks with NVML's processes; Inapplicable where no rank runs here."""

    name: ClassVar[str] = "shared_gpu"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "two ranks of one job that compute on the same GPU"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each GPU on which two ranks of a job compute."""
        state = gpu_state(surroundings)
        ranks = {rank.pid: rank for rank in surroundings.ranks if rank.alive}
        if not ranks:
            raise Inapplicable("no rank runs here")
        found = []
        # A rank that forgot set_device has a context on GPU 0 besides its own: its own is the one that it uses alone.
        devices: dict[int, int] = defaultdict(int)
        for gpu in state.gpus:
            for pid in gpu.compute_pids or ():
                devices[pid] += 1
        for gpu in state.gpus:
            here = [ranks[pid] for pid in gpu.compute_pids or () if pid in ranks]
            for job in _by_job(here):
                names = ", ".join(f"{rank.rank} (pid {rank.pid})" for rank in job)
                strays = [rank for rank in job if devices[rank.pid] > 1]
                stray_names = ", ".join(str(rank.rank) for rank in strays)
                found.append(
                    finding(
                        self, "warning" if strays else "error", label(gpu),
                        seen=f"Ranks {names} are on this GPU"
                        + (f"; rank {stray_names} also on another." if strays else "."),
                        why="A context on GPU 0 beside the own one takes its memory; the first rank runs out of it "
                        "alone."
                        if strays
                        else "NCCL does not support one GPU for two ranks of a communicator: \"Duplicate GPU "
                        "detected\", or a hang.",
                        remedy="torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before init_process_group, and "
                        "init_process_group(device_id=…)",
                        source="NCCL user guide, Creating a Communicator",
                    )
                )  # fmt: skip
        return tuple(found)


def _by_job(ranks: list[RankFacts]) -> list[list[RankFacts]]:
    jobs: dict[tuple[str, ...], list[RankFacts]] = defaultdict(list)
    for rank in sorted(ranks, key=lambda one: one.rank):
        jobs[rank.job].append(rank)
    return [job for job in jobs.values() if len({rank.rank for rank in job}) > 1]
