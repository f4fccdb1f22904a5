"""Takes away what launchers put before a training process' own lines, and keeps the rank that some of them tell."""

import re
from typing import Final, NamedTuple

# CSI and OSC sequences, and carriage returns of progress bars.
_ANSI: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_PREFIXES: Final = (  # those with a group "writer" tell the process apart
    re.compile(r"(?P<writer>\[pod/[^\]\s]*\])\s*"),  # kubectl logs --prefix
    re.compile(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s+(?:std(?:out|err)\s+[FP]\s+)?"
    ),
    re.compile(r"[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "),  # journald, syslog
    re.compile(r"\x00"),
    re.compile(r"(?P<writer>\([\w.<>-]+ pid=\d+(?:, ip=[^)]*)?\))\s?"),  # Ray
    re.compile(r"(?P<writer>\[default(?P<local>\d+)\]):"),  # torchrun --tee: the local rank
    re.compile(r"(?P<writer>\s*\d+): "),  # srun --label
    re.compile(r"(?P<writer>\[(?:\d+,)?\d+\])<std(?:out|err)>:"),  # mpirun --tag-output, horovod
)
_RANK: Final = re.compile(r"\[rank(?P<rank>\d+)\]:\s?")


class Line(NamedTuple):
    text: str  # what the process wrote
    rank: int | None  # global rank by "[rank3]:", which torch ≥ 2.2 writes
    local_rank: int | None
    writer: str = ""  # what a launcher put before the lines of one process


def strip_colours(line: str) -> str:
    return _ANSI.sub("", line).rstrip("\r\n").rsplit("\r", 1)[-1]


def read_line(raw: str) -> Line:
    """Given a line as found in a log, return the process' own part of it."""
    text = strip_colours(raw)
    local_rank, writer = None, ""
    for prefix in _PREFIXES:
        if match := prefix.match(text):
            said = match.groupdict()
            local_rank = int(said["local"]) if said.get("local") else local_rank
            writer += said.get("writer") or ""
            text = text[match.end() :]
    if match := _RANK.match(text):
        return Line(text[match.end() :], int(match["rank"]), local_rank, writer)
    return Line(text, None, local_rank, writer)
