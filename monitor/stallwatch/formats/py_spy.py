"""`py-spy dump --json`: the stacks of a process, or why there are none."""

import re
from typing import Any, Final

from stallwatch.formats.tolerant import boolean, decode_json, integer, items, lines, mapping, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame, Stacks, ThreadStack

_MAXIMUM_THREADS: Final = 4_096
_MAXIMUM_FRAMES: Final = 1_024
_MAXIMUM_ERROR: Final = 2_000
_ERROR_PREFIX: Final = re.compile(r"^(?:Error:\s*)+")


def parse(data: bytes, source: str, look: int = 1) -> Stacks:
    """Given what py-spy printed (or our record of its failure), return it. Raise Unreadable."""
    said = decode_json(data)
    if type(said) is dict and "error" in said:
        message = _ERROR_PREFIX.sub("", lines(said["error"]) or "py-spy failed and did not say why").strip()
        return Stacks(source, look, integer(said.get("pid")), (), message[:_MAXIMUM_ERROR])
    if type(said) is not list:
        raise Unreadable("it is not what `py-spy dump --json` prints")
    cache: dict[tuple[str, str, int], CodeFrame] = {}
    threads = tuple(_thread(thread, cache) for thread in said[:_MAXIMUM_THREADS] if type(thread) is dict)
    if said and not threads:
        raise Unreadable("it is not what `py-spy dump --json` prints")
    pid = next((thread.pid for thread in threads if thread.pid is not None), None)
    return Stacks(source, look, pid, threads)


def _thread(thread: dict[str, Any], cache: dict[tuple[str, str, int], CodeFrame]) -> ThreadStack:
    frames = []
    for frame in items(thread.get("frames"))[:_MAXIMUM_FRAMES]:
        said = mapping(frame)
        key = (text(said.get("name")) or "", text(said.get("filename")) or "", integer(said.get("line")) or 0)
        frames.append(cache.setdefault(key, CodeFrame(*key)))
    return ThreadStack(
        name=text(thread.get("thread_name")) or "",
        os_thread_id=integer(thread.get("os_thread_id")),
        active=boolean(thread.get("active")) is True,
        owns_gil=boolean(thread.get("owns_gil")) is True,
        frames=tuple(frames),
        pid=integer(thread.get("pid")),
        ident=integer(thread.get("thread_id")),
    )
