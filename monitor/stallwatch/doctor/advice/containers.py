"""Containers whose shared memory was set, and too small."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from stallwatch.doctor.advice.named_files import Line, Part, commands, parts
from stallwatch.doctor.advice.scripts import texts
from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings

_SIZE: Final = r"[\"']?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KkMmGgTt]?)(?:i?[Bb]?)\b"
# Docker, Podman, Compose; a tmpfs that is mounted there; a memory volume of Kubernetes, whose unit is Mi or Gi.
_FORMS: Final = (
    re.compile(rf"--shm-size(?:=|\s+){_SIZE}"),
    re.compile(rf"^\s*[\"']?shm_size[\"']?\s*:\s*{_SIZE}"),
    re.compile(rf"/dev/shm\b[^\n]*\bsize={_SIZE}"),
    re.compile(rf"\bsize={_SIZE}[^\n]*\s/dev/shm\b"),
    re.compile(rf"^\s*-?\s*tmpfs-size={_SIZE}"),
)
_OF_VOLUME: Final = re.compile(rf"\bsizeLimit\s*:\s*{_SIZE}")
_MEMORY_VOLUME: Final = re.compile(r"\bmedium\s*:\s*[\"']?Memory\b")
_VOLUME: Final = re.compile(r"\bemptyDir\b|^\s*-\s")
_HOST_IPC: Final = re.compile(
    r"--ipc(?:=|\s+)(?:host|container|service)|^\s*ipc\s*:\s*[\"']?host|hostIPC:\s*true", re.M
)
# A container of anything else may be content with little.
_TRAINS: Final = re.compile(
    r"--gpus\b|nvidia|\btorch|deepspeed|accelerate|\bcuda\b|\btrain\w*|mpirun|python[\d.]*\s+\S+\.py", re.IGNORECASE
)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_BYTES: Final = 1 << 30
_NEAR: Final = 4  # lines between a volume's medium and its limit


class SharedMemorySize:
    """Reads shell and prose parts of scripts, manifests and guides, each size by itself."""

    name: ClassVar[str] = "shared_memory_size"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = "in launch scripts and manifests: containers with less than 1 GiB of shared memory"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each line that gives a container less shared memory than its ranks need."""
        return tuple(
            self._finding(path, number, size, line)
            for path, text in texts(surroundings)
            for part in parts(path, text)
            if part.language in ("shell", "prose")
            for number, size, line in _too_small(part)
        )

    def _finding(self, path: Path, number: int, size: float, line: str) -> FindingRecord:
        return finding(
            self, "warning", f"{path}:{number}",
            seen=f"{_shown(size)} of shared memory for a training container: {line.strip()[:120]}",
            why="Data-loader workers hand their batches over in /dev/shm and die of a full one (\"Bus error\"); NCCL "
            "places its buffers between GPUs of one node there."
            + (" Without a unit the number is bytes." if size < _UNITS["m"] else ""),
            remedy="docker run --ipc=host, or --shm-size=16g; Compose: shm_size: 16gb; Kubernetes: emptyDir: {medium: "
            "Memory, sizeLimit: 16Gi} at /dev/shm",
            source="PyTorch documentation, Docker image; NCCL user guide, Shared memory",
        )  # fmt: skip


def _too_small(part: Part) -> Iterator[tuple[int, float, str]]:
    lines = list(commands(part))
    whole = "\n".join(line for _, line in lines)
    if not _TRAINS.search(whole):
        return
    for at, (number, line) in enumerate(lines):
        match = next((match for form in _FORMS if (match := form.search(line))), None)
        if match is None and (found := _OF_VOLUME.search(line)) and _is_of_memory(lines, at) and "/dev/shm" in whole:
            match = found
        is_command = re.search(r"\b(?:docker|podman|nerdctl|nvidia-docker)\b", line) is not None
        around = line if is_command else whole
        if match is None or _HOST_IPC.search(around) or not _TRAINS.search(around):
            continue
        size = float(match["number"]) * _UNITS[match["unit"].lower()]
        if size < _LEAST_BYTES:
            yield number, size, line


def _is_of_memory(lines: list[Line], at: int) -> bool:
    """Whether the volume whose limit this line tells lies in memory: its other keys stand around it."""
    first = next((i for i in range(at, max(-1, at - _NEAR), -1) if _VOLUME.search(lines[i][1])), at)
    last = next((i for i in range(at + 1, min(len(lines), at + _NEAR)) if _VOLUME.search(lines[i][1])), at + 1)
    return any(_MEMORY_VOLUME.search(line) for _, line in lines[first:last])


def _shown(size: float) -> str:
    for unit, name in (("g", "GiB"), ("m", "MiB"), ("k", "KiB")):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:g} {name}"
    return f"{size:g} bytes"
