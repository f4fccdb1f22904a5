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
    """True when others' calls have pushed a group's pending one, and so all of its own, out of the ring.

    What the ring still holds tells more: NCCL's entries complete at a dump, pg_status when the watchdog next looks."""
    held = {node.pg_id for node in nodes}
    return any(status.enqueued > status.completed >= 0 and status.pg_id not in held for status in recorder.status)
