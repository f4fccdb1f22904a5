"""STALLWATCH_DIR of a job that is not the daemon's: its record lies where nobody looks."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.environment.together import places_of
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.hook.rank_file import is_read


class RankDirectory:
    name: ClassVar[str] = "rank_directory"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "STALLWATCH_DIR of a job, or of this shell, where the daemon does not read"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if surroundings.daemon is None:
            raise Inapplicable("no daemon answers here")
        return tuple(self._found(surroundings))

    def _found(self, surroundings: Surroundings) -> Iterator[FindingRecord]:
        for environment, directory in places_of(surroundings, "STALLWATCH_DIR"):
            if not is_read(str(surroundings.root / directory.lstrip("/"))):
                yield finding(
                    self, "warning", environment.place,
                    seen=f"STALLWATCH_DIR={directory}, and no daemon reads there.",
                    why="The hook's record of such a job is not seen: no steps, no phases, no recorder on request.",
                    remedy="unset STALLWATCH_DIR for the job, or export the same for the daemon and start it again",
                )  # fmt: skip
