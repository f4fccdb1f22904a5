"""A fast way through the entries of a dump that repeat.

A training loop writes the same entries again and again: their bytes differ only in the numbers that count up and in the
indexes under which the writer memoises its containers. So an entry that was interpreted once becomes a template, its
bytes with those places masked out; where the following bytes are equal under the mask, they are an entry of the same
kind, and only the numbers are read. Exact, as what does not match a template is interpreted; and skipped values that
the file later refers to are interpreted then.
"""

import struct
from bisect import bisect_right
from operator import itemgetter
from typing import Any, Final

from stallwatch.formats.pickle_subset import Machine
from stallwatch.formats.recorder_entries import BadEntry, EntryReader
from stallwatch.formats.recorder_table import ABSENT, NUMBER_KEYS
from stallwatch.formats.unreadable import Unreadable

SKIPPED: Final = object()  # stands in the list of entries for one that a template read

_MAXIMUM_TEMPLATES: Final = 1_024
_COLUMN: Final = {key: column for column, key in enumerate(NUMBER_KEYS)}
# Length of the argument after the opcode, for the opcodes that may stand in a template (names of pickletools: MARK,
# APPEND, APPENDS, SETITEM, SETITEMS, NONE, NEWTRUE, NEWFALSE, EMPTY_DICT, EMPTY_LIST, TUPLE1-3, BINGET, LONG_BINGET,
# BINPUT, LONG_BINPUT, BININT1, BININT2, BININT, BINFLOAT).
_ARGUMENT_BYTES: Final = dict.fromkeys(b"(aesuN\x88\x89}])\x85\x86\x87", 0) | {
    0x68: 1, 0x6A: 4, 0x71: 1, 0x72: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8,
}  # fmt: skip
_NUMBER_FORMAT: Final = {0x4B: "B", 0x4D: "H", 0x4A: "i"}


class _Template:
    """The bytes of one kind of entry, with the changing places masked out."""

    def __init__(self, entry: bytes, kind: int, numbers: tuple[int, ...], shape: "_Shape") -> None:
        mask = bytearray(b"\xff") * len(entry)
        for start, stop in shape.variable:
            mask[start:stop] = bytes(stop - start)
        self.length = len(entry)
        self.mask = int.from_bytes(mask, "little")
        self.literal = int.from_bytes(entry, "little") & self.mask
        self.kind = kind
        self.first_put = shape.first_put
        self.followers: list[_Template] = []  # what came after it, most recent first
        code, at = "<", 0
        for offset, letter, _ in shape.numbers:
            code += f"{offset - at}x{letter}"
            at = offset + struct.calcsize("<" + letter)
        self._unpack_from = struct.Struct(code).unpack_from
        self._constants = numbers
        place = {column: len(numbers) + index for index, (_, _, column) in enumerate(shape.numbers)}
        self._pick = itemgetter(*(place.get(column, column) for column in range(len(numbers))))

    def numbers_at(self, data: bytes, start: int) -> tuple[int, ...]:
        return self._pick(self._constants + self._unpack_from(data, start))  # type: ignore[no-any-return]


class _Shape:
    """Where an entry's bytes change: the memo indexes that it writes, and the numbers that count up."""

    def __init__(self) -> None:
        self.variable: list[tuple[int, int]] = []
        self.numbers: list[tuple[int, str, int]] = []  # (offset, struct code, column)
        self.first_put: int | None = None

    @classmethod
    def of(cls, entry: bytes, memo: dict[int, Any]) -> "_Shape | None":
        """None when the entry holds an opcode that cannot stand in a template."""
        shape, position, end, column = cls(), 0, len(entry), None
        while position < end:
            op = entry[position]
            argument = position + 1
            if op == 0x58:  # BINUNICODE
                position = argument + 4 + int.from_bytes(entry[argument : argument + 4], "little")
                column = _COLUMN.get(entry[argument + 4 : position].decode("utf-8", "replace"))
            elif op == 0x8A:  # LONG1
                position = argument + 1 + entry[argument]
                if column is not None and entry[argument] == 8:
                    shape._number(argument + 1, "q", 8, column)
                column = None
            elif op in _ARGUMENT_BYTES:
                position = argument + _ARGUMENT_BYTES[op]
                if op in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                    shape.variable.append((argument, position))
                    shape.first_put = argument if shape.first_put is None and op == 0x72 else shape.first_put
                    continue  # a key that is written out is memoised between it and its value
                if op in _NUMBER_FORMAT and column is not None:
                    shape._number(argument, _NUMBER_FORMAT[op], position - argument, column)
                column = None
                if op in (0x68, 0x6A):  # BINGET, LONG_BINGET
                    key = memo.get(int.from_bytes(entry[argument:position], "little"))
                    column = _COLUMN.get(key) if type(key) is str else None
            else:
                return None
        return shape

    def _number(self, offset: int, letter: str, length: int, column: int) -> None:
        self.variable.append((offset, offset + length))
        self.numbers.append((offset, letter, column))


class EntryTemplates:
    """Hooked into a Machine: `after_dict` is asked after each dictionary and moves it over what it can read."""

    def __init__(self, machine: Machine, entry_reader: EntryReader) -> None:
        self._skipped: list[tuple[_Template, int]] = []
        self._machine = machine
        self._entry_reader = entry_reader
        self._templates: dict[tuple[int, int], _Template] = {}
        self._by_length: dict[int, list[_Template]] = {}
        self._entry_end: int | None = None
        self._latest: _Template | None = None
        self._first_puts: list[int] = []
        machine.missing = self._interpret_skipped

    @property
    def rows(self) -> list[tuple[int, tuple[int, ...]]]:
        """(kind, numbers) of the SKIPPED entries, in order."""
        data = self._machine.data
        return [(template.kind, template.numbers_at(data, start)) for template, start in self._skipped]

    def after_dict(self, machine: Machine) -> bool:
        """Advance the machine over the following entries of known kinds; never end the interpretation."""
        marks = machine.marks
        # An entry has just been closed when its dictionary lies directly in the list under the key "entries".
        if len(marks) != 2 or len(marks[1]) < 2 or marks[1][-2] != "entries":
            return False
        template = None
        if self._entry_end is not None and len(self._templates) < _MAXIMUM_TEMPLATES:
            template = self._learn(self._entry_end, machine.position, machine.stack[-1])
        if template is not None and self._latest is not None:
            self._latest.followers.insert(0, template)
        self._latest = template
        self._advance(machine)
        self._entry_end = machine.position
        return False

    def _learn(self, start: int, stop: int, entry: Any) -> _Template | None:
        data = self._machine.data[start:stop]
        shape = _Shape.of(data, self._machine.memo)
        # Only an entry that says all in the usual way is a pattern for others; a duration differs each time.
        if shape is None or shape.first_put is None or "duration_ms" in entry or "record_id" not in entry:
            return None
        try:
            kind, numbers = self._entry_reader.kind(entry), self._entry_reader.numbers(entry, ABSENT)
        except BadEntry:
            return None
        template = _Template(data, kind, numbers, shape)
        known = self._templates.setdefault((template.literal, template.mask), template)
        if known is template:
            self._by_length.setdefault(template.length, []).append(template)
        return known

    def _advance(self, machine: Machine) -> None:
        data, position, latest = machine.data, machine.position, self._latest
        skipped, from_bytes = self._skipped, int.from_bytes
        first = len(skipped)
        while data[position : position + 1] == b"}":
            for template in latest.followers if latest is not None else ():
                if (
                    from_bytes(data[position : position + template.length], "little") & template.mask
                    == template.literal
                ):
                    break
            else:
                found = self._search(position)
                if found is None:
                    break
                template = found
                if latest is not None:
                    latest.followers.insert(0, template)
            skipped.append((template, position))
            position += template.length
            latest = template
        self._latest = latest
        machine.position = position
        machine.stack.extend([SKIPPED] * (len(skipped) - first))

    def _search(self, position: int) -> _Template | None:
        data = self._machine.data
        for length, templates in self._by_length.items():
            # An entry ends with SETITEMS; after it the next dictionary begins or the list is closed.
            if data[position + length - 1 : position + length + 1] in (b"u}", b"ue"):
                number = int.from_bytes(data[position : position + length], "little")
                for template in templates:
                    if number & template.mask == template.literal:
                        return template
        return None

    def _interpret_skipped(self, index: int) -> Any:
        """The value that a skipped entry memoised under `index`: interpret that entry now."""
        data, memo = self._machine.data, self._machine.memo
        for template, start in self._skipped[len(self._first_puts) :]:
            assert template.first_put is not None
            at = start + template.first_put
            self._first_puts.append(int.from_bytes(data[at : at + 4], "little"))
        place = bisect_right(self._first_puts, index) - 1
        if place < 0:
            raise Unreadable(f"it refers to value {index}, which it does not hold")
        single = Machine(data, self._skipped[place][1])
        single.memo = memo
        single.run(lambda machine: not machine.marks)
        if index not in memo:
            raise Unreadable(f"it refers to value {index}, which it does not hold")
        return memo[index]
