"""A report as a person reads it: the sentence first, then who, where, why, and what to do."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from stallwatch.diagnosis.stacktree import render
from stallwatch.model.verdict import CulpritProcess, Report, Verdict

_MAXIMUM_CULPRITS = 8
_MAXIMUM_CAVEATS = 12
_MAXIMUM_STACK_LINES = 40
_STYLES = {"healthy": "bold green", "waiting": "bold yellow", "slow_rank": "bold yellow", "undecided": "bold yellow"}
_HEADING = "bold"


def print_report(report: Report, console: Console) -> None:
    """Print to a terminal with colours, to a pipe without."""
    for line, style in _lines(report):
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    primary = report.verdicts[0]
    yield primary.summary, _STYLES.get(primary.cause, "bold red")
    yield f"  {primary.cause}, {primary.confidence}{_more(primary)}", "dim"
    yield from _section("culprits", map(_culprit, primary.culprit_processes[:_MAXIMUM_CULPRITS]))
    hidden = len(primary.culprit_processes) - _MAXIMUM_CULPRITS
    if hidden > 0:
        yield f"  and {hidden} more", ""
    yield from _section("because", (f"{fact.fact}  ({fact.source})" for fact in primary.because))
    yield from _section("next", (f"{number}. {step}" for number, step in enumerate(primary.next_steps, 1)))
    yield from _section("not known", primary.missing)
    yield from _section("rejected", (f"{rejected.cause}: {rejected.why}" for rejected in primary.rejected))
    for other in report.verdicts[1:]:
        yield from _section("also", [f"{other.summary}  ({other.cause}, {other.confidence})"])
    if report.stacks:
        yield from _section("stacks", render(report.stacks, maximum_lines=_MAXIMUM_STACK_LINES))
    if report.deadline:
        state = "evidence complete, safe to kill" if report.evidence_complete else "evidence is not complete"
        yield from _section("time", [f"{state}; torch's own time-out ends the job at {report.deadline}"])
    yield from _section("caveats", report.caveats[:_MAXIMUM_CAVEATS])
    if len(report.caveats) > _MAXIMUM_CAVEATS:
        yield f"  and {len(report.caveats) - _MAXIMUM_CAVEATS} more; --json lists them", ""


def _section(title: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    body = list(lines)
    if body:
        yield "", ""
        yield title, _HEADING
        for line in body:
            yield f"  {line}", ""


def _more(verdict: Verdict) -> str:
    parts = []
    if verdict.operation:
        parts.append(verdict.operation + (f" #{verdict.seq}" if verdict.seq is not None else ""))
    if verdict.process_group:
        parts.append(f"group {verdict.process_group.description}")
    if verdict.waiting:
        parts.append(f"waiting: ranks {verdict.waiting}")
    if verdict.mismatch:
        parts.append(f"expected {verdict.mismatch.expected}, found {verdict.mismatch.found}")
    return "".join(f"; {part}" for part in parts)


def _culprit(process: CulpritProcess) -> str:
    identity = [f"pid {process.pid}" if process.pid is not None else "", f"on {process.host}" if process.host else ""]
    line = f"rank {process.rank}  {' '.join(part for part in identity if part)}".rstrip()
    if process.where and process.where != "unknown":
        line += f"  {process.where}"
    if process.frame:
        line += f"  {process.frame.file}:{process.frame.line} {process.frame.function}"
        if process.frame.source:
            line += f"\n      {process.frame.source.strip()}"
    return line
