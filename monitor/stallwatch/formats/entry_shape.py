"""Where the bytes of a pickled entry change from one entry of its kind to the next."""

from typing import Any, Final

from stallwatch.formats.recorder_table import NUMBER_KEYS

_COLUMN: Final = {key: column for column, key in enumerate(NUMBER_KEYS)}
# Length of the argument after the opcode, for the opcodes that may stand in a template (names of pickletools: MARK,
# APPEND, APPENDS, SETITEM, SETITEMS, NONE, NEWTRUE, NEWFALSE, EMPTY_DICT, EMPTY_LIST, TUPLE1-3, BINGET, LONG_BINGET,
# BINPUT, LONG_BINPUT, BININT1, BININT2, BININT, BINFLOAT).
_ARGUMENT_BYTES: Final = dict.fromkeys(b"(aesuN\x88\x89}])\x85\x86\x87", 0) | {
    0x68: 1, 0x6A: 4, 0x71: 1, 0x72: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8,
}  # fmt: skip
_NUMBER_FORMAT: Final = {0x4B: "B", 0x4D: "H", 0x4A: "i"}


class EntryShape:
    """`variable` are the places of memo indexes that the entry writes and of numbers that count up."""

    def __init__(self) -> None:
        self.variable: list[tuple[int, int]] = []
        self.numbers: list[tuple[int, str, int]] = []  # (offset, struct code, column)
        self.first_put: tuple[int, int] | None = None  # place of the first memo index
        self.references: dict[int, Any] = {}  # what the entry's bytes mean by the memo indexes that they read
        self.portable = True  # False: it refers to a list or dictionary that entries of this dump share

    @classmethod
    def of(cls, entry: bytes, memo: dict[int, Any]) -> "EntryShape | None":
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
                    shape.first_put = shape.first_put or (argument, position)
                    continue  # a key that is written out is memoised between it and its value
                if op in _NUMBER_FORMAT and column is not None:
                    shape._number(argument, _NUMBER_FORMAT[op], position - argument, column)
                column = None
                if op in (0x68, 0x6A):  # BINGET, LONG_BINGET
                    index = int.from_bytes(entry[argument:position], "little")
                    value = shape.references[index] = memo.get(index)
                    shape.portable &= _is_plain(value)
                    column = _COLUMN.get(value) if type(value) is str else None
            else:
                return None
        return shape

    def _number(self, offset: int, letter: str, length: int, column: int) -> None:
        self.variable.append((offset, offset + length))
        self.numbers.append((offset, letter, column))


def _is_plain(value: Any) -> bool:
    return type(value) is str or (type(value) is tuple and all(type(part) is str for part in value))
