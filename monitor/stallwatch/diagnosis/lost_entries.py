"""What pg_status, written before the entries, says of entries that a dump does not hold."""

from collections.abc import Sequence

from stallwatch.diagnosis.nodes import Node
from stallwatch.model.evidence import Recorder


def reaches_its_end(recorder: Recorder, nodes: Sequence[Node]) -> bool:
    """True when pg_status, which lies before the entries, names the last of a group's as its newest. It may be the
    number of a transfer, and those are counted apart: a lower one says nothing."""
    enqueued = next((status.enqueued for status in recorder.status if status.pg_id == nodes[-1].pg_id), -1)
    return enqueued == nodes[-1].seq and not any(node.transfers for node in nodes)


def has_outrun(recorder: Recorder, nodes: Sequence[Node]) -> bool:
    """True when other calls have pushed a pending one out of the ring. Only where transfers do not mix in."""
    unsettled = {node.pg_id for node in nodes if not node.done or node.transfers}
    return any(status.enqueued > status.completed >= 0 and status.pg_id not in unsettled for status in recorder.status)
