"""Several dumps of one rank: which to read, and which belong together."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from stallwatch.diagnosis.completion import UNTOLD, completion_of
from stallwatch.model.evidence import Operation, Recorder


def by_backend(recorders: Iterable[Recorder]) -> list[Recorder]:
    """Given dumps, return one recorder for each back end in each of them: back ends may share a ring, and number their
    calls and tell of their ends each in its own way."""
    parts: list[Recorder] = []
    for recorder in recorders:
        backends = {operation.backend for operation in recorder.operations}
        if len(backends) < 2:
            parts.append(recorder)
        else:
            parts += _parts(recorder, sorted(backends))
    return parts


def _parts(recorder: Recorder, backends: Sequence[str]) -> list[Recorder]:
    entries = {name: tuple(entry for entry in recorder.operations if entry.backend == name) for name in backends}
    parts = {name: replace(recorder, backend=name, operations=entries[name]) for name in backends}
    telling = {_identity(entry) for name in backends if _tells(parts[name]) for entry in entries[name]}
    for name in backends:
        if not _tells(parts[name]):
            twice = {entry.group_name for entry in entries[name] if _identity(entry) in telling}
            kept = tuple(entry for entry in entries[name] if entry.group_name not in twice)
            parts[name] = replace(parts[name], operations=kept)
    return [part for part in parts.values() if part.operations]


def _tells(recorder: Recorder) -> bool:
    return completion_of((recorder,)) not in UNTOLD


def _identity(entry: Operation) -> tuple[str, int, str]:
    """What a hook on the process group ("allreduce") and the back end itself ("all_reduce") record of one call."""
    return entry.group_name, entry.collective_seq_id, entry.name.replace("_", "")


def latest_of(recorders: Iterable[Recorder]) -> list[Recorder]:
    best: dict[str, Recorder] = {}
    for recorder in recorders:
        known = best.get(backend_of(recorder))
        if known is None or _newness(recorder) > _newness(known):
            best[backend_of(recorder)] = recorder
    return [best[backend] for backend in sorted(best)]


def _newness(recorder: Recorder) -> tuple[bool, int, int, int, str]:
    """A dump that broke off has lost its newest entries: the look before it says more."""
    last = recorder.operations[-1].record_id if recorder.operations else -1
    return not recorder.cut_short, recorder.look, last, len(recorder.operations), recorder.source


def backend_of(recorder: Recorder) -> str:
    return recorder.backend or (recorder.operations[-1].backend if recorder.operations else "")


def same_source(one: Recorder, other: Recorder) -> bool:
    return backend_of(one) == backend_of(other)
