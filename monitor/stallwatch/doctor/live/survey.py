"""Puts the real surroundings together."""

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from stallwatch.doctor.live.disks import NodeDisks
from stallwatch.doctor.live.lost import Promise
from stallwatch.doctor.live.network import DnsResolver, NodeSockets
from stallwatch.doctor.live.probes import ChildCommands, NvmlChild, TrainingChild, WrittenVersions
from stallwatch.doctor.live.running_ranks import rank_environments, running_ranks
from stallwatch.doctor.surroundings import NamedEnvironment, Question, RankFacts, Surroundings, TrainingProbe
from stallwatch.model.reading import Known

_RANKS_SECONDS = 1.5


def survey(
    question: Question,
    environment: Mapping[str, str],
    rank_directories: tuple[Path, ...],
    python: str = "",
    pid: int | None = None,
    root: Path = Path("/"),
    release_file: str | Path = "",
) -> Surroundings:
    """Look at who runs here and start what takes time; nothing is waited for but /proc, and that for 1.5 s at most.

    `python` is the training interpreter; without it a running rank's counts, else our own. With `pid` only that
    process' environment counts, as a rank's. `release_file`: says that GPUs are to be left alone (node.gpu_release).
    """
    gpus = NvmlChild(release_file=release_file)
    # Reading another process' memory map waits while that process is stuck in the kernel.
    reading = Promise(lambda: running_ranks(root / "proc", rank_directories), _RANKS_SECONDS, "/proc").get()
    ranks = reading.value if isinstance(reading, Known) else ()
    if pid is not None:
        ranks = tuple(rank for rank in ranks if rank.pid == pid)
    training = _training(python, ranks, environment)
    own = [rank.environment for rank in ranks if rank.alive and rank.uid == os.geteuid()]
    shell = () if pid is not None and ranks else (NamedEnvironment("this shell", dict(environment)),)
    return Surroundings(
        root=root,
        environments=(*_once(rank_environments(ranks)), *shell, *conf_files(root, environment, *own)),
        ranks=ranks,
        host_name=socket.gethostname(),
        user_id=os.geteuid(),
        resolver=DnsResolver(),
        sockets=NodeSockets(),
        disks=NodeDisks(),
        commands=ChildCommands(),
        gpus=gpus,
        training=training,
        question=question,
        now_seconds=time.time(),
        ranks_unknown="" if isinstance(reading, Known) else reading.reason,
    )


def _training(python: str, ranks: tuple[RankFacts, ...], environment: Mapping[str, str]) -> TrainingProbe:
    """The interpreter to ask. One of another user's is not started, for it would run his code with our rights: what
    his hooks wrote down has to do."""
    if python:
        return TrainingChild(python, environment)
    own = next((rank.executable for rank in ranks if rank.executable and rank.uid == os.geteuid()), "")
    facts = next((rank for rank in ranks if "torch" in rank.versions), None)
    if not own and facts is not None:
        return WrittenVersions(facts)
    return TrainingChild(own or sys.executable, environment)


def _once(environments: Iterator[NamedEnvironment]) -> Iterator[NamedEnvironment]:
    """Ranks of one launcher have the same settings: what all share is said once, of the first."""
    seen: list[dict[str, str]] = []
    for one in environments:
        new = {
            name: value for name, value in one.values.items() if not any(name in s and s[name] == value for s in seen)
        }
        seen.append(dict(one.values))
        yield msgspec.structs.replace(one, values=new)


def conf_files(root: Path, environment: Mapping[str, str], *of_ranks: Mapping[str, str]) -> Iterator[NamedEnvironment]:
    """Settings that no `env` shows: NCCL's own files, where $NCCL_CONF_FILE takes the place of ~/.nccl.conf, and what
    DeepSpeed's launcher sets on every node. `of_ranks`: environments of own ranks, which may name other files."""
    home = environment.get("HOME", "")
    own = environment.get("NCCL_CONF_FILE") or os.path.join(home, ".nccl.conf")
    others = [one["NCCL_CONF_FILE"] for one in of_ranks if one.get("NCCL_CONF_FILE")]
    deepspeed = environment.get("DS_ENV_FILE") or os.path.join(home, ".deepspeed_env")
    # What is set first counts, and the environment before all.
    for path in dict.fromkeys((own, *others, "/etc/nccl.conf", deepspeed)):
        try:
            with open(root / path.lstrip("/"), encoding="utf-8", errors="replace") as file:
                text = file.read(1 << 20)
        except OSError:
            continue
        values = parse_conf(text, verbatim=path != deepspeed)
        if path == deepspeed:  # goes through a shell, which takes quotes away
            values = {name: value.strip("\"'") for name, value in values.items()}
        yield NamedEnvironment(path, values, is_file=True)


def parse_conf(text: str, *, verbatim: bool = False) -> dict[str, str]:
    """Lines NAME=value; "#" begins a comment. With `verbatim` blanks belong to names and values, as for NCCL."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, separator, value = line.partition("=")
        if separator and not name.lstrip().startswith("#"):
            if not verbatim:
                name, value = name.strip(), value.strip()
            values.setdefault(name, value)
    return values
