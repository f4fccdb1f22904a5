"""Attempts of one run: torchrun starts all ranks again, and what ended an earlier attempt did not end the run."""

import re

from stallwatch.doctor.failed_run.reading import attempt_of_path
from stallwatch.model.evidence import LogEvent

Events = list[tuple[str, LogEvent]]

# Written by the agent once an attempt of its ranks has failed; its header names the agent's process.
_AGENT = re.compile(r"^\[?[EWIF]\d{3,4} \S+ (?P<pid>\d+) ")


def attempts(events: Events) -> list[Events]:
    """Given events of all logs, return them by attempt, the last one last.

    A folder of torchrun's `--log-dir` tells the attempt. In another log each line of an agent that says how its ranks
    ended, but for that agent's last one, ends an attempt.
    """
    logs = {log: (attempt_of_path(log), _ends(events, log)) for log, _ in events}
    last = max((folder if folder is not None else len(ends) for folder, ends in logs.values()), default=0)
    split: dict[int, Events] = {}
    for log, event in events:
        folder, ends = logs[log]
        # A log with fewer restarts than others is taken as that of the last attempts.
        number = folder if folder is not None else last - len(ends) + sum(event.line > end for end in ends)
        split.setdefault(number, []).append((log, event))
    return [split[number] for number in sorted(split)]


def _ends(events: Events, log: str) -> list[int]:
    """Lines after which another attempt begins, in order."""
    lines: dict[str, list[int]] = {}
    for of, event in events:
        if of == log and event.kind == "process_failed" and (agent := _AGENT.match(event.text)):
            lines.setdefault(agent["pid"], []).append(event.line)
    most = max(map(len, lines.values()), default=0)
    # Agents of several nodes may write one log: an attempt has ended when the last of them has said so.
    return [max(of[-1 - before] for of in lines.values() if len(of) > before) for before in range(most - 1, 0, -1)]
