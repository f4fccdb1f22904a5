"""Attempts of one run: launchers start all ranks again, and what ended an earlier attempt did not end the run."""

import re
from collections.abc import Sequence

from stallwatch.formats.log_folders import of_path
from stallwatch.model.evidence import LogEvent

# Written by the agent once an attempt of its ranks has failed; its header names the agent's process.
_AGENT = re.compile(r"^\[?[EWIF]\d{3,4} \S+ (?P<pid>\d+) ")


def attempts(events: Sequence[LogEvent]) -> list[list[LogEvent]]:
    """Given events of all logs, return them by attempt, the last one last.

    A folder of torchrun's `--log-dir` tells the attempt. In another log each line of an agent that says how its ranks
    ended, but for that agent's last one, ends an attempt; or the line that says that it starts them again.
    """
    by_source: dict[str, list[LogEvent]] = {}
    for event in events:
        by_source.setdefault(event.source, []).append(event)
    folders = {source: of_path(source) for source in by_source}
    ends = {source: _ends(of_source) for source, of_source in by_source.items()}
    last = max((folder[0] if folder else len(ends[source]) for source, folder in folders.items()), default=0)
    split: dict[int, list[LogEvent]] = {}
    for event in events:
        folder, own = folders[event.source], ends[event.source]
        # A log with fewer restarts than others is taken as that of the last attempts.
        number = folder[0] if folder else last - len(own) + sum(event.line > end for end in own)
        split.setdefault(number, []).append(event)
    return [split[number] for number in sorted(split)]


def _ends(events: Sequence[LogEvent]) -> list[int]:
    """Lines after which another attempt begins, in order."""
    restarts = [event.line for event in events if event.kind == "restarting"]
    lines: dict[str, list[int]] = {}
    for event in events:
        if event.kind == "process_failed" and (agent := _AGENT.match(event.text)):
            lines.setdefault(agent["pid"], []).append(event.line)
    most = max(map(len, lines.values()), default=0)
    # Agents of several nodes may write one log: an attempt has ended when the last of them has said so.
    by_agents = [max(of[-1 - before] for of in lines.values() if len(of) > before) for before in range(most - 1, 0, -1)]
    return by_agents if len(by_agents) >= len(restarts) else restarts
