"""The files of one rank, or of one node, as one value: of what several files say the newest, contradictions named."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from stallwatch.bundle.deduplicate import OF_A_LOOK, Parsed, looks_of_former_lives
from stallwatch.bundle.description import Description
from stallwatch.bundle.thread_ids import as_the_node_numbers
from stallwatch.diagnosis.logs.consequence import only_waited
from stallwatch.formats.recorder_table import CallSites, RecorderTable, expand
from stallwatch.formats.stack_texts import at_end
from stallwatch.model.evidence import NodeEvidence, RankEvidence, RasCommunicator, RecordedGroup, Recorder, Stacks
from stallwatch.model.gpu import Gpu
from stallwatch.model.log_event import KernelLog, LogEvent, LogTail
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.summary import RankSummary


def merged_rank(
    rank: int,
    parts: Sequence[Parsed],
    description: Description,
    events: Sequence[LogEvent],
    summary: RankSummary | None,
    stacks: CallSites,
    caveats: list[str],
) -> RankEvidence:
    """Given the files that tell of a rank and the description of their bundle, return what they say together.

    `events`: of logs that several ranks share. `summary`: of its dumps, if they were reduced as they were read.
    `stacks`: call sites of all ranks, each kept once. `caveats`: what is not used of the files is added there.
    """
    by_kind: dict[str, list[Any]] = defaultdict(list)
    former = looks_of_former_lives(parts, description.pids.get(rank))
    if former:
        told = ", ".join(map(str, sorted(former)))
        caveats.append(f"rank {rank}: look {told} is of another process that was this rank before; not used")
    parts = [part for part in parts if part.file.look not in former or part.kind not in OF_A_LOOK]
    for part in sorted(parts, key=lambda part: (part.file.look, part.file.source)):
        by_kind[part.kind].append(part.value)
    heartbeats: list[Heartbeat] = by_kind["heartbeat"]
    logs: list[LogTail] = by_kind["log"]
    pids = [description.pids.get(rank), *(look.pid for look in by_kind["process"]), *(h.pid for h in heartbeats)]
    steps = [description.last_step.get(rank), *(h.step for h in reversed(heartbeats))]
    return RankEvidence(
        rank=rank,
        host=description.host_of(rank) or next((h.node for h in heartbeats if h.node), None),
        pid=next((pid for pid in pids if pid is not None), None),
        recorders=_recorders(rank, by_kind["recorder"], stacks, caveats),
        stacks=as_the_node_numbers(by_kind["stacks"], by_kind["process"]) or _stacks_of_logs(parts),
        processes=tuple(by_kind["process"]),
        heartbeat=tuple(heartbeats),
        scenes=tuple(by_kind["scene"]),
        profiles=tuple(by_kind["profile"]),
        usages=tuple(by_kind["usage"]),
        attempts=tuple(attempt for attempts in by_kind["attempts"] for attempt in attempts),
        log=tuple(line for log in logs for line in log.lines),
        captured_at_ns=description.captured_at_ns.get(rank),
        last_step=next((step for step in steps if step is not None), None),
        sources=tuple(line for lines in by_kind["sources"] for line in lines),
        log_events=tuple(sorted((*(e for log in logs for e in log.events), *events), key=lambda e: (e.source, e.line))),
        summary=summary,
    )


def _stacks_of_logs(parts: Sequence[Parsed]) -> tuple[Stacks, ...]:
    """Of a rank of which nobody took stacks or looked at its process: those with which its own log ends."""
    if any(part.kind == "process" for part in parts):
        return ()
    logs = [part for part in parts if part.kind == "log"]
    found = (at_end(one.value.lines, one.file.source, aborted=only_waited(one.value.events)) for one in logs)
    return tuple(stacks for stacks in found if stacks is not None)[:1]


def _recorders(
    rank: int, tables: Sequence[RecorderTable], stacks: CallSites, caveats: list[str]
) -> tuple[Recorder, ...]:
    chosen: dict[tuple[str, int], Recorder] = {}
    for table in tables:
        recorder = expand(table, stacks)
        caveats.extend(f"{table.source}: {caveat}" for caveat in table.caveats)
        key = (recorder.backend, recorder.look)
        other = chosen.setdefault(key, recorder)
        if other is recorder:
            continue
        older, newer = sorted((other, recorder), key=_newness)
        chosen[key] = newer
        if older.operations != newer.operations or older.status != newer.status:
            caveats.append(
                f"rank {rank} has two {recorder.backend or 'unnamed'} dumps, {older.source} and {newer.source}; "
                "the newer one is used"
            )
    return tuple(sorted(chosen.values(), key=lambda recorder: (recorder.look, recorder.source)))


def _newness(recorder: Recorder) -> tuple[int, int, str]:
    created = [operation.created_ns or 0 for operation in recorder.operations[-1:]]
    return max(created, default=0), len(recorder.operations), recorder.source


def with_world(rank: RankEvidence, world: tuple[int, ...]) -> RankEvidence:
    """gloo configures the first group of a process under the name "": where that is the whole world, say so."""
    recorders = []
    for recorder in rank.recorders:
        unnamed = [group for group in recorder.groups if group.name == "" and group.ranks == world]
        first = next(((o.group_name, o.group_description) for o in recorder.operations if o.pg_id == 0), None)
        if world and unnamed and first and not any(g.name == first[0] and g.ranks for g in recorder.groups):
            groups = tuple(RecordedGroup(*first, world) if group.name == "" else group for group in recorder.groups)
            recorder = msgspec.structs.replace(recorder, groups=groups)
        recorders.append(recorder)
    return msgspec.structs.replace(rank, recorders=tuple(recorders))


def merged_node(host: str, ranks: tuple[int, ...], parts: Sequence[Parsed]) -> NodeEvidence:
    """Given the files of a node and the ranks that ran there, return what they say together."""
    ordered = sorted(parts, key=lambda part: (part.file.look, part.file.source))
    samples: list[tuple[Gpu, ...]] = [s for part in ordered if part.kind == "gpus" for s in part.value]
    # The report for people says less than the JSON of the same look.
    reports = sorted((part for part in ordered if part.kind == "ras"), key=lambda p: (-p.file.look, p.file.path.suffix))
    ras: dict[str, RasCommunicator] = {}  # of the newest look; services of several ports tell of their own jobs
    for report in (part for part in reports if part.file.look == reports[0].file.look):
        for communicator in report.value:
            ras.setdefault(communicator.hash.removeprefix("0x"), communicator)
    kernel: list[KernelLog] = [part.value for part in ordered if part.kind == "kernel_log"]
    return NodeEvidence(
        host=host,
        ranks=ranks,
        gpus=tuple(samples),
        ras=tuple(ras.values()),
        kernel_log=tuple(line for log in kernel for line in log.lines) if kernel else None,
        kernel_events=tuple(
            event
            for part in ordered
            if part.kind in ("kernel_log", "log")
            for event in (part.value.events if part.kind == "kernel_log" else part.value.kernel)
        ),
    )
