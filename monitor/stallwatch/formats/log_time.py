"""Times as logs print them, comparable where both were printed by the same clock."""

import re
from typing import Final, NamedTuple

_ISO: Final = re.compile(
    r"\d{4}-(?P<month>\d\d)-(?P<day>\d\d)[T _](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_NAMED: Final = re.compile(  # syslog, and dmesg -T
    r"(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(?P<day>\d{1,2})"
    r" (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
)
# glog: "E906 12:16:32.611181197", the month without a leading zero.
_GLOG: Final = re.compile(
    r"(?<![\w.])[EWIF]?(?P<month>\d{1,2})(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d\.\d+)"
)
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_DAYS_BEFORE: Final = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)  # of a leap year: order is what counts


class LineTime(NamedTuple):
    """The time of a line."""

    seconds: float  # from the year's begin
    utc: bool  # False: by the host's own clock


def moment(text: str) -> LineTime | None:
    """Given a time as printed somewhere in a text, return it; None where there is none with a day."""
    match = _ISO.search(text) or _NAMED.search(text) or _GLOG.search(text)
    if match is None:
        return None
    said = match.groupdict()
    month = _MONTHS.index(said["name"]) if said.get("name") else int(said["month"]) - 1
    if not 0 <= month < 12:
        return None
    day = _DAYS_BEFORE[month] + int(said["day"]) - 1
    seconds = (day * 24 + int(said["hour"])) * 3600 + int(said["minute"]) * 60 + float(said["second"].replace(",", "."))
    zone = said.get("zone") or ""
    if len(zone) > 1:
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds += -offset if zone[0] == "+" else offset
    return LineTime(seconds, bool(zone))
