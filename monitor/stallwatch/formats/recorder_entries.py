"""One entry of a dump, validated field by field: a bad entry is dropped, the rest of the dump stays."""

import re
from operator import itemgetter
from typing import Any, Final

from stallwatch.encoding import msgpack_of
from stallwatch.formats.outside_text import name_of
from stallwatch.formats.recorder_table import ABSENT, NUMBER_KEYS, CallKind, TableBuilder
from stallwatch.model.evidence import CodeFrame

# Far above what torch writes (a coalesced all-to-all over 16,384 ranks; a C++ and Python stack together).
_MAXIMUM_TENSORS: Final = 16_384
_MAXIMUM_DIMENSIONS: Final = 64
_MAXIMUM_FRAMES: Final = 1_024
_MAXIMUM_TEXT: Final = 4_096  # PATH_MAX
_NUMBERS: Final = 1 << 48  # a job that calls a collective every microsecond comes so far in nine years
_STATES: Final = frozenset(("scheduled", "started", "completed"))
_INTEGER: Final = re.compile(r"\s*-?[0-9]{1,19}\s*")
_BACKEND: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*):(?!:)")
_KIND_KEYS: Final = (
    "profiling_name",
    "process_group",
    "pg_id",
    "is_p2p",
    "state",
    "retired",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "timeout_ms",
    "thread_id",
    "thread_name",
    "frames",
)
_ALL_NUMBERS: Final = itemgetter(*NUMBER_KEYS)
_INTEGERS: Final = {int}
_NEVER_ZERO: Final = frozenset(("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"))


class BadEntry(ValueError):
    """A clause for the caveat: "has no operation name"."""


def integer(value: object) -> int | None:
    """An integer of a dump, which JSON dumps write as text here and there; None when it is not one."""
    if (type(value) is str and _INTEGER.fullmatch(value)) or (type(value) is float and value.is_integer()):
        value = int(value)
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    return None


def text(value: object) -> str:
    """A name of a job, cut to its bound; "" for what is no text."""
    return name_of(value[:_MAXIMUM_TEXT]) if type(value) is str else ""


def pair(value: object) -> tuple[str, str]:
    """`process_group`: (name, description) as tuple or list, or the name alone."""
    if type(value) is str:
        return text(value), ""
    if type(value) in (tuple, list):
        name, description = [*value[:2], "", ""][:2]  # type: ignore[index]
        return _label(name), _label(description)
    return "", ""


def _label(value: object) -> str:
    number = integer(value)
    return text(value) or ("" if number is None else str(number))


def split_name(profiling_name: str) -> tuple[str, str]:
    """("nccl", "all_reduce") of "nccl:all_reduce"; the back end is "" where the name does not say."""
    match = _BACKEND.match(profiling_name)
    return (match[1].lower(), profiling_name[match.end() :].strip()) if match else ("", profiling_name.strip())


class EntryReader:
    """Turns entries into rows of a table. A list that entries share is read once, and what an entry may refer to in
    all is bounded: a file that repeats one list a million times costs little more than it weighs on disk."""

    def __init__(self, table: TableBuilder, budget: int, *, of_json: bool = False) -> None:
        """`of_json`: entries share no list, and none refers to more than it holds itself."""
        self.table = table
        self._budget = budget  # tensors and frames that entries may still refer to
        self._is_of_json = of_json
        self._kinds: dict[bytes, int] = {}  # of JSON, by the words of which a kind is made
        # By id of the list, which the caller keeps alive.
        self._sites: dict[int, int] = {}
        self._tuples: dict[int, Any] = {}
        self._seen: set[int] = set()

    def add(self, entry: object, ordinal: int) -> None:
        """Given the entry at a place of the list, add its row. Raise BadEntry."""
        if type(entry) is not dict:
            raise BadEntry(f"is a {type(entry).__name__}, not a record")
        if id(entry) in self._seen:
            raise BadEntry("is the same record again")
        numbers, kind = self.numbers(entry, ordinal), self.kind(entry)
        self._seen.add(id(entry))
        duration: Any = entry.get("duration_ms")
        self.table.add(
            kind, numbers, float(duration) if type(duration) in (int, float) and 0 <= duration < 1e15 else None
        )

    def numbers(self, entry: dict[Any, Any], ordinal: int) -> tuple[int, ...]:
        """The numbers of an entry, in the order of NUMBER_KEYS; raise BadEntry for a bad one."""
        return self._plain_numbers(entry) or self._read_numbers(entry, ordinal)

    @staticmethod
    def _plain_numbers(entry: dict[Any, Any]) -> tuple[int, ...] | None:
        """The same of an entry that has them all, as integers that are none below zero: as every one of gloo's."""
        try:
            values = _ALL_NUMBERS(entry)
        except KeyError:
            return None
        if {*map(type, values)} != _INTEGERS or min(values) < 0 or max(values) >= 2**63:
            return None
        record_id, seq, p2p_seq, op_id, created, started, completed = values
        if seq >= _NUMBERS:
            return None
        return record_id, seq, p2p_seq, op_id, created or ABSENT, started or ABSENT, completed or ABSENT

    def _read_numbers(self, entry: dict[Any, Any], ordinal: int) -> tuple[int, ...]:
        values = []
        for key in NUMBER_KEYS:
            value = entry.get(key)
            if type(value) is not int or not -(2**63) <= value < 2**63:
                value = integer(value)
            if key == "collective_seq_id":
                if value is None:
                    value = integer(entry.get("seq_id"))  # before collectives and P2P were counted apart
                if value is None or not 0 <= value < _NUMBERS:
                    raise BadEntry("has no number in its group")
            # The JSON form writes 0 for "not yet".
            if value is None or (value <= 0 and key in _NEVER_ZERO):
                value = ordinal if key == "record_id" else ABSENT if key in _NEVER_ZERO else 0
            values.append(value)
        return tuple(values)

    def kind(self, entry: dict[Any, Any]) -> int:
        """The index of what repeats of an entry; raise BadEntry without a name."""
        words = self._words(entry) if self._is_of_json else None
        if words is None:
            return self._read_kind(entry)
        known = self._kinds.get(words)
        if known is None:
            known = self._kinds[words] = self._read_kind(entry)
        return known

    @staticmethod
    def _words(entry: dict[Any, Any]) -> bytes | None:
        """All that `_read_kind` reads of it, as bytes, which no two values share that differ in type; None where it
        reads more, or a word cannot be written."""
        state = entry.get("state")
        if type(state) is not str or state not in _STATES:
            return None
        try:
            return msgpack_of([*map(entry.get, _KIND_KEYS)])
        except (ValueError, OverflowError, RecursionError):  # a number of more than 64 bits, text that is none
            return None

    def _read_kind(self, entry: dict[Any, Any]) -> int:
        profiling_name = text(entry.get("profiling_name"))
        if not profiling_name:
            raise BadEntry("has no operation name")
        backend, name = split_name(profiling_name)
        group_name, group_description = pair(entry.get("process_group"))
        pg_id = integer(entry.get("pg_id"))
        is_p2p = entry.get("is_p2p")
        return self.table.kind(
            CallKind(
                pg_id=ABSENT if pg_id is None else pg_id,
                group_name=group_name,
                group_description=group_description,
                name=name,
                backend=backend,
                state=_state(entry),
                retired=entry.get("retired") is True,
                is_p2p=is_p2p if type(is_p2p) is bool else name.startswith(("send", "recv")),
                input_sizes=self._sizes(entry.get("input_sizes")),
                output_sizes=self._sizes(entry.get("output_sizes")),
                input_dtypes=self._names(entry.get("input_dtypes")),
                output_dtypes=self._names(entry.get("output_dtypes")),
                timeout_ms=integer(entry.get("timeout_ms")),
                thread_id=_label(entry.get("thread_id")) or None,
                thread_name=text(entry.get("thread_name")) or None,
                site=self._site(entry.get("frames")),
            )
        )

    def _site(self, frames: object) -> int:
        if type(frames) is not list:
            return self.table.site(())
        self._spend(len(frames))
        known = self._sites.get(id(frames))
        if known is None:
            read = [self._frame(frame) for frame in frames[:_MAXIMUM_FRAMES]]
            known = self._sites[id(frames)] = self.table.site(tuple(index for index in read if index is not None))
        return known

    def _sizes(self, value: object) -> tuple[tuple[int, ...], ...]:
        if type(value) not in (list, tuple):
            return ()
        shapes: Any = value
        self._spend(len(shapes))
        known = self._tuples.get(id(shapes))
        if known is None:
            known = self._tuples[id(shapes)] = tuple(self._shape(shape) for shape in shapes[:_MAXIMUM_TENSORS])
        return known

    def _shape(self, shape: object) -> tuple[int, ...]:
        if type(shape) not in (list, tuple):
            return ()
        dimensions: Any = shape
        known = self._tuples.get(id(dimensions))
        if known is None:
            numbers = (integer(dimension) for dimension in dimensions[:_MAXIMUM_DIMENSIONS])
            known = self._tuples[id(dimensions)] = tuple(number for number in numbers if number is not None)
        return known

    def _names(self, value: object) -> tuple[str, ...]:
        if type(value) not in (list, tuple):
            return ()
        names: Any = value
        self._spend(len(names))
        return tuple(text(name) for name in names[:_MAXIMUM_TENSORS])

    def _spend(self, items: int) -> None:
        self._budget -= items
        if self._budget < 0:
            raise BadEntry("repeats more than the file can rightly hold")

    def _frame(self, frame: object) -> int | None:
        if type(frame) is not dict:
            return None
        line = integer(frame.get("line"))
        return self.table.frame(
            CodeFrame(text(frame.get("name")), text(frame.get("filename")), 0 if line is None else line)
        )


def _state(entry: dict[Any, Any]) -> str:
    state = text(entry.get("state")).lower()
    if state in _STATES:
        return state
    return "completed" if integer(entry.get("time_discovered_completed_ns")) else "scheduled"
