"""A report as a person reads it, from `analyze` and the daemon alike: the sentence, who, why, what next, stacks."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from stallwatch.bundle.stack_tree import render
from stallwatch.cli.terminal import indented, safe, time_and_distance
from stallwatch.diagnosis.report.steps import deadline, safety
from stallwatch.model.causes import State
from stallwatch.model.verdict import NO_PLACE, CulpritProcess, Report, Verdict
from stallwatch.outputs.documents import IncidentDocument

_MOST_CULPRITS = 8
_MOST_CAVEATS = 12
_MOST_STACK_LINES = 40
_STYLES: dict[State, str] = {
    "at_once": "bold red",
    "stuck": "bold red",
    "undecided": "bold yellow",
    "waits": "bold yellow",
    "slow": "bold yellow",
    "well": "bold green",
    "over": "bold green",
}


def report_parts(report: Report | IncidentDocument, *, over: bool = False) -> Iterator[RenderableType]:
    """The parts of a report, each its own block of lines; nothing of it drives the terminal. `over`: so is its job."""
    for place, verdict in enumerate(report.verdicts):
        if place:
            yield Text("\nalso", style="bold")
            yield indented(f"{verdict.summary}  ({verdict.cause}, {verdict.confidence})")
        else:
            yield from _verdict(verdict, "" if over else _time(report))
    if report.stacks is not None:
        yield Text("\nstacks", style="bold")
        blamed = set(report.verdicts[0].culprits) if report.verdicts else set()
        yield from (_frame(line, blamed) for line in render(report.stacks, maximum_lines=_MOST_STACK_LINES))
    yield from _section("caveats", report.caveats[:_MOST_CAVEATS])
    if len(report.caveats) > _MOST_CAVEATS:
        yield indented(f"and {len(report.caveats) - _MOST_CAVEATS} more; --json lists them")


def _verdict(verdict: Verdict, time: str) -> Iterator[RenderableType]:
    yield Text(safe(verdict.summary), style=_STYLES[verdict.traits.state])
    if time:
        yield indented(time, "green")  # what to do with the job is asked first
    yield indented(f"{verdict.cause}, {verdict.confidence}{_more(verdict)}", "dim")
    if verdict.culprit_processes:
        yield Text("\nculprits", style="bold")
        yield from (_culprit(process) for process in verdict.culprit_processes[:_MOST_CULPRITS])
        if len(verdict.culprit_processes) > _MOST_CULPRITS:
            yield indented(f"and {len(verdict.culprit_processes) - _MOST_CULPRITS} more")
    yield from _section("next", (f"{number}. {step}" for number, step in enumerate(verdict.next_steps, 1)))
    yield from _section("because", (f"{fact.fact}  ({fact.source})" for fact in verdict.because))
    yield from _section("not known", verdict.missing)
    yield from _section("rejected", (f"{rejected.cause}: {rejected.why}" for rejected in verdict.rejected))


def _more(verdict: Verdict) -> str:
    parts = []
    if verdict.operation:
        parts.append(verdict.operation + (f" #{verdict.seq}" if verdict.seq is not None else ""))
    if verdict.process_group:
        parts.append(f"group {verdict.process_group.description}")
    if verdict.waiting:
        parts.append(f"waiting: ranks {verdict.waiting}")
    if verdict.mismatch:
        # Without a culprit nothing tells which side is right.
        said = "expected {}, found {}" if verdict.culprits else "differs: {} and {}"
        parts.append(said.format(verdict.mismatch.expected, verdict.mismatch.found))
    return "".join(f"; {part}" for part in parts)


def _culprit(process: CulpritProcess) -> Padding:
    words = [
        f"pid {process.pid}" if process.pid is not None else "",
        f"on {process.host}" if process.host else "",
        process.gpu_uuid or "",
        f"in {process.where}" if process.where and process.where not in NO_PLACE else "",
    ]
    text = Text(f"rank {process.rank}", style="bold red")
    text.append(safe("  " + " ".join(word for word in words if word)).rstrip(), style="not bold default")
    if process.frame is not None:
        frame = process.frame
        text.append(safe(f"\n{frame.file}:{frame.line} in {frame.function}"), style="not bold cyan")
        if frame.source:
            text.append(safe(f"\n    {frame.source.strip()}"), style="not bold yellow")
    return Padding(text, (0, 0, 0, 2))


def _frame(line: str, blamed: set[int]) -> Padding:
    """A line of the merged stacks; where only culprits stand it is the story."""
    alone = re.search(r"\[rank (\d+)\]$", line)
    style = "bold red" if alone and int(alone[1]) in blamed else ""
    return Padding(Text(safe(line), style=style), (0, 0, 0, 2))


def _time(report: Report | IncidentDocument) -> str:
    """Nothing where nothing was captured for the purpose: a folder of dumps, a log."""
    ends = deadline(report)
    if not (report.evidence_complete or ends):
        return ""
    if not ends:
        return safety(report)
    passed = datetime.fromisoformat(ends) <= datetime.now(UTC)
    # A folder of evidence may be of long ago: its job is not there to be ended.
    said = "evidence complete" if passed and type(report) is Report and report.evidence_complete else safety(report)
    return f"{said}; torch's own timeout {'was to end' if passed else 'ends'} the job at {time_and_distance(ends)}"


def _section(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    body = list(lines)
    if body:
        yield Text(f"\n{title}", style="bold")
        yield from map(indented, body)
