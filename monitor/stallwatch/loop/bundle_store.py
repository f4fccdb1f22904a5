"""Where the bundle of each incident lies: in the store, or in the spare folder while the store takes nothing.

A disk that hangs, is full or went read-only must not cost the verdict: evidence goes to the run directory, which is
memory on a node that runs us as a service, and home to the store when that answers again.
"""

import errno
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec.structs import replace

from stallwatch.bundle.writer import BundleWriter
from stallwatch.incidents.messages import BundleMoved
from stallwatch.loop.protocols import Store
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.incident import Incident

_MOST_AWAY = 20  # it is memory; some MB each
_MOST_UNSAVED = 256  # each with its report; of a disk that answers no more for days the latest are written down
_HOME_TICKS = 10  # between attempts to bring something home: it may be large, and the disk only just alive


class BundleStore:
    """Where bundles are kept: the store, and a spare one while its disk does not answer."""

    def __init__(self, store: Store, spare: Store | None, guard: StageGuard) -> None:
        """`spare` takes bundles that `store` does not; without one such a look is lost."""
        self._store = store
        self._spare = spare
        self._guard = guard
        self._unsaved: dict[str, Incident] = {}  # for want of room, or of an answer of the disk
        self._away: dict[str, Incident] = {}
        self._ticks = 0

    def problem(self, incident: Incident) -> str:
        """A sentence while the disk that holds this bundle does not answer."""
        return self._store_of(incident).problem()

    def writer(self, incident: Incident) -> BundleWriter:
        """Who writes into an incident's bundle."""
        store = self._store_of(incident)
        return BundleWriter(Path(incident.bundle), incident.node, store.write, store.append)

    def begin_look(
        self, incident: Incident, write: Callable[[BundleWriter], None]
    ) -> tuple[Incident, BundleMoved | None]:
        """Have our half of the bundle written, at home or else away; return the incident as it lies now, and what the
        engine must hear. Raise OSError when no place takes it."""
        try:
            if problem := self.problem(incident):
                raise OSError(errno.ETIMEDOUT, problem)
            write(self.writer(incident))
        except OSError as error:
            if self._spare is None or self._is_away(incident):
                raise
            why = error.strerror or str(error)
            self._guard.count("incidents", "bundle", f"{incident.bundle}: {why}")
            return self._moved_away(self._spare, incident, write, why)
        return incident, None

    def save(self, incident: Incident) -> bool:
        """Write incident.json where its bundle lies. What cannot be saved is kept for `catch_up`."""
        self._unsaved.pop(incident.incident_id, None)
        self._unsaved[incident.incident_id] = incident
        while len(self._unsaved) > _MOST_UNSAVED:
            del self._unsaved[next(iter(self._unsaved))]
        self._store_of(incident).save(incident)
        del self._unsaved[incident.incident_id]
        if incident.incident_id in self._away:
            self._away[incident.incident_id] = incident
        return True

    def discard(self, incident: Incident) -> None:
        """Remove the bundle from wherever it is, the disk or the spare folder in memory, and forget it."""
        self._unsaved.pop(incident.incident_id, None)
        if self._away.pop(incident.incident_id, None) is not None and self._spare is not None:
            with self._guard.stage("incidents", "spare"):
                self._spare.discard(incident.incident_id)
        self._store.discard(incident.incident_id)

    def catch_up(self, busy: Collection[str]) -> list[BundleMoved]:
        """Save what could not be saved before, and bring home what is away; not those of `busy`, which are written or
        read now. Once a tick: the disk may answer again, or have room."""
        for incident in list(self._unsaved.values()):
            if not self.problem(incident):
                with self._guard.stage("incidents", "Save"):
                    self.save(incident)
        self._ticks += 1
        if self._ticks % _HOME_TICKS or self._store.problem():
            return []
        moved = []
        for incident in [one for one in self._away.values() if one.incident_id not in busy]:
            home = None
            with self._guard.stage("incidents", "home"):
                home = self._bring_home(incident)
            if home is None:
                break
            moved.append(home)
        return moved

    def _moved_away(
        self, spare: Store, incident: Incident, write: Callable[[BundleWriter], None], why: str
    ) -> tuple[Incident, BundleMoved]:
        spare.discard(incident.incident_id)  # of a daemon before this one: its looks are no looks of ours
        while len(self._away) >= _MOST_AWAY:
            oldest = next(iter(self._away))
            del self._away[oldest]
            spare.discard(oldest)
        away = replace(incident, bundle=str(spare.folder / incident.incident_id))
        write(self.writer(away))
        self._away[incident.incident_id] = away
        return away, BundleMoved(incident.incident_id, away.bundle, f"it cannot be kept in the state directory: {why}")

    def _bring_home(self, incident: Incident) -> BundleMoved:
        assert self._spare is not None
        self._store.take_in(self._spare.folder / incident.incident_id)
        home = replace(incident, bundle=str(self._store.folder / incident.incident_id))
        self._store.save(home)
        del self._away[incident.incident_id]
        self._spare.discard(incident.incident_id)
        return BundleMoved(incident.incident_id, home.bundle, "the state directory takes it again")

    def _is_away(self, incident: Incident) -> bool:
        return self._spare is not None and Path(incident.bundle).parent == self._spare.folder

    def _store_of(self, incident: Incident) -> Store:
        return self._spare if self._spare is not None and self._is_away(incident) else self._store
