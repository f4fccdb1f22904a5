"""What a check is: a name, an area, one sentence, and a look at the surroundings."""

from typing import ClassVar, Protocol

from stallwatch.doctor.check_result import Area, FindingRecord, Severity
from stallwatch.doctor.surroundings import Surroundings


class Inapplicable(Exception):
    """There is nothing here that the check could look at ("no GPU on this node"): normal, and said."""


class Undetermined(Exception):
    """The check could not look ("NVML has not answered for 3 s"): neither healthy nor found."""


class Check(Protocol):
    """`look` may block; it runs in a thread that is given up at the deadline. It raises nothing but Inapplicable and
    Undetermined on purpose."""

    name: ClassVar[str]  # one word for code, JSON and table: "port_taken"
    area: ClassVar[Area]
    looks_for: ClassVar[str]  # for the table: what it finds, in one line

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Given what is to be seen of the node and the question, return what is wrong; raise Undetermined or
        Inapplicable with the reason where nothing can be said."""


def finding(
    check: Check, severity: Severity, subject: str, *, seen: str, why: str, remedy: str, source: str = ""
) -> FindingRecord:
    """A record that carries its check's name and area."""
    return FindingRecord(check.name, check.area, severity, subject, seen, why, remedy, source)
