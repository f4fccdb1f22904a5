"""`py-spy record --format raw --threads`: how often each stack of a process was seen over some seconds."""

import re
from typing import Final

from stallwatch.formats.outside_text import line_of
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame, Profile, SampledStack

_MOST_STACKS: Final = 20_000
_MOST_FRAMES: Final = 1_024
_MOST_SAMPLES: Final = 1_000_000_000
_CHATTER: Final = "py-spy> "  # what it tells a person, on the same output
_THREAD: Final = re.compile(r"thread \((?P<id>[^)]*)\)(?:: (?P<name>.*))?")
_FRAME: Final = re.compile(r"(?P<function>.*?) \((?P<file>.*?)(?::(?P<line>[0-9]{1,9}))?\)")
_CHILD: Final = re.compile(r"\.child-([0-9]{1,9})")


def parse(data: bytes, source: str, look: int = 1) -> Profile:
    """Given what py-spy printed, return it; lines that are no stack are left out. Raise Unreadable when none is one."""
    stacks: list[SampledStack] = []
    said = [line_of(line.decode("utf-8", "surrogateescape")) for line in data.splitlines()[: 2 * _MOST_STACKS]]
    cache: dict[str, CodeFrame] = {}
    for line in said:
        if line and not line.startswith(_CHATTER) and (stack := _stack(line, cache)) is not None:
            stacks.append(stack)
    if not stacks:
        raise Unreadable("it is not what `py-spy record --format raw` prints, or no thread was seen")
    child = _CHILD.search(source)
    return Profile(source, look, tuple(stacks[:_MOST_STACKS]), int(child[1]) if child else None)


def _stack(line: str, cache: dict[str, CodeFrame]) -> SampledStack | None:
    """Outermost first: "thread (22754): MainThread;<module> (train.py:13);load (data.py:4) 41"."""
    body, _, count = line.rpartition(" ")
    if not count.isdecimal() or len(count) > 10:
        return None
    parts = body.split(";")
    thread = _THREAD.fullmatch(parts[0])
    words = parts[1:] if thread else parts
    frames = [frame for word in words[-_MOST_FRAMES:] if (frame := _frame(word, cache)) is not None]
    if not frames:
        return None
    number = thread["id"] if thread else ""
    return SampledStack(
        thread=(thread["name"] or "") if thread else "",
        os_thread_id=int(number) if number.isdecimal() and len(number) < 10 else None,
        frames=tuple(reversed(frames)),
        count=min(int(count), _MOST_SAMPLES),
    )


def _frame(word: str, cache: dict[str, CodeFrame]) -> CodeFrame | None:
    found = _FRAME.fullmatch(word)
    if found is None:
        return None
    return cache.setdefault(word, CodeFrame(found["function"], found["file"], int(found["line"] or 0)))
