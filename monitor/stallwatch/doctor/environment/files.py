"""Variables that name a file or a library of NCCL: whether it is there. NCCL goes on without most of them, silently."""

import os
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, Severity
from stallwatch.doctor.gpu.device_state import gpu_state
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings


class _Named(NamedTuple):
    severity: Severity
    why: str


_TOPOLOGY = _Named(
    "warning",
    "NCCL then finds out the node's shape by itself: in a virtual machine it is wrong, and nodes that find other "
    "shapes choose other algorithms.",
)
_FILES = {
    "NCCL_TOPO_FILE": _TOPOLOGY,
    "NCCL_GRAPH_FILE": _Named("error", 'NCCL ends with "Could not open XML graph file" at the first communicator.'),
    "NCCL_CONF_FILE": _Named(
        "warning", "NCCL goes on without its settings, and reads ~/.nccl.conf neither: this variable takes its place."
    ),
}
# The value is the library, or the word in "libnccl-net-WORD.so".
_PLUGINS = {
    "NCCL_NET_PLUGIN": ("libnccl-net-{}.so", "NCCL falls back to its own InfiniBand or sockets on this node: slow "
                        "(EFA, GPUDirect-TCPX), or a hang where the other nodes have it."),
    "NCCL_TUNER_PLUGIN": ("libnccl-tuner-{}.so", "NCCL tunes by itself on this node; ranks that are tuned differently "
                          "wait for each other."),
    "NCCL_PROFILER_PLUGIN": ("libnccl-profiler-{}.so", "Nothing is profiled."),
}  # fmt: skip
_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
            "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu")  # fmt: skip
_CACHE = "/etc/ld.so.cache"


class NamedFiles:
    """Looks for the files of environments that see our file system; a node without GPUs need not have them, and gets
    infos."""

    name: ClassVar[str] = "named_file"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "NCCL_TOPO_FILE, NCCL_GRAPH_FILE, NCCL_CONF_FILE, NCCL_NET_PLUGIN, NCCL_TUNER_PLUGIN, LD_PRELOAD that name "
        "nothing that is here"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each file, plug-in or preloaded library that an environment names and that is not there or not
        readable."""
        found = tuple(
            record
            for environment in surroundings.environments
            if _sees_our_files(surroundings, environment)
            for record in (
                *self._files(surroundings, environment),
                *self._plugins(surroundings, environment),
                *self._preloaded(surroundings, environment),
            )
        )
        # A node without GPUs (a login node, a CI machine) need not have what those with GPUs have.
        return found if not found or _has_gpus(surroundings) else tuple(replace(one, severity="info") for one in found)

    def _files(self, surroundings: Surroundings, environment: NamedEnvironment) -> Iterator[FindingRecord]:
        for name, named in _FILES.items():
            path = environment.values.get(name)
            # NCCL opens an empty graph file's name too.
            if path is None or (not path and name != "NCCL_GRAPH_FILE") or _is_there(surroundings, path):
                continue
            yield finding(
                self, named.severity, environment.place,
                seen=f"{name}={path}: there is no such file" + (" (NCCL does not know ~)." if path[:1] == "~" else "."),
                why=named.why,
                remedy=f"ls -l {path or name}; unset {name}, or name a file that every node has",
                source="NCCL user guide",
            )  # fmt: skip

    def _plugins(self, surroundings: Surroundings, environment: NamedEnvironment) -> Iterator[FindingRecord]:
        for name, (pattern, why) in _PLUGINS.items():
            value = environment.values.get(name, "")
            for word in filter(None, (one.strip() for one in value.split(","))):
                if word.lower() == "none" or word.startswith("STATIC"):
                    continue
                names = (word,) if "/" in word else (word, pattern.format(word))
                if any(_library(surroundings, environment, one) for one in names):
                    continue
                yield finding(
                    self, "warning", environment.place,
                    seen=f"{name}={value}: {' or '.join(names)} is neither in LD_LIBRARY_PATH nor known to the loader."
                    if "/" not in word
                    else f"{name}={value}: there is no {word}.",
                    why=why,
                    remedy=f"find / -name '{os.path.basename(names[-1])}' 2>/dev/null; add its folder to "
                    f"LD_LIBRARY_PATH (in the container too), or unset {name}",
                    source=f"NCCL user guide, {name}",
                )  # fmt: skip

    def _preloaded(self, surroundings: Surroundings, environment: NamedEnvironment) -> Iterator[FindingRecord]:
        for path in environment.values.get("LD_PRELOAD", "").replace(":", " ").split():
            if "/" in path and "$" not in path and not _is_there(surroundings, path):
                yield finding(
                    self, "warning", environment.place,
                    seen=f"LD_PRELOAD={path}: there is no such file.",
                    why="The loader says \"cannot be preloaded: ignored\" and goes on without it, on this node.",
                    remedy="unset LD_PRELOAD, or install that library on every node",
                    source="ld.so(8)",
                )  # fmt: skip


def _sees_our_files(surroundings: Surroundings, environment: NamedEnvironment) -> bool:
    """Not so for a rank in a container, whose files are others."""
    if environment.pid is None:
        return True
    try:
        return os.readlink(surroundings.proc / str(environment.pid) / "ns/mnt") == os.readlink(
            surroundings.proc / "self/ns/mnt"
        )
    except OSError:
        return False


def _has_gpus(surroundings: Surroundings) -> bool:
    try:
        return bool(gpu_state(surroundings).gpus)
    except (Inapplicable, Undetermined):
        return False


def _is_there(surroundings: Surroundings, path: str) -> bool:
    """Also true where nobody can tell: a folder that is not ours to read, a path that is relative to the job's."""
    if path and not path.startswith(("/", "~")):
        return True
    try:
        (surroundings.root / path.lstrip("/")).stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return bool(path)


def _library(surroundings: Surroundings, environment: NamedEnvironment, name: str) -> bool:
    if "/" in name:
        return _is_there(surroundings, name)
    own = (environment.values.get("LD_LIBRARY_PATH") or (surroundings.variable("LD_LIBRARY_PATH") or ("",))[0]).split(
        ":"
    )
    if any(folder and _is_there(surroundings, f"{folder}/{name}") for folder in (*own, *_FOLDERS)):
        return True
    return name in (surroundings.text(_CACHE) or "")
