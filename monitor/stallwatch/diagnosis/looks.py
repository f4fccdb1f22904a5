"""Several dumps of one rank: which to read, and which belong together."""

from collections.abc import Iterable

from stallwatch.model.evidence import Recorder


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
