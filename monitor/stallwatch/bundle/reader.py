"""Reads an incident: a bundle, several node folders, dumps as torch leaves them, or logs. Everything is optional except
one readable rank; each unreadable file is a caveat."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from stallwatch import diagnosis
from stallwatch.bundle.assembly import Assembly
from stallwatch.bundle.child import MAXIMUM_PARTS, OpenFile
from stallwatch.bundle.discovery import Found, readable, survey
from stallwatch.bundle.file_kinds import KINDS, PackedGuess
from stallwatch.bundle.workers import DEFAULT_LIMITS, FileTask, Limits, Task, parse_all
from stallwatch.errors import UnusableInput
from stallwatch.formats.log_progress import is_of_a_log
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Evidence
from stallwatch.model.summary import RankSummary
from stallwatch.node import untrusted

# Above this, recorders are reduced where they are parsed: 64 MiB are some 50,000 to 100,000 entries.
SUMMARISED_BYTES: Final = 64 << 20
_NAMED_PROBLEMS: Final = 5
_UNLIMITED: Final = 1 << 62


def load(
    paths: Sequence[Path],
    limits: Limits = DEFAULT_LIMITS,
    *,
    summarised_bytes: int = SUMMARISED_BYTES,
    up_to_look: int | None = None,
    is_judged: bool = True,
) -> Evidence:
    """Given folders or files of one incident, return its evidence. Raise UnusableInput, saying what was tried, when
    they tell nothing about any rank or failure. More than `summarised_bytes` of recorders are reduced to summaries.
    `up_to_look`: as it was when that look was done, as far as files tell of looks. `is_judged`: as an incident, by what
    is imported meanwhile."""
    evidence, files = read(paths, limits, summarised_bytes=summarised_bytes, up_to_look=up_to_look, is_judged=is_judged)
    if not tells_something(evidence):
        raise _unusable(paths, files, evidence.caveats)
    return evidence


def tells_something(evidence: Evidence) -> bool:
    """Whether there is a rank, or a line of a log that means something or looks like an error; or the end of a log that
    breaks off, as that of a job that hangs does."""
    if evidence.ranks or any(node.kernel_events for node in evidence.nodes):
        return True
    shown = any(
        event.kind == "error_like" or (event.kind == "last_line" and (event.at or is_of_a_log(event.text)))
        for event in evidence.log_events
    )
    return shown or diagnosis.read_logs((), evidence.log_events).says_something


def read(
    paths: Sequence[Path],
    limits: Limits = DEFAULT_LIMITS,
    *,
    summarised_bytes: int = SUMMARISED_BYTES,
    up_to_look: int | None = None,
    is_judged: bool = True,
) -> tuple[Evidence, int]:
    """The same whatever it tells, and how many files were tried."""
    found = survey(paths)
    files = [file for file in found.files if up_to_look is None or file.look <= up_to_look]
    reading = _Reading(list(found.problems))
    large = sum(file.size_bytes for file in files if _may_be_recorder(file)) > summarised_bytes
    meanwhile = _load_diagnosis if is_judged else None
    parse_all(reading.tasks(files, large=large), limits, meanwhile, forks=not is_judged)
    evidence = reading.assembly.evidence()
    return evidence if up_to_look is None else _without_later_attempts(evidence, up_to_look), len(files)


def _load_diagnosis() -> None:
    """What judges the evidence takes longer to import than a child to start."""
    import_module("stallwatch.diagnosis.verdicts")


def _without_later_attempts(evidence: Evidence, look: int) -> Evidence:
    ranks = (
        msgspec.structs.replace(rank, attempts=tuple(one for one in rank.attempts if one.look <= look))
        for rank in evidence.ranks
    )
    return msgspec.structs.replace(evidence, ranks=tuple(ranks))


def _may_be_recorder(file: Found) -> bool:
    return file.kind == "recorder" or (file.kind == "guess" and file.rank is not None)


class _Reading:
    def __init__(self, caveats: list[str]) -> None:
        self.caveats = caveats
        self.assembly = Assembly(caveats)

    def tasks(self, files: Sequence[Found], *, large: bool) -> list[Task]:
        tasks = []
        recorders: dict[tuple[str, int], list[Found]] = defaultdict(list)
        for file in files:
            if large and file.rank is not None and _may_be_recorder(file):
                recorders[file.bundle, file.rank].append(file)
            else:
                tasks.append(Task([self._file_task(file)]))
        for (bundle, rank), group in recorders.items():
            together = len(group) <= MAXIMUM_PARTS
            summarised = partial(self._summarised, rank, bundle)
            parts = [self._file_task(file) for file in group]
            tasks += [Task(parts, rank, summarised)] if together else [Task([part]) for part in parts]
        return tasks

    def _file_task(self, file: Found) -> FileTask:
        part = OpenFile(file.kind, file.source, file.look)
        return FileTask(part, file.size_bytes, opener(file), partial(self._done, file))

    def _done(self, file: Found, value: msgspec.Raw | None, clause: str) -> None:
        if value is None and not os.path.lexists(file.path):
            return  # it has gone since the folder was listed: the look that goes on writes its files anew
        if value is None:
            self.caveats.append(f"{file.source}: {clause}")
            return
        try:
            kind, result = file.kind, msgspec.msgpack.decode(value, type=KINDS[file.kind].result)
            if isinstance(result, PackedGuess):
                kind, result = result.kind, msgspec.msgpack.decode(result.value, type=KINDS[result.kind].result)
        except NOT_JSON as error:
            self.caveats.append(f"{file.source}: the process that read it answered nonsense ({error})")
            return
        self.assembly.add(file, kind, result)

    def _summarised(self, rank: int, bundle: str, summary: msgspec.Raw) -> None:
        self.assembly.add_summary(rank, bundle, msgspec.msgpack.decode(summary, type=RankSummary))


def opener(file: Found) -> Callable[[], int]:
    """Return what opens it: no link, no more than its kind may take. It raises OSError and StallwatchError."""
    kind = KINDS[file.kind]
    return partial(_open, file.path, _UNLIMITED if kind.tail or kind.of_log else kind.maximum_bytes)


def _open(path: Path, limit_bytes: int) -> int:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = untrusted.open_regular(folder, path.name, limit_bytes)
    finally:
        os.close(folder)
    if limit_bytes != _UNLIMITED:
        try:
            untrusted.check_holes(descriptor, readable(path.name))
        except untrusted.FileRefused:
            os.close(descriptor)
            raise
    return descriptor


def _unusable(paths: Sequence[Path], files: int, caveats: Sequence[str]) -> UnusableInput:
    where = ", ".join(readable(str(path)) for path in paths)
    tried = f"{files} file{'s' if files != 1 else ''} tried" if files else "no file found that could be a dump or a log"
    named = "; ".join(caveats[:_NAMED_PROBLEMS])
    more = f"; and {len(caveats) - _NAMED_PROBLEMS} more" if len(caveats) > _NAMED_PROBLEMS else ""
    return UnusableInput(
        f"nothing about any rank could be read in {where}: {tried}" + (f" ({named}{more})" if named else ""),
        "Give an incident's folder (the last line of `stallwatch incidents ID` names it), a folder of flight recorder "
        "dumps (<prefix><rank>), dumps, or the training log.",
    )
