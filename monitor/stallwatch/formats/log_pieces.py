"""Logs of any length: what may mean something is picked out of the whole first, and only that is parsed.

Most lines of a long log are the same but for their numbers. A block's lines without digits, those that were looked at
before left out, are searched for words that every meaningful line has one of; only where one is found is the block
itself searched for it. Which of these may be in a text, its vocabulary tells, most of which earlier blocks had, too.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from stallwatch.formats import kernel_log, training_log
from stallwatch.formats.log_patterns import PATTERNS
from stallwatch.model.log_event import LogTail

WHOLE_BYTES: Final = 8 << 20  # up to this a log is parsed as it is
_BLOCK_BYTES: Final = 1 << 20
# Of what was picked out: the first cause stands early, the launcher's summary late.
_EARLY_BYTES, _LATE_BYTES = 6 << 20, 6 << 20
_END_BYTES: Final = 64 << 10  # of the log, picked whatever stands there
_BEGIN_BYTES: Final = 4 << 10  # likewise: it tells whether the log begins within what a watchdog wrote
_MOST_EVENTS: Final = 20_000
_AFTER_LINES: Final = 200  # a traceback and, between its lines, those of other ranks
# Those of addresses and hashes in hexadecimal too: what is left of such lines is alike.
_DIGITS: Final = b"0123456789abcdef"
_MOST_SHAPES_BYTES: Final = 4 << 20  # of lines without digits that are remembered
NEEDLES: Final = tuple(
    sorted(
        {pattern.needle.encode() for pattern in PATTERNS}
        | {b"Traceback (most recent call last)", b"ChildFailedError", b"Root Cause (first observed failure)"}
        | {needle.encode() for needle in kernel_log.NEEDLES}
    )
)
_WITHOUT_DIGITS: Final = tuple((needle, needle.translate(None, _DIGITS)) for needle in NEEDLES)
_LETTERS: Final = 5  # of a word that tell whether it may be one that is looked for
_MOST_WORDS_BYTES: Final = 4 << 20  # of words that are remembered


def parse_pieces(read: Callable[[int], bytes], head: bytes = b"") -> LogTail:
    """Given a function that returns the next bytes of a log (b"" at its end) and what was read of it before, return
    what is of note in it; lines are numbered as in the log."""
    early: list[tuple[int, bytes]] = []
    late: list[tuple[int, bytes]] = []
    early_bytes = late_bytes = 0
    for first_line, text in _pieces(read, head):
        if early_bytes < _EARLY_BYTES:
            early.append((first_line, text))
            early_bytes += len(text)
            continue
        late.append((first_line, text))
        late_bytes += len(text)
        while late_bytes > _LATE_BYTES and len(late) > 1:
            late_bytes -= len(late.pop(0)[1])
    starts: list[tuple[int, int]] = []  # line within what was picked, line within the log
    at = 1
    for first_line, text in (*early, *late):
        starts.append((at, first_line))
        at += text.count(b"\n")
    tail = training_log.parse(b"".join(text for _, text in (*early, *late)), _MOST_EVENTS)
    return LogTail(
        tail.lines,
        tuple(replace(event, line=_in_log(event.line, starts)) for event in tail.events),
        tuple(replace(event, line=_in_log(event.line, starts)) for event in tail.kernel),
        tail.nodes,
        tail.by_local_rank,
    )


def _in_log(line: int, starts: list[tuple[int, int]]) -> int:
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle][0] <= line:
            low = middle
        else:
            high = middle
    return line - starts[low][0] + starts[low][1] if starts else line


def _pieces(read: Callable[[int], bytes], head: bytes) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, whole lines) of every part of the log that may mean something, and of its end."""
    line, rest = 1, b""
    shapes = Shapes()
    blocks = _blocks(read, head)
    data = next(blocks, b"")
    while data:
        block = rest + data
        data = next(blocks, b"")
        if data:
            end = block.rfind(b"\n") + 1
            if end == 0 and len(block) < 4 * _BLOCK_BYTES:
                rest = block  # a line longer than a block
                continue
            end = end or len(block)
            block, rest = block[:end], block[end:]
        elif not block.endswith(b"\n"):
            block += b"\n"
        at = 0
        needles, lines = shapes.needles_in(block)
        windows = list(_windows(block, needles)) if needles else []
        if line == 1:
            windows = _with_begin(block, windows)
        if not data:
            windows = _with_end(block, windows)
        if not windows:
            line += lines
            continue
        for start, stop in windows:
            line += block.count(b"\n", at, start)
            yield line, block[start:stop]
            line += block.count(b"\n", start, stop)
            at = stop
        line += block.count(b"\n", at)


def _blocks(read: Callable[[int], bytes], head: bytes) -> Iterator[bytes]:
    for at in range(0, len(head), _BLOCK_BYTES):
        yield head[at : at + _BLOCK_BYTES]
    while data := read(_BLOCK_BYTES):
        yield data


def _words_of(shape: bytes) -> tuple[bytes, ...]:
    """What a text must have among its words, one a line, where it holds this: the inner words as they are, the first
    and the last as an end and a beginning."""
    words = shape.split()
    if len(words) == 1 and words[0] == shape:
        return (shape,)
    first = b"" if shape[:1] != b" " else b"\n"
    last = b"" if shape[-1:] != b" " else b"\n"
    inner = (b"\n" + word + b"\n" for word in words[1:-1])
    if len(words) == 1:
        return (first + words[0] + last,)
    return (first + words[0] + b"\n", *inner, b"\n" + words[-1] + last)


class _Words:
    """The words that a log has had. Of a text of its own, these are soon known, and say which needles may be in it."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._bytes = 0
        self._wanted = {both: set(_words_of(both[1])) for both in _WITHOUT_DIGITS}
        self._live: list[tuple[bytes, bytes]] = []  # all of whose words the log has had

    def possible(self, text: bytes) -> list[tuple[bytes, bytes]]:
        """The needles, with their shapes, that may be in a text."""
        new = set(text.split()) - self._known
        if new:
            self._take(new)
        return self._live

    def _candidates(self, new: set[bytes]) -> Iterator[bytes]:
        """The wanted words that may be among new ones, by their first and last letters: most are not."""
        heads, tails = set(new), set(new)
        for letters in range(1, _LETTERS + 1):
            heads.update([word[:letters] for word in new])
            tails.update([word[-letters:] for word in new])
        for word in set().union(*self._wanted.values()) if self._wanted else ():
            alone = word.strip(b"\n")
            if word[:1] == b"\n" == word[-1:]:
                possible = alone in new
            elif word[:1] == b"\n":
                possible = alone[:_LETTERS] in heads
            else:
                possible = word[-1:] != b"\n" or alone[-_LETTERS:] in tails
            if possible:
                yield word

    def _take(self, new: set[bytes]) -> None:
        words = b"\n" + b"\n".join(new) + b"\n"
        found = {word for word in self._candidates(new) if word in words}
        for both in list(self._wanted) if found else ():
            self._wanted[both] -= found
            if not self._wanted[both]:
                self._live.append(both)
                del self._wanted[both]
        if self._bytes + len(words) > _MOST_WORDS_BYTES:
            self._known, self._bytes = set(), 0
        self._known |= new
        self._bytes += len(words)


class Shapes:
    """Lines without their digits that were searched already."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._bytes = 0
        self._words = _Words()

    def needles_in(self, block: bytes) -> tuple[list[bytes], int]:
        """The words that lines of the block have, which were not found in vain before; and how often a line ends."""
        text = block.translate(None, _DIGITS)
        lines = text.split(b"\n")
        return self._needles_in(set(lines) - self._known, len(text)), len(lines) - 1

    def _needles_in(self, new: set[bytes], block_bytes: int) -> list[bytes]:
        if not new:
            return []
        text = b"\n".join(new)
        repeats = 2 * len(text) < block_bytes
        hits = [(needle, shape) for needle, shape in self._words.possible(text) if shape in text]
        if not repeats and self._known:
            return [needle for needle, _ in hits]  # text of its own: the next block will hold other lines
        if hits:  # what has one must be found again in the next block
            new = {line for line in new if not any(shape in line for _, shape in hits)}
        if self._bytes + len(text) > _MOST_SHAPES_BYTES:
            self._known, self._bytes = set(), 0
        self._known |= new
        self._bytes += len(text)
        return [needle for needle, _ in hits]


def _windows(block: bytes, needles: list[bytes]) -> Iterator[tuple[int, int]]:
    """Runs of lines around needles, in order and apart."""
    hits: set[int] = set()
    for needle in needles:
        at = block.find(needle)
        while at >= 0:
            hits.add(block.rfind(b"\n", 0, at) + 1)
            at = block.find(needle, max(block.find(b"\n", at), at + 1))
    done = 0
    for start in sorted(hits):
        if start < done:
            continue
        stop = start
        for _ in range(_AFTER_LINES):
            after = block.find(b"\n", stop) + 1
            if after == 0:
                stop = len(block)
                break
            stop = after
        yield max(start, done), stop
        done = stop


def _with_begin(block: bytes, windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    stop = block.find(b"\n", _BEGIN_BYTES) + 1 or len(block)
    last = max([stop, *(window[1] for window in windows if window[0] < stop)])
    return [(0, last), *(window for window in windows if window[0] >= stop)]


def _with_end(block: bytes, windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    start = block.rfind(b"\n", 0, max(0, len(block) - _END_BYTES)) + 1
    kept = [window for window in windows if window[1] <= start]
    first = min([start, *(window[0] for window in windows if window[1] > start)])
    return [*kept, (first, len(block))]
