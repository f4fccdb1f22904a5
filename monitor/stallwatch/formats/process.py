"""process*.json: what /proc said about a rank at one look. Captures of other tools have fewer keys."""

from typing import Any

from stallwatch.formats.tolerant import boolean, decode_json, integer, items, mapping, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import ChildProcess, ProcessLook, ThreadState

_STATES = frozenset("RSDTtZXxKWPI")


def parse(data: bytes, source: str, look: int = 1) -> ProcessLook:
    """Raise Unreadable when it is not an object with at least a pid, a state or an exit."""
    said = decode_json(data)
    if type(said) is not dict or not said.keys() & {"pid", "state", "exit_code", "exit_signal"}:
        raise Unreadable("it does not describe a process")
    return ProcessLook(
        source=source,
        look=look,
        pid=integer(said.get("pid")),
        state=_state(said.get("state")),
        exit_code=integer(said.get("exit_code")),
        exit_signal=integer(said.get("exit_signal")),
        wchan=text(said.get("wchan")),
        cpu_ticks=integer(said.get("cpu_ticks")),
        threads=tuple(_thread(mapping(thread)) for thread in items(said.get("threads"))),
        children=tuple(_child(mapping(child)) for child in items(said.get("children"))),
        tracer_pid=integer(said.get("tracer_pid")),
        read_bytes=integer(said.get("read_bytes")),
        write_bytes=integer(said.get("write_bytes")),
        own_read_bytes=integer(said.get("own_read_bytes")) or 0,
        own_write_bytes=integer(said.get("own_write_bytes")) or 0,
        exit_source=text(said.get("exit_source")),
        out_of_memory=boolean(said.get("out_of_memory")),
        at_ns=integer(said.get("at_ns")),
        ended_ns=integer(said.get("ended_ns")),
        namespace_pid=integer(said.get("namespace_pid")),
        shared_memory_bytes=_pair(said.get("shared_memory_bytes")),
        open_files=_pair(said.get("open_files")),
        memory_bytes=_used(said.get("memory_bytes")),
        out_of_memory_kills=integer(said.get("out_of_memory_kills")),
        lock_holder_pid=integer(said.get("lock_holder_pid")),
    )


def _used(value: object) -> tuple[int, int | None] | None:
    """(used, limit); the limit may be None, which is none."""
    numbers = items(value)
    used = integer(numbers[0]) if len(numbers) == 2 else None
    return None if used is None else (used, integer(numbers[1]))


def _pair(value: object) -> tuple[int, int] | None:
    both = _used(value)
    return None if both is None or both[1] is None else (both[0], both[1])


def _state(value: object) -> str | None:
    """One letter; "S (sleeping)" of /proc/<pid>/status is read as well."""
    letter = (text(value) or "").strip()[:1]
    return letter if letter in _STATES and letter else None


def _thread(said: dict[str, Any]) -> ThreadState:
    return ThreadState(
        tid=integer(said.get("tid")) or 0,
        name=text(said.get("name")) or "",
        state=_state(said.get("state")) or "",
        cpu_ticks=integer(said.get("cpu_ticks")),
        wchan=text(said.get("wchan")),
        namespace_tid=integer(said.get("namespace_tid")),
        wakes=integer(said.get("wakes")),
        own_wakes=integer(said.get("own_wakes")) or 0,
        waits_on=text(said.get("waits_on")) or "",
        moved_bytes=integer(said.get("moved_bytes")),
        awaited_child=integer(said.get("awaited_child")),
        endless=said["endless"] if isinstance(said.get("endless"), bool) else None,
    )


def _child(said: dict[str, Any]) -> ChildProcess:
    return ChildProcess(
        pid=integer(said.get("pid")) or 0,
        state=_state(said.get("state")) or "",
        command=text(said.get("command")) or "",
        cpu_ticks=integer(said.get("cpu_ticks")),
        wchan=text(said.get("wchan")),
        namespace_pid=integer(said.get("namespace_pid")),
        waits_on=text(said.get("waits_on")) or "",
        parent_pid=integer(said.get("parent_pid")),
        reaped_ticks=integer(said.get("reaped_ticks")) or 0,
        moved_bytes=integer(said.get("moved_bytes")),
    )
