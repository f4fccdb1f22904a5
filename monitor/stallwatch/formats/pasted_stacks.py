"""Stacks of several ranks in one text, as people paste them into a report: each below a heading that names its rank, of
a process whose command line does, or each line with the mark that a launcher puts before it."""

import re
from collections import defaultdict
from typing import Final

from stallwatch.formats import stack_texts
from stallwatch.formats.log_prefix import Line, read_line
from stallwatch.formats.rank_ranges import ranks_in
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import Stacks

_MOST_BYTES: Final = 16 << 20
_MOST_RANKS: Final = 4_096
_LEAST_RANKS: Final = 2
_THREADS: Final = re.compile(r"Thread (?:0x[0-9A-Fa-f]+|\d+) .*\((?:idle|active|most recent call first)")
# What Python prints of itself as it dies: there nobody stood.
_DIES: Final = "Fatal Python error"
# As in "rank 3:", "=== Rank 3 ===", "$ py-spy dump --pid 4003  # rank 3", "stacks_rank3.txt", "others, ranks (0-2,5)".
_NAMES_RANKS: Final = re.compile(
    r"(?<![A-Za-z])ranks?[ \t:=#_\-(\[*`]{0,3}(?P<ranks>\d{1,5}(?:[-,]\d{1,5})*)(?!\w)", re.IGNORECASE
)
_HAS_RANK: Final = re.compile(r"--(?:local[-_])?rank[= ](?P<rank>\d{1,5})\b")
_LONGEST_HEADING: Final = 160
_QUOTED: Final = re.compile(r"(?:> ?)+")
_OF_A_FRAME: Final = "    "  # its locals may be called rank, too


def parse(data: bytes, source: str) -> tuple[tuple[int, Stacks], ...]:
    """Given a text, return the stacks of each rank that it names, by rank; () where it has those of fewer than two."""
    text = data[-_MOST_BYTES:].decode("utf-8", "surrogateescape")
    if _DIES in text or len(_THREADS.findall(text)) < _LEAST_RANKS:
        return ()
    found: list[tuple[int, Stacks]] = []
    for rank, lines in sorted(_by_rank(text).items()):
        try:
            found.append((rank, stack_texts.parse("\n".join(lines).encode("utf-8", "surrogateescape"), source)))
        except Unreadable:
            continue  # it is named, and no stack of it could be read
    return tuple(found) if len(found) >= _LEAST_RANKS else ()


def _by_rank(text: str) -> dict[int, list[str]]:
    """The lines of each rank's stacks. A process with neither a heading nor a rank of its own is of the ranks above it:
    a child. Of a process that was looked at twice the last counts."""
    ranks: dict[int, list[str]] = defaultdict(list)
    headed: tuple[int, ...] = ()
    is_fresh = False  # no process has followed the heading yet
    for raw in text.splitlines():
        quote = _QUOTED.match(raw)
        line = read_line(raw[quote.end() :] if quote else raw)
        mark = _mark(line)
        if not stack_texts.is_line(line.text):
            if mark is None and (named := _named(line.text)):
                headed, is_fresh = named, True
            continue
        begins = stack_texts.begins_process(line.text)
        if begins and not is_fresh and (match := _HAS_RANK.search(line.text)):
            headed = (int(match["rank"]),)
        is_fresh = is_fresh and not begins
        for rank in headed if mark is None else (mark,):
            if rank not in ranks and len(ranks) >= _MOST_RANKS:
                continue
            if begins and line.text in ranks[rank]:
                ranks[rank].clear()
            ranks[rank].append(line.text)
    return ranks


def _mark(line: Line) -> int | None:
    """Whose line it is by what a launcher, or torch, puts before it."""
    return next((number for number in (line.rank, line.task, line.local_rank) if number is not None), None)


def _named(heading: str) -> tuple[int, ...]:
    """The ranks of a heading; () for another line, and for a sentence that names one here and one there."""
    if len(heading) > _LONGEST_HEADING or heading.startswith(_OF_A_FRAME):
        return ()
    named = {match["ranks"] for match in _NAMES_RANKS.finditer(heading)}
    if len(named) != 1:
        return ()
    return tuple(ranks_in(named.pop()))[:_MOST_RANKS]
