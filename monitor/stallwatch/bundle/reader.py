"""Reads an incident: a bundle, several node folders, dumps as torch leaves them, or logs. Everything is optional except
one readable rank; each unreadable file is a caveat."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from stallwatch.bundle.assembly import Assembly
from stallwatch.bundle.child import Job
from stallwatch.bundle.finding import Found, survey
from stallwatch.bundle.kinds import KINDS, Guess
from stallwatch.bundle.workers import Task, parse_all
from stallwatch.errors import UnusableInput
from stallwatch.model.evidence import Evidence
from stallwatch.node import untrusted

_NAMED_PROBLEMS = 5
_UNLIMITED = 1 << 62


def load(paths: Sequence[Path]) -> Evidence:
    """Given folders or files of one incident, return its evidence. Raise UnusableInput, saying what was tried, when no
    rank could be read."""
    found = survey(paths)
    caveats = list(found.problems)
    assembly = Assembly(caveats)
    parse_all([_task(file, assembly, caveats) for file in found.files])
    evidence = assembly.evidence()
    if not evidence.ranks and not evidence.log_events:
        raise _unusable(paths, len(found.files), caveats)
    return evidence


def _task(file: Found, assembly: Assembly, caveats: list[str]) -> Task:
    def done(value: msgspec.Raw | None, clause: str) -> None:
        if value is None:
            caveats.append(f"{file.source}: {clause}")
            return
        try:
            kind, result = file.kind, msgspec.msgpack.decode(value, type=KINDS[file.kind].result)
            if isinstance(result, Guess):
                kind, result = result.kind, msgspec.msgpack.decode(result.value, type=KINDS[result.kind].result)
        except msgspec.DecodeError as error:
            caveats.append(f"{file.source}: the process that read it answered nonsense ({error})")
            return
        assembly.add(file, kind, result)

    return Task(Job(file.kind, file.source, file.look), file.size_bytes, _opener(file), done)


def _opener(file: Found) -> Callable[[], int]:
    kind = KINDS[file.kind]
    return partial(_open, file.path, _UNLIMITED if kind.tail else kind.maximum_bytes)


def _open(path: Path, limit_bytes: int) -> int:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return untrusted.open_regular(folder, path.name, limit_bytes)
    finally:
        os.close(folder)


def _unusable(paths: Sequence[Path], files: int, caveats: Sequence[str]) -> UnusableInput:
    where = ", ".join(map(str, paths))
    tried = f"{files} file{'s' if files != 1 else ''} tried" if files else "no file found that could be a dump or a log"
    named = "; ".join(caveats[:_NAMED_PROBLEMS])
    more = f"; and {len(caveats) - _NAMED_PROBLEMS} more" if len(caveats) > _NAMED_PROBLEMS else ""
    return UnusableInput(
        f"nothing about any rank could be read in {where}: {tried}" + (f" ({named}{more})" if named else ""),
        "Give an incident bundle, a folder of flight recorder dumps (<prefix><rank>), dumps, or the training log.",
    )
