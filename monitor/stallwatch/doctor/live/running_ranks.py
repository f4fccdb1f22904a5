"""Ranks that run on this node: the facts that hooks wrote, and environments of processes that name a rank."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stallwatch.doctor.process_table import ancestors, environment_of, pids, process_state, read, uid_of
from stallwatch.doctor.surroundings import NamedEnvironment, RankFacts
from stallwatch.hook.secrets import HIDDEN, is_secret, scrubbed_argv, scrubbed_value
from stallwatch.model.process import ENDED
from stallwatch.node import untrusted
from stallwatch.sensors.environ import rank_names
from stallwatch.sensors.hookless import is_launcher

_GONE = ENDED | {""}
# Variables that checks ask about; nothing else of another process' environment is any business of ours.
_PREFIXES = (
    "NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "TP_SOCKET_", "CUDA_", "PYTORCH_", "ACCELERATE_", "DS_", "DEEPSPEED_",
    "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "SLURM_", "TRITON_",
)  # fmt: skip
_NAMES = frozenset(
    ("RANK", "WORLD_SIZE", "NODE_RANK", "OMP_NUM_THREADS", "LD_PRELOAD", "HOME", "TMPDIR", "XDG_CACHE_HOME")
)

_FACTS = re.compile(r"rank-(\d+)-(\d+)(?:-[0-9a-f]{16})?\.(?:[0-9a-f]{16}\.)?facts\.json")  # hook.layout.facts_name
_LIMIT_BYTES = 1 << 20
_SHOWN_RANKS = 16  # a node has no more; a test machine that has is not told each of them


def running_ranks(proc: Path, directories: tuple[Path, ...]) -> tuple[RankFacts, ...]:
    """Every rank that runs here, by its hook's facts where there are any, else by its environment."""
    with_facts = {facts.pid: facts for directory in directories for facts in _facts(proc, directory)}
    found = {pid: facts for pid, facts in with_facts.items() if facts.alive}
    for pid in pids(proc):
        if pid not in found and (facts := _by_environment(proc, pid)) is not None:
            found[pid] = facts
    # A worker of a data loader inherits its rank's variables: the topmost process is the rank.
    return tuple(
        sorted(
            (facts for pid, facts in found.items() if not _is_below(proc, pid, facts, found)),
            key=lambda one: (one.environment.get("MASTER_PORT", ""), one.rank),
        )[:_SHOWN_RANKS]
    )


def rank_environments(ranks: tuple[RankFacts, ...]) -> Iterator[NamedEnvironment]:
    """Given ranks of this node, yield the environment of each with the rank's name and pid as its place."""
    for rank in ranks:
        yield NamedEnvironment(f"rank {rank.rank} (pid {rank.pid})", rank.environment, rank.rank, rank.pid)


def _is_below(proc: Path, pid: int, facts: RankFacts, found: Mapping[int, RankFacts]) -> bool:
    return any(
        parent in found and found[parent].rank == facts.rank
        and found[parent].environment.get("MASTER_PORT") == facts.environment.get("MASTER_PORT")
        for parent in ancestors(proc, pid)
    )  # fmt: skip


def _facts(proc: Path, directory: Path) -> Iterator[RankFacts]:
    try:
        names = os.listdir(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in sorted(names):
            match = _FACTS.fullmatch(name)
            if match is None:
                continue
            try:
                data, status = untrusted.read_regular(descriptor, name, _LIMIT_BYTES)
                said = json.loads(data)
                owner = os.stat(proc / match[2]).st_uid
            except (OSError, ValueError, untrusted.FileRefused):
                continue
            if isinstance(said, dict) and owner in (status.st_uid, 0):
                yield _from_facts(proc, int(match[1]), int(match[2]), said)
    finally:
        os.close(descriptor)


def _from_facts(proc: Path, rank: int, pid: int, said: dict[str, Any]) -> RankFacts:
    environment = _texts(said.get("environment"))
    return RankFacts(
        rank=rank,
        pid=pid,
        local_rank=_number(environment.get("LOCAL_RANK")),
        world_size=_number(environment.get("WORLD_SIZE")),
        environment=environment,
        versions=_texts(said.get("versions")),
        argv=tuple(str(one) for one in said.get("argv") or ()),
        working_directory=str(said.get("working_directory") or ""),
        executable=str(said.get("executable") or ""),
        alive=process_state(proc, pid) not in _GONE,
        uid=uid_of(proc, pid),
        network=_link(proc / str(pid) / "ns" / "net"),
    )


def _by_environment(proc: Path, pid: int) -> RankFacts | None:
    values = environment_of(proc, pid)
    names = rank_names(values)
    if names is None or process_state(proc, pid) in _GONE or not _computes(proc, pid):
        return None
    argv = [part.decode("utf-8", "replace") for part in (read(proc / str(pid) / "cmdline") or b"").split(b"\0") if part]
    if is_launcher(argv):
        return None
    return RankFacts(
        rank=names.rank,
        pid=pid,
        local_rank=names.local_rank,
        world_size=names.world_size,
        environment={
            name: HIDDEN if is_secret(name) else scrubbed_value(value)
            for name, value in values.items()
            if name in _NAMES or name.startswith(_PREFIXES)
        },
        versions={},
        argv=tuple(scrubbed_argv(argv)),
        working_directory=_link(proc / str(pid) / "cwd"),
        executable=_interpreter(argv, values, _link(proc / str(pid) / "exe")),
        alive=True,
        uid=uid_of(proc, pid),
        network=_link(proc / str(pid) / "ns" / "net"),
    )


def _computes(proc: Path, pid: int) -> bool:
    """Whether libtorch or a GPU library is loaded: shells and tools inherit a rank's variables too."""
    maps = read(proc / str(pid) / "maps") or b""
    return b"libtorch" in maps or b"libcuda.so" in maps or b"libnccl" in maps


def _interpreter(argv: list[str], values: Mapping[str, str], executable: str) -> str:
    """As it was called: the link in /proc is resolved, and has lost the virtual environment."""
    called = argv[0] if argv else ""
    if os.path.basename(called).startswith("python"):
        found = called if called.startswith("/") else shutil.which(called, path=values.get("PATH", ""))
        return found or executable
    return executable


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): text for name, text in value.items() if isinstance(text, str)}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
