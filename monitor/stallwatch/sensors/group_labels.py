"""Which groups a rank has operations pending in, by the names that its hook knows: the same on every rank."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.sensors.rank_facts import FactsNames, Stamp, read_facts, stamp_of

MOST_GROUPS = 8  # of one rank: a job with hundreds of groups waits in a few of them at a time
_LONGEST_NAME = 100  # characters; the hook's own are shorter
_FIRST_WAIT_NS = 1_000_000_000
_LONGEST_WAIT_NS = 60_000_000_000


class _Known:
    """Names of one process' groups, and when to ask for those that are missing."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.wait_ns = _FIRST_WAIT_NS
        self.stamp: Stamp | None = None  # of the facts that said so
        self.again_ns = 0


class GroupLabels:
    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}  # by record and start of its process

    def labelled(
        self, heartbeats: Sequence[Heartbeat], now_ns: int, names: FactsNames | None = None
    ) -> tuple[Heartbeat, ...]:
        """Return the heartbeats, each with the names of its pending groups; a group without one is left out."""
        live = {(beat.path, beat.start_ticks) for beat in heartbeats}
        self._known = {key: known for key, known in self._known.items() if key in live}
        return tuple(self._with_names(beat, now_ns, names) for beat in heartbeats)

    def _with_names(self, beat: Heartbeat, now_ns: int, names: FactsNames | None) -> Heartbeat:
        pending = [group for group in beat.groups if group.enqueued > group.completed][:MOST_GROUPS]
        if not pending:
            return beat
        known = self._known.setdefault((beat.path, beat.start_ticks), _Known())
        if now_ns >= known.again_ns and any(_key(group) not in known.names for group in pending):
            _ask(known, beat, now_ns, None if names is None else names.get(beat.path, ()))
        named = [(group, known.names.get(_key(group), "")) for group in pending]
        found = tuple((group.recorder, group.pg_id, name) for group, name in named if name)
        return msgspec.structs.replace(beat, pending_groups=found) if found else beat


def _ask(known: _Known, beat: Heartbeat, now_ns: int, of_facts: Sequence[str] | None) -> None:
    record = Path(beat.path)
    stamp = stamp_of(record, of_facts)
    names = known.names
    if stamp is None or stamp != known.stamp:
        facts = read_facts(record, beat.uid, of_facts)
        names = {} if facts is None else {key: name[:_LONGEST_NAME] for key, name in facts.process_groups.items()}
    known.stamp = stamp
    # A group that has no name may never get one: it is asked for less and less often.
    known.wait_ns = _FIRST_WAIT_NS if names != known.names else min(2 * known.wait_ns, _LONGEST_WAIT_NS)
    known.names = names
    known.again_ns = now_ns + known.wait_ns


def _key(group: GroupCounter) -> str:
    return f"{group.recorder} {group.pg_id}"
