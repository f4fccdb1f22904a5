"""Whether this node can use the place where the nodes of a job meet."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings


class MeetingPlaceAnswers:
    """Tries it as the daemon would, unless the daemon says that it can; Inapplicable where `fleet.url` is not set,
    Undetermined where only this user may not."""

    name: ClassVar[str] = "meeting_place"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "a Redis, Valkey or shared directory (`fleet.url`) that this node cannot reach, read, write or claim in"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        meeting, daemon = surroundings.meeting, surroundings.daemon
        if meeting is None:
            raise Inapplicable("fleet.url is not set: each node judges alone")
        if daemon is not None and daemon.sensors.get("meeting_place") == "":
            return ()  # the daemon asks it all the time, by its own user and its own network
        seen, remedy = meeting.problem()
        if not seen:
            return ()
        if "Permission denied" in seen and surroundings.user_id != 0:
            raise Undetermined(f"{seen}: ask as root or as the daemon's user")
        return (
            finding(
                self,
                "error",
                meeting.url,
                seen=seen,
                why="Without it each node of a job judges by what it sees alone, and several may tell of one hang.",
                remedy=remedy or "stallwatch config check FILE tries it again.",
            ),
        )
