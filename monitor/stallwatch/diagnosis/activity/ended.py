"""How a process ended by the launcher's summary, where nobody saw the process itself."""

from collections.abc import Iterable

import msgspec

from stallwatch.diagnosis.activity.result import Activity
from stallwatch.model.evidence import LogEvent


def with_logged_end(activity: Activity, events: Iterable[LogEvent]) -> Activity:
    """Given what a rank does and the lines about it, add exit code or signal, pid and host that only they tell."""
    if activity.exit_code is not None or activity.exit_signal is not None:
        return activity
    told = [event for event in events if event.kind == "launcher_failure"]
    event = next((event for event in told if event.first), told[0] if told else None)
    if event is None:
        return activity
    return msgspec.structs.replace(
        activity,
        exit_code=event.exit_code,
        exit_signal=event.exit_signal,
        pid=activity.pid if activity.pid is not None else event.pid,
        host=activity.host or event.host,
    )
