"""Records of ranks in a directory that no daemon reads, or that another user of the node has made first."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.combinations import places_of
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.hook.rank_directory import FALLBACK_DIRECTORY, SERVICE_DIRECTORY, is_read, strangers


class RankDirectory:
    """Compares with the directory that this node's daemon reads; Inapplicable where no daemon answers and no directory
    is held."""

    name: ClassVar[str] = "rank_directory"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "STALLWATCH_DIR of a job, or of this shell, where the daemon does not read; a directory of records that "
        "another user holds"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each directory that cannot be written, or that is not the one the daemon reads. Raise
        Inapplicable where there is neither."""
        held = tuple(self._held(surroundings))
        if surroundings.daemon is None and not held:
            raise Inapplicable("no daemon answers here")
        return held if surroundings.daemon is None else (*held, *self._found(surroundings))

    def _held(self, surroundings: Surroundings) -> Iterator[FindingRecord]:
        """Where there is no service's directory, hooks take the one that whoever came first has made."""
        if (surroundings.root / SERVICE_DIRECTORY.lstrip("/")).exists():
            return
        place = str(surroundings.root / FALLBACK_DIRECTORY.lstrip("/"))
        if is_read(place) or not (whose := strangers(place).replace(place, FALLBACK_DIRECTORY)):
            return
        seen, _, remedy = whose.partition("; ")
        yield finding(
            self, "warning", FALLBACK_DIRECTORY,
            seen=f"{seen}.",
            why="Records of ranks that start now lie there, where he may remove them, or nowhere at all.",
            remedy=f"{remedy}; or install the units, which have {SERVICE_DIRECTORY}",
        )  # fmt: skip

    def _found(self, surroundings: Surroundings) -> Iterator[FindingRecord]:
        for environment, directory in places_of(surroundings, "STALLWATCH_DIR"):
            if not is_read(str(surroundings.root / directory.lstrip("/"))):
                yield finding(
                    self, "warning", environment.place,
                    seen=f"STALLWATCH_DIR={directory}, and no daemon reads there.",
                    why="The hook's record of such a job is not seen: no steps, no phases, no recorder on request.",
                    remedy="unset STALLWATCH_DIR for the job, or export the same for the daemon and start it again",
                )  # fmt: skip
