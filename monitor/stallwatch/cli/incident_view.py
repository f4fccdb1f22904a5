"""An incident as a person at a terminal wants to read it: the sentence, the code line, why, what next."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from stallwatch.cli.terminal import SEVERITY_STYLES, local_time, safe
from stallwatch.model.verdict import CulpritProcess, StackNode, Verdict
from stallwatch.outputs.documents import IncidentDocument

_MOST_CULPRITS = 16


def incident_view(incident: IncidentDocument) -> RenderableType:
    return Group(*_parts(incident))


def _parts(incident: IncidentDocument) -> Iterator[RenderableType]:
    yield _head(incident)
    if not incident.verdicts:
        yield Text("No verdict yet.")
        yield from _list("Seen", [finding.reason for finding in incident.findings])
    for place, verdict in enumerate(incident.verdicts):
        if place:
            yield Text("\nAlso:", style="dim")
        yield from verdict_parts(verdict)
    if incident.stacks is not None:
        yield Text("\nStacks", style="bold")
        yield Padding(_tree(incident.stacks), (0, 0, 0, 2))
    yield from _list("Caveats", list(incident.caveats))
    yield from _foot(incident)


def verdict_parts(verdict: Verdict) -> Iterator[RenderableType]:
    """The parts of one verdict, each its own block of lines."""
    yield Text(safe(verdict.summary), style="bold")
    where = f", {verdict.where}" if verdict.where else ""
    yield Text(f"{verdict.cause}{where} ({verdict.confidence})", style="dim")
    for process in verdict.culprit_processes[:_MOST_CULPRITS]:
        yield Padding(_culprit(process), (0, 0, 0, 2))
    if len(verdict.culprit_processes) > _MOST_CULPRITS:
        yield Text(f"  and {len(verdict.culprit_processes) - _MOST_CULPRITS} more")
    if verdict.waiting:
        operation = f" in {verdict.operation}" if verdict.operation else ""
        number = f" #{verdict.seq}" if verdict.operation and verdict.seq is not None else ""
        yield Text(safe(f"  waiting: ranks {verdict.waiting}{operation}{number}"))
    yield from _list("Because", [f"{fact.fact} ({fact.source})" for fact in verdict.because])
    yield from _list("Next", list(verdict.next_steps))
    yield from _list("Not", [f"{other.cause}: {other.why}" for other in verdict.rejected])
    yield from _list("Missing", list(verdict.missing))


def _head(incident: IncidentDocument) -> Text:
    head = Text()
    head.append(safe(incident.incident_id), style="bold")
    head.append(f"  {incident.state}  ")
    head.append(incident.severity, style=SEVERITY_STYLES[incident.severity])
    head.append("  muted" if incident.muted else "")
    head.append(safe(f"  job {incident.training_job} on {incident.node}"), style="dim")
    return head


def _culprit(process: CulpritProcess) -> Text:
    text = Text()
    text.append(f"rank {process.rank}", style="bold red")
    for word in (
        process.host,
        f"pid {process.pid}" if process.pid is not None else None,
        process.gpu_uuid,
        f"in {process.where}" if process.where else None,
    ):
        text.append(safe(f"  {word}") if word else "")
    if process.frame is not None:
        frame = process.frame
        text.append(safe(f"\n{frame.file}:{frame.line} in {frame.function}"), style="cyan")
        if frame.source:
            text.append(safe(f"\n    {frame.source.strip()}"), style="yellow")
    return text


def _list(title: str, lines: list[str]) -> Iterator[RenderableType]:
    if lines:
        yield Text(f"\n{title}", style="bold")
        for line in lines:
            yield Padding(Text(f"• {safe(line)}"), (0, 0, 0, 2))


def _tree(node: StackNode) -> Tree:
    tree = Tree(_frame(node), guide_style="dim")
    _grow(tree, node)
    return tree


def _grow(tree: Tree, node: StackNode) -> None:
    """Follow single children in place: only where ranks part does the picture step to the right."""
    while len(node.children) == 1 and node.children[0].ranks == node.ranks:
        node = node.children[0]
        tree.add(_frame(node))
    for child in node.children:
        _grow(tree.add(_frame(child)), child)


def _frame(node: StackNode) -> Text:
    place = f"{node.file}:{node.line}" if node.line is not None else node.file
    text = Text()
    text.append(f"[{node.ranks}] ", style="bold" if node.count == 1 else "dim")
    text.append(safe(f"{node.function}  "))
    text.append(safe(place), style="dim")
    return text


def _foot(incident: IncidentDocument) -> Iterator[RenderableType]:
    yield Text("\nHistory", style="bold")
    for event in incident.events:
        yield Text(f"  {local_time(event.at)}  {safe(event.what)}")
    kept = "complete" if incident.evidence_complete else "not complete"
    if incident.evidence_complete and incident.state != "resolved":
        kept += ": the job can be ended without losing any"
    if incident.verdicts:
        yield Text(f"\nEvidence {kept}", style="green" if incident.evidence_complete else "yellow")
    if incident.deadline and incident.state != "resolved":
        yield Text(f"torch's own timeout ends the job at {local_time(incident.deadline)}")
    if incident.bundle:
        yield Text(safe(f"{incident.bundle}"), style="dim")
