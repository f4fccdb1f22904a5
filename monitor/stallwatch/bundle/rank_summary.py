"""A rank's recorders reduced where they are parsed: of a large incident only the summaries travel, with the entries
that say what happens now."""

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from stallwatch.diagnosis.reduce import reduce_rank
from stallwatch.formats.recorder_table import WIDTH, RecorderTable, expand
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import RankSummary

_KEPT_ENTRIES: Final = 128


def summarise(rank: int, tables: Sequence[RecorderTable]) -> RankSummary:
    """Given all recorders of one rank, return what they say for a verdict."""
    recorders = tuple(expand(table) for table in tables)
    return reduce_rank(RankEvidence(rank=rank, host=None, pid=None, recorders=recorders))


def shorten(table: RecorderTable) -> RecorderTable:
    """The newest entries of a table."""
    kind_of, numbers, durations = array("I", table.kind_of), array("q", table.numbers), array("d", table.durations_ms)
    return msgspec.structs.replace(
        table,
        kind_of=kind_of[-_KEPT_ENTRIES:].tobytes(),
        numbers=numbers[-_KEPT_ENTRIES * WIDTH :].tobytes(),
        durations_ms=durations[-_KEPT_ENTRIES:].tobytes(),
    )
