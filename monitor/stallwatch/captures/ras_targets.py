"""Where to ask NCCL's RAS service: by what the ranks' own environment and NCCL say of port and version."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.nccl_ras import RasAsk, loopback_addresses
from stallwatch.formats.outside_text import name_of
from stallwatch.formats.tcp_table import LISTEN, parse_tcp
from stallwatch.formats.tolerant import decode_json, mapping, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.process import ENDED, STOPPED
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node import rank_files, untrusted
from stallwatch.node.procfs import ENVIRONMENT_LIMIT_BYTES, ProcessDirectory, namespace_of

# Asked below this version the service crashed jobs, and crashed by itself (nccl#1669, #1718, #1996). Where ranks of a
# communicator do not answer it read beyond its memory, in one of the job's processes (nccl#1762, "the fix was included
# in NCCL 2.29.2"; so it is in src/ras/client_support.cc of 2.28.9 and of 2.29.2).
SAFE_VERSION = (2, 29, 2)
_SAFE_WHERE_ALL_ANSWER = (2, 28, 9)
_SAFE = ".".join(map(str, SAFE_VERSION))
_DEFAULT_ADDRESS = "localhost:28028"  # NCCL's own
_MAPS_LIMIT_BYTES = 8 << 20
_FACTS_LIMIT_BYTES = 1 << 20
_SOCKETS_LIMIT_BYTES = 16 << 20
_LIBRARY = re.compile(r" (/\S*/libnccl\.so\S*)")
_LIBRARY_VERSION = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_WHEEL_VERSION = re.compile(r"nvidia_nccl_cu\d+-(\d+\.\d+\.\d+)[^/]*\.dist-info")


def all_answer(targets: Sequence[RankSample]) -> bool:
    """Given all ranks of a job that this node has, return whether these are the whole job, and each lives and is not
    stopped: its service has a thread of its own, which answers whatever the rank waits in."""
    living = {
        rank.rank
        for rank in targets
        if rank.end is None and isinstance(rank.process, Known) and rank.process.value.state not in STOPPED | ENDED
    }
    return bool(targets) and len(living) == len(targets) == targets[0].world_size


def ras_ask(sample: RankSample, mode: str, *, all_answer: bool = False) -> RasAsk:
    """Return where this rank's service listens. Raise NotCaptured with the reason why it is not asked."""
    environment = _environment(sample.pid)
    if environment.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        raise NotCaptured("RAS is off: NCCL_RAS_ENABLE=0", "Unset it; RAS costs nothing while nobody asks.")
    if mode != "always":
        check_version(nccl_version(sample), all_answer=all_answer)
    address = environment.get("NCCL_RAS_ADDR", "").strip() or _DEFAULT_ADDRESS
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not (port.isdecimal() and len(port) <= 5) or not loopback_addresses(host):
        raise NotCaptured(f"NCCL_RAS_ADDR={address} is not on this node's loopback; it is not asked")
    return RasAsk(host, int(port), None if _shares_our_network(sample.pid) else sample.pid)


def answers_for_others(port: int, pids: Sequence[int]) -> bool:
    """Given the port of a service and all live ranks of a job in one network namespace, return whether a process that
    is none of them listens there, or listens there, too.

    NCCL's processes of a job share one service on a node, which one of them offers. Jobs of one user listen on one port
    side by side (NCCL sets SO_REUSEPORT), and each question goes to any of them: of eight jobs in containers that share
    the node's network seven were judged by what others had launched, for their processes had the same pids. False where
    it is not ours to know.
    """
    sockets: set[str] = set()
    try:
        for name in ("net/tcp", "net/tcp6"):
            with contextlib.suppress(ProcessLookupError), ProcessDirectory(pids[0]) as directory:
                table = directory.read_whole(name, _SOCKETS_LIMIT_BYTES).decode("ascii", "replace")
                found = (each for each in parse_tcp(table) if each.state == LISTEN and each.port == port)
                sockets |= {f"socket:[{each.inode}]" for each in found}
        return bool(sockets.difference(*map(_sockets_of, pids)))
    except OSError:
        return False


def _sockets_of(pid: int) -> set[str]:
    """Raise OSError where its descriptors are not ours to read."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def check_version(version: str, *, all_answer: bool = False) -> None:
    """Given NCCL's version, "" where it is not known, raise NotCaptured where its service must not be asked.
    `all_answer`: no rank of its job is missing."""
    if not version:
        raise NotCaptured(
            f"the NCCL of its process is not known, and versions before {_SAFE} may crash when they are asked",
            'capture.nccl_ras = "always" asks all the same.',
        )
    number = tuple(int(part) for part in version.split("."))
    if number < (_SAFE_WHERE_ALL_ANSWER if all_answer else SAFE_VERSION):
        but = " while ranks are missing" if number >= _SAFE_WHERE_ALL_ANSWER else ""
        raise NotCaptured(
            f"NCCL {version} may crash its job when it is asked{but}; {_SAFE} and later are asked",
            'Update NCCL, or set capture.nccl_ras = "always".',
        )


def nccl_version(sample: RankSample) -> str:
    """As the hook's facts say, else by the name of the library that the process has mapped; "" when nothing tells."""
    with contextlib.suppress(OSError, untrusted.FileRefused, Unreadable):
        if found := re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}", _version_of_facts(sample)):
            return found[0]
    try:
        with ProcessDirectory(sample.pid) as directory:
            maps = directory.read_whole("maps", _MAPS_LIMIT_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    library = _LIBRARY.search(maps)
    return _version_of_library(library[1], f"/proc/{sample.pid}/root") if library else ""


def _version_of_facts(sample: RankSample) -> str:
    if not isinstance(sample.heartbeat, Known):
        return ""
    beat = sample.heartbeat.value
    data = rank_files.read_facts(Path(beat.path), beat.uid, _FACTS_LIMIT_BYTES)
    return text(mapping(mapping(decode_json(data)).get("versions")).get("nccl")) or ""


def _version_of_library(path: str, root: str) -> str:
    """A system's library carries its version in its name, a wheel's in the folder beside it."""
    if found := _LIBRARY_VERSION.search(path):
        return found[1]
    site_packages = path.partition("/nvidia/nccl/")[0]
    if site_packages == path:
        return ""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{root}{site_packages}"):
            if found := _WHEEL_VERSION.fullmatch(name):
                return found[1]
    return ""


def _environment(pid: int) -> dict[str, str]:
    """Raise NotCaptured when it is not ours to read: without it a port would be a guess."""
    try:
        with ProcessDirectory(pid) as directory:
            data = directory.read_whole("environ", ENVIRONMENT_LIMIT_BYTES)
    except OSError as error:
        raise NotCaptured(f"its environment cannot be read: {error.strerror or error}") from error
    pairs = (name_of(entry).partition("=") for entry in data.split(b"\0"))
    return {name: value for name, _, value in pairs if name.startswith("NCCL_RAS_")}


def _shares_our_network(pid: int) -> bool:
    network = namespace_of(pid, "net")
    return network is None or network == namespace_of("self", "net")  # not ours to know: most ranks do
