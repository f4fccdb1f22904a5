"""What people have silenced, over the daemon's own end: an upgrade or a reboot must page nobody whom a mute or a
maintenance was to spare. Where nodes meet, their meeting place keeps it (fleet.orders), and knows better."""

import logging

import msgspec
from msgspec.structs import replace

from stallwatch.clock import Clock
from stallwatch.encoding import json_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.incidents import silence
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.store import SILENCES
from stallwatch.loop.protocols import Store

log = logging.getLogger("stallwatch.incidents")
_KEPT = msgspec.json.Decoder(silence.Kept)  # made once: threads decode too


class KeptSilences:
    """The file beside the incidents; written when something is said or taken back, not when its time is over."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept = IncidentTable()

    def keep(self, lives: IncidentTable) -> None:
        """Write what holds where it is not what was written last. Raise OSError; the next call tries again."""
        said = IncidentTable(mutes=lives.mutes, mode=lives.mode, maintenance=lives.maintenance)
        if said == self._kept or self._store.problem():
            return
        kept = silence.kept(lives, self._clock.monotonic_ns(), self._clock.wall_ns())
        self._store.write(self._store.folder / SILENCES, json_of(kept))
        self._kept = said

    def resumed(self, lives: IncidentTable, data: bytes) -> IncidentTable:
        """Given the file that a daemon before this one left, return the lives with what of it still holds; a file that
        cannot be read silences nobody."""
        try:
            kept = _KEPT.decode(data) if data else silence.Kept()
        except NOT_JSON as error:
            log.warning("what was silenced before is not known any more: %s cannot be read | %s", SILENCES, error)
            return lives
        held = silence.resumed(kept, self._clock.monotonic_ns(), self._clock.wall_ns())
        return replace(lives, mutes=held.mutes, mode=held.mode, maintenance=held.maintenance)
