"""Takes away what launchers put before a training process' own lines, and keeps the rank that some of them tell."""

import json
import re
from collections.abc import Container
from typing import Final, NamedTuple

# CSI and OSC sequences, and carriage returns of progress bars.
_ANSI: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_STAMP: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES: Final = (  # those with a group "writer" tell the process apart
    re.compile(r"(?P<writer>\[pod/[^\]\s]*\])\s*"),  # kubectl logs --prefix
    # With containerd's mark, or with journald's host and process.
    re.compile(rf"\[?{_STAMP}\]?\s+(?:std(?:out|err)\s+[FP]\s+|[\w.-]+ [^\s:\[]+\[\d+\]: )?"),
    re.compile(r"[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "),  # journald, syslog
    re.compile(r"\x00"),
    re.compile(r"(?P<writer>\([\w.<>-]+ pid=\d+(?:, ip=[^)]*)?\))\s?"),  # Ray
    re.compile(r"(?P<writer>\[default(?P<local>\d+)\]):\s?"),  # torchrun --tee: the local rank
    # torchrun with a role, or a template, of the user's own: what its number means is his to know.
    re.compile(r"(?P<writer>\[(?!rank\d)[A-Za-z_][\w-]*?\d+\]):\s?"),
    re.compile(r"(?P<writer>\s*\d+): "),  # srun --label
    # mpirun --tag-output, horovod, SageMaker
    re.compile(r"(?P<writer>\[(?:\d+,)?(?:mpirank:)?\d+(?:,[\w.-]+)?\])<std(?:out|err)>:\s?"),
)
_MOST_PREFIXES: Final = 6  # of launchers within launchers: srun --label around torchrun --tee
_JSON: Final = re.compile(r'\{"(?:log|time|stream)":')  # Docker's json-file
_HOST: Final = re.compile(r"(?P<host>[A-Za-z][\w.-]*): (?=\s*(?:Traceback \(most recent call last|\[rank\d+\]:))")
_RANK: Final = re.compile(r"\[rank(?P<rank>\d+)\]:\s?")


class Line(NamedTuple):
    text: str  # what the process wrote
    rank: int | None  # global rank by "[rank3]:", which torch ≥ 2.2 writes
    local_rank: int | None
    writer: str = ""  # what a launcher put before the lines of one process


def strip_colours(line: str) -> str:
    return _ANSI.sub("", line).rstrip("\r\n").rsplit("\r", 1)[-1]


def host_of(text: str) -> str:
    """The host that pdsh puts before the lines of its processes; "" where this line does not show one. A host's name
    looks like any word: the line of a traceback or of a rank behind it tells."""
    match = _HOST.match(text)
    return match["host"] if match else ""


def read_line(raw: str, hosts: Container[str] = ()) -> Line:
    """Given a line as found in a log, return the process' own part of it. `hosts`: names that pdsh is known to put
    before lines."""
    text = _of_json(strip_colours(raw))
    local_rank, writer = None, ""
    for _ in range(_MOST_PREFIXES):
        match = next((match for prefix in _PREFIXES if (match := prefix.match(text))), None)
        if match is None:
            host, separator, rest = text.partition(": ")
            if not separator or host not in hosts:
                break
            writer, text = writer + host, rest
            continue
        said = match.groupdict()
        local_rank = int(said["local"]) if said.get("local") else local_rank
        writer += said.get("writer") or ""
        text = text[match.end() :]
    if match := _RANK.match(text):
        rank, text = int(match["rank"]), text[match.end() :]
        # Tracebacks are marked by torch and again by a template.
        return Line(text[again.end() :] if (again := _RANK.match(text)) else text, rank, local_rank, writer)
    return Line(text, None, local_rank, writer)


def _of_json(text: str) -> str:
    if not _JSON.match(text):
        return text
    try:
        said = json.loads(text)
    except ValueError:
        return text
    log = said.get("log") if isinstance(said, dict) else None
    return strip_colours(log) if isinstance(log, str) else text
