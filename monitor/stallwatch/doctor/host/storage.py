"""Room and locks on disk: shared memory, dumps, checkpoints, build locks, caches on network file systems."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.process_table import open_files, pids
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings
from stallwatch.model.file_systems import is_fuse, is_shared
from stallwatch.model.reading import Known

_MIB, _GIB = 1 << 20, 1 << 30
# Docker gives 64 MiB; a data-loader worker keeps some batches in flight, NCCL 10 to 40 MiB per pair of GPUs.
_SHM_MINIMUM_BYTES, _SHM_PER_WORKER_BYTES, _SHM_FREE_BYTES = _GIB, 256 * _MIB, 64 * _MIB
_DUMPS_BYTES, _CHECKPOINT_BYTES = 256 * _MIB, 5 * _GIB
_LOCK_AGE_SECONDS = 120  # a build that runs holds its lock open, whatever its age
_MOST_FOLDERS = 400


class SharedMemory:
    """Needs more for each data-loader worker of `--workers`; an error where /dev/shm cannot be asked."""

    name: ClassVar[str] = "shared_memory"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "/dev/shm too small or too full for data-loader workers and NCCL (containers get 64 MiB)"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding where /dev/shm is smaller, or has less room, than workers and NCCL need."""
        reading = surroundings.disks.space("/dev/shm")
        if not isinstance(reading, Known):
            return (
                finding(
                    self, "error", "/dev/shm",
                    seen=f"{reading.reason}.",
                    why="Data-loader workers pass tensors, and NCCL data between GPUs without P2P, through it.",
                    remedy="mount -t tmpfs -o size=50% tmpfs /dev/shm",
                ),
            )  # fmt: skip
        space = reading.value
        workers = (surroundings.question.workers or 0) * max(1, surroundings.question.local_ranks or 1)
        need = max(_SHM_MINIMUM_BYTES, workers * _SHM_PER_WORKER_BYTES)
        size = f"{space.total_bytes / _MIB:.0f} MiB, {space.free_bytes / _MIB:.0f} MiB free"
        why = (
            'A data-loader worker dies of SIGBUS or waits ("insufficient shared memory (shm)"), NCCL fails with "No '
            "space "
            'left on device"; the other ranks wait.'
        )
        if space.total_bytes < need:
            return (
                finding(
                    self, "error" if space.total_bytes < 128 * _MIB else "warning", "/dev/shm",
                    seen=f"/dev/shm has {size}"
                    + (f"; {count(workers, 'worker')} may need {need / _GIB:.1f} GiB." if workers else "."),
                    why=why,
                    remedy=f"docker run --shm-size={max(8, round(need / _GIB))}g (or --ipc=host); Kubernetes: an "
                    "emptyDir with medium: Memory at /dev/shm; a host: mount -o remount,size=50% /dev/shm",
                    source="pytorch#1355, pytorch#5040",
                ),
            )  # fmt: skip
        if space.free_bytes < _SHM_FREE_BYTES:
            return (
                finding(
                    self, "error", "/dev/shm",
                    seen=f"/dev/shm is full: {size}.",
                    why=why,
                    remedy="ls -la /dev/shm; remove torch_*, nccl-*, psm_* and sem.* files that no process has open "
                    "(fuser -v)",
                ),
            )  # fmt: skip
        return ()


class DiskSpace:
    """Asks each such folder that environments and living ranks name, by how many bytes each needs."""

    name: ClassVar[str] = "disk_space"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = (
        "folders for dumps, temporary files and checkpoints that are full, read-only, or do not answer"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each folder that lacks room for its purpose, or cannot be asked."""
        return tuple(
            record
            for path, purpose, need in self._folders(surroundings)
            for record in self._one(surroundings, path, purpose, need)
        )

    def _folders(self, surroundings: Surroundings) -> Iterator[tuple[str, str, int]]:
        seen = set()
        for environment in surroundings.environments:
            for name in (
                "TORCH_FR_DUMP_TEMP_FILE",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
            ):
                folder = os.path.dirname(environment.values.get(name, ""))
                if folder and (folder, name) not in seen:
                    seen.add((folder, name))
                    yield folder, name, _DUMPS_BYTES if "PIPE" not in name else 0
        said = surroundings.variable("TMPDIR")
        yield (said[0] if said else "/tmp"), "temporary files", _DUMPS_BYTES
        for folder in sorted({rank.working_directory for rank in surroundings.ranks if rank.alive} - {""}):
            yield folder, "the job's folder, where checkpoints usually go", _CHECKPOINT_BYTES

    def _one(self, surroundings: Surroundings, path: str, purpose: str, need: int) -> Iterator[FindingRecord]:
        is_pipe = "PIPE" in purpose
        reading = surroundings.disks.space(path)
        if not isinstance(reading, Known):
            yield finding(
                self, "error", path,
                seen=f"{purpose}: {reading.reason}.",
                why="PyTorch aborts the rank when it cannot make its dump pipe there."
                if is_pipe
                else "What is written there is lost, or its writer hangs and the other ranks wait.",
                remedy=f"mkdir -p {path}, or choose another folder; if the server does not answer: nfsstat, mount | "
                f"grep {path}",
            )  # fmt: skip
        elif not reading.value.writable and surroundings.user_id != 0:
            yield finding(
                self, "error" if is_pipe else "warning", path,
                seen=f"{purpose}: this user may not write to {path}.",
                why="PyTorch aborts the rank when it cannot make its dump pipe there."
                if is_pipe
                else "Dumps or checkpoints cannot be written.",
                remedy=f"choose another folder, or chown it: ls -ld {path}",
            )  # fmt: skip
        elif reading.value.free_bytes < need:
            yield finding(
                self, "warning", path,
                seen=f"{purpose}: {reading.value.free_bytes / _MIB:.0f} MiB are free.",
                why="A rank that cannot write its checkpoint or dump fails or waits, and the others with it.",
                remedy=f"df -h {path}; make room, or choose another folder",
            )  # fmt: skip


def build_folders(surroundings: Surroundings) -> Iterator[tuple[str, NamedEnvironment | None, str]]:
    """(path, who sets it, what it is) of caches in which ranks build code."""
    for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        said = surroundings.variable(name)
        if said:
            yield said[0], said[1], name
    home = surroundings.variable("HOME")
    cache = surroundings.variable("XDG_CACHE_HOME")
    base = cache[0] if cache else (f"{home[0]}/.cache" if home else "")
    if base and not surroundings.variable("TORCH_EXTENSIONS_DIR"):
        yield f"{base}/torch_extensions", None, "torch_extensions"
    if home and not surroundings.variable("TRITON_CACHE_DIR"):
        yield f"{home[0]}/.triton/cache", None, "Triton's cache"


class StaleBuildLocks:
    """A lock that a living process holds open is a build under way, and none of them."""

    name: ClassVar[str] = "stale_build_lock"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = (
        "locks of torch.utils.cpp_extension that a killed build left: every later import waits for ever"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each lock of a build that nobody makes any more: the next build waits for it for ever."""
        locks = [
            path
            for folder, _, name in build_folders(surroundings)
            if name in ("TORCH_EXTENSIONS_DIR", "torch_extensions")
            for path in self._locks(surroundings.root / folder.lstrip("/"))
        ]
        held: set[str] = set()
        if locks:
            held = {target for pid in pids(surroundings.proc) for target in open_files(surroundings.proc, pid)}
        found = []
        for path in locks:
            try:
                age = surroundings.now_seconds - path.stat().st_mtime
            except OSError:
                continue
            # FileBaton keeps its file open from creating it until it removes it.
            if str(path.resolve()) in held or age < _LOCK_AGE_SECONDS:
                continue
            found.append(
                finding(
                    self, "error", str(path),
                    seen=f"A build lock, {_age(age)} old, that no process has open.",
                    why="torch.utils.cpp_extension (DeepSpeed's ops among others) waits until this file goes away: the "
                    "job hangs at import, in FileBaton.wait.",
                    remedy=f"rm {path}",
                    source="torch/utils/file_baton.py",
                )
            )  # fmt: skip
        return tuple(found)

    def _locks(self, folder: Path) -> Iterator[Path]:
        """`<folder>/<extension>/lock`, one level deeper where torch adds Python and CUDA versions."""
        yield from list(folder.glob("*/lock"))[:_MOST_FOLDERS]
        yield from list(folder.glob("*/*/lock"))[:_MOST_FOLDERS]


class NetworkCaches:
    """By the mount table; Inapplicable where that cannot be read. Folders nobody named count where they are there."""

    name: ClassVar[str] = "network_cache"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "build caches (Triton, torch extensions) on a network file system"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each build cache that lies on a network file system."""
        mounts = mount_types(surroundings)
        if not mounts:
            raise Inapplicable("the mounts are not readable")
        found = []
        for path, environment, name in build_folders(surroundings):
            kind = _filesystem(mounts, path)
            if (is_shared(kind) or is_fuse(kind)) and (
                environment is not None or (surroundings.root / path.lstrip("/")).is_dir()
            ):
                variable = {"torch_extensions": "TORCH_EXTENSIONS_DIR", "Triton's cache": "TRITON_CACHE_DIR"}.get(
                    name, name
                )
                found.append(
                    finding(
                        self, "warning" if environment else "info", environment.place if environment else path,
                        seen=f"{name} is {path}, on {kind}.",
                        why="Ranks of all nodes build into one folder: renames and locks race, and a rank can wait for "
                        "a lock that another node's dead process holds.",
                        remedy=f"export {variable}=/tmp/$USER/{variable.lower()}",
                        source="DeepSpeed#5205",
                    )
                )  # fmt: skip
        return tuple(found)


def mount_types(surroundings: Surroundings) -> dict[str, str]:
    """Mount points with their file system, by proc_pid_mountinfo(5)."""
    mounts = {}
    for line in (surroundings.text("/proc/self/mountinfo") or "").splitlines():
        fields, separator, rest = line.partition(" - ")
        words = fields.split()
        if separator and len(words) > 4:
            mounts[words[4].replace("\\040", " ")] = rest.split(" ")[0]
    return mounts


def _filesystem(mounts: dict[str, str], path: str) -> str:
    folder = os.path.normpath(path)
    while folder not in mounts and folder not in ("/", ""):
        folder = os.path.dirname(folder)
    return mounts.get(folder or "/", "")


def _age(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
