"""Whether this node can use the place where the nodes of a job meet."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import MeetingTrial, Surroundings


class MeetingPlaceAnswers:
    """Tries it as the daemon would, unless the daemon says how it does; Inapplicable where `fleet.url` is not set,
    Undetermined where only this user may not."""

    name: ClassVar[str] = "meeting_place"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "a Redis, Valkey or shared directory (`fleet.url`) that this node cannot reach, read, write or claim in; nodes "
        "there that sign with another key (`fleet.key_file`), or have this one's name; a key that every user may read"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        meeting, daemon = surroundings.meeting, surroundings.daemon
        said = daemon.down.get(self.name, "") if daemon is not None else ""
        found = self._exposed(meeting) if meeting is not None else ()
        if daemon is not None and self.name in daemon.sensors:
            return found  # the daemon asks it all the time, by its own user and its own network
        if meeting is None:
            if not said:
                raise Inapplicable("fleet.url is not set: each node judges alone")
            return (self._unwell("fleet.url", said, ""),)
        seen, remedy = meeting.problem()
        if said and (not seen or "Permission denied" in seen):
            seen, remedy = said, ""
        if not seen:
            return found
        if "Permission denied" in seen and surroundings.user_id != 0:
            raise Undetermined(f"{seen}: ask as root or as the daemon's user")
        return (*found, self._unwell(meeting.url, seen, remedy))

    def _unwell(self, subject: str, seen: str, remedy: str) -> FindingRecord:
        why = "Without it each node of a job judges by what it sees alone, and several may tell of one hang."
        remedy = remedy or "stallwatch config check FILE tries it again."
        return finding(self, "error", subject, seen=seen, why=why, remedy=remedy)

    def _exposed(self, meeting: MeetingTrial) -> tuple[FindingRecord, ...]:
        what, _, remedy = meeting.exposed().rpartition(": ")
        if not what:
            return ()
        why = "By this key nodes know each other's word: who reads it can say on any node that a rank is at fault."
        return (finding(self, "warning", meeting.url, seen=what, why=why, remedy=f"{remedy}."),)
