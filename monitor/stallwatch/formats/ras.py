"""NCCL RAS reports: JSON, the JSON of 2.28.9 that lacks a comma, and text.

RAS counts launches: it tells who has not launched. Equal counts prove nothing about health (nccl#1730).
"""

import re
from typing import Any, Final

from stallwatch.formats.outside_text import text_of
from stallwatch.formats.tolerant import boolean, decode_json, integer, items, mapping, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import RasCommunicator, RasRank

# 2.28.9 writes no comma between the members of `missing_ranks`.
_MISSING_COMMA: Final = re.compile(rb"([}\]\"0-9el])(\s*\n\s*)([{\"])")
_OUTLIER: Final = re.compile(
    r"Rank (?P<rank>\d+)(?: has launched up to operation (?P<count>\d+))? -- "
    r"GPU \S+ managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)
_COMMUNICATOR: Final = re.compile(r"#(?P<group>\d+)-\d+ \((?P<hash>[0-9a-fA-Fx]+)\)(?P<status>.*)")
_DIFFERENT: Final = re.compile(r"different (?P<operation>\w+) operation counts")
# A row of the table "Group, comms in group, nodes per comm, ranks per node, ranks per comm, ranks in group, status".
_GROUP: Final = re.compile(r"(?m)^\s+(?P<group>\d+)\s+\d+\s+\d+\s+\d+\s+(?P<size>\d+)\s+\d+\s+[A-Z]+\s")


def parse_json(data: bytes) -> tuple[RasCommunicator, ...]:
    """Raise Unreadable when even the repaired text is not a RAS report."""
    try:
        said = decode_json(data)
    except Unreadable:
        said = decode_json(_MISSING_COMMA.sub(rb"\1,\2\3", data))
    if type(said) is not dict or "communicators" not in said:
        raise Unreadable("it is not a report of NCCL RAS")
    return tuple(_communicator(mapping(each)) for each in items(said["communicators"]))


def _communicator(said: dict[str, Any]) -> RasCommunicator:
    ranks = [_rank(mapping(rank), missing=False) for rank in items(said.get("ranks"))]
    ranks += [_rank(mapping(rank), missing=True) for rank in items(said.get("missing_ranks"))]
    size = integer(said.get("size"))
    return RasCommunicator(
        hash=text(said.get("hash")) or "",
        size=len(ranks) if size is None else size,
        ranks=tuple(sorted((rank for rank in ranks if rank.rank >= 0), key=lambda rank: rank.rank)),
    )


def _rank(said: dict[str, Any], *, missing: bool) -> RasRank:
    status = mapping(said.get("status"))
    rank, pid = integer(said.get("rank")), integer(said.get("pid"))
    counts = ((name, integer(count)) for name, count in mapping(said.get("collective_counts")).items())
    return RasRank(
        rank=-1 if rank is None else rank,
        host=text(said.get("host")) or "",
        pid=-1 if pid is None else pid,
        counts=tuple((name, count) for name, count in counts if count is not None),
        missing=missing,
        dead=boolean(status.get("considered_dead")) is True,
        abort=boolean(status.get("abort_flag")) is True,
    )


def parse_text(data: bytes) -> tuple[RasCommunicator, ...]:
    """The report for people names only the outliers of a mismatch; ranks that agree are not listed."""
    report = text_of(data)
    if "Communicators" not in report and "Job summary" not in report:
        raise Unreadable("it is not a report of NCCL RAS")
    sizes = {match["group"]: int(match["size"]) for match in _GROUP.finditer(report)}
    found: dict[str, dict[int, RasRank]] = {}
    size_of: dict[str, int] = {}
    communicator, operation, status = "", "", ""
    for line in report.splitlines():
        if match := _COMMUNICATOR.match(line.strip()):
            communicator, operation, status = match["hash"], "", match["status"]
            found.setdefault(communicator, {})
            size_of[communicator] = sizes.get(match["group"], 0)
        elif match := _DIFFERENT.search(line):
            operation = match["operation"]
        elif communicator and (match := _OUTLIER.search(line)):
            rank = int(match["rank"])
            counts = ((operation, int(match["count"])),) if operation and match["count"] else ()
            known = found[communicator].get(rank)
            found[communicator][rank] = RasRank(
                rank,
                match["host"].strip(",."),
                int(match["pid"]),
                (known.counts if known else ()) + counts,
                missing="INCOMPLETE" in status and not match["count"],
                dead="DEAD" in status,
                abort="ABORT" in status,
            )
    return tuple(
        RasCommunicator(name, max(size_of[name], len(ranks)), tuple(rank for _, rank in sorted(ranks.items())))
        for name, ranks in found.items()
    )


def parse(data: bytes) -> tuple[RasCommunicator, ...]:
    """Given what NCCL RAS answered, as JSON or as text, return its communicators. Raise Unreadable."""
    return parse_json(data) if data.lstrip()[:1] in (b"{", b"[") else parse_text(data)
