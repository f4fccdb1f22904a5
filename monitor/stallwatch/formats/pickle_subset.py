"""An interpreter for pickles of plain data: None, bool, int, float, str, bytes, list, tuple, dict.

Dumps are written by jobs. Python's own unpickler runs what they say and allocates what they announce: a 9-byte file
(LONG_BINPUT with a huge index) makes it take gigabytes. Here nothing can be imported or called, the memo is a mapping
filled only by what the file really holds, and an announced length beyond the file is an error; so memory is bounded by
a small multiple of the file's length whatever it contains. Shared values stay shared: a file that repeats one list a
million times costs a million references, and it is the caller's business not to expand them.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from stallwatch.formats.unreadable import Unreadable

_DOUBLE = struct.Struct(">d")
_INT4 = struct.Struct("<i")
_UINT4 = struct.Struct("<I")
_UINT8 = struct.Struct("<Q")

# Opcodes that import, call, or refer to something outside of the file (pickletools' names).
REFUSED: Final = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST", ord("o"): "OBJ",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID",
    ord("Q"): "BINPERSID", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip
MAXIMUM_PROTOCOL: Final = 5
# An integer of a dump is a counter, a size or nanoseconds; Python's own text conversion refuses beyond 4,300 digits.
_MAXIMUM_DIGITS: Final = 4_300
_KEY_TYPES: Final = frozenset((str, int, bool))


class Machine:
    """The state of one interpretation. `stack` holds the values since the last mark, `marks` the stacks below it."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.puts = 0  # how many values were memoised: the index that the writer uses next
        self.missing: Callable[[int], Any] | None = None  # asked for a memo index that was skipped, see entry_templates
        self.stopped = False

    def run(self, until: Callable[["Machine"], bool] | None = None) -> None:
        """Interpret up to STOP, or until `until` (asked after each SETITEMS) says so. Raise Unreadable."""
        try:
            self._run(until)
        except (IndexError, struct.error) as error:
            # A stack that is too short, or an argument that is cut off.
            raise Unreadable(
                f"it is not a whole pickle: it breaks at byte {self.position} of {len(self.data)}"
            ) from error
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            if isinstance(error, Unreadable):
                raise
            raise Unreadable(f"it is not a valid pickle at byte {self.position} ({error})") from error

    def value(self) -> Any:
        """What the file holds, after STOP."""
        if not self.stopped or self.marks or len(self.stack) != 1:
            raise Unreadable("it is not one whole pickle")
        return self.stack[0]

    def _run(self, until: Callable[["Machine"], bool] | None) -> None:
        data, stack, marks, memo = self.data, self.stack, self.marks, self.memo
        end = len(data)
        position = self.position
        while True:
            self.position = position
            op = data[position]
            position += 1
            # Ordered by how often torch writes them (counted over 227 real dumps).
            if op == 0x68:  # BINGET
                index = data[position]
                position += 1
                stack.append(memo[index] if index in memo else self._skipped(index))
            elif op == 0x72:  # LONG_BINPUT
                memo[_UINT4.unpack_from(data, position)[0]] = stack[-1]
                self.puts += 1
                position += 4
            elif op == 0x28:  # MARK
                marks.append(stack)
                stack = self.stack = []
            elif op == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif op == 0x75:  # SETITEMS
                items, stack = stack, marks.pop()
                self.stack = stack
                _target(stack, dict).update(_pairs(items))
                if until is not None:
                    self.position = position
                    if until(self):
                        return
                    position = self.position
            elif op == 0x4B:  # BININT1
                stack.append(data[position])
                position += 1
            elif op == 0x58:  # BINUNICODE
                start = position + 4
                position = start + _UINT4.unpack_from(data, position)[0]
                stack.append(_text(data, start, position, end))
            elif op == 0x4D:  # BININT2
                stack.append(data[position] | data[position + 1] << 8)
                position += 2
            elif op == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif op == 0x61:  # APPEND
                item = stack.pop()
                _target(stack, list).append(item)
            elif op == 0x71:  # BINPUT
                memo[data[position]] = stack[-1]
                self.puts += 1
                position += 1
            elif op == 0x4A:  # BININT
                stack.append(_INT4.unpack_from(data, position)[0])
                position += 4
            elif op == 0x65:  # APPENDS
                items, stack = stack, marks.pop()
                self.stack = stack
                _target(stack, list).extend(items)
            elif op == 0x8A:  # LONG1
                start = position + 1
                position = start + data[position]
                stack.append(int.from_bytes(_slice(data, start, position, end), "little", signed=True))
            elif op == 0x4E:  # NONE
                stack.append(None)
            elif op == 0x6A:  # LONG_BINGET
                index = _UINT4.unpack_from(data, position)[0]
                position += 4
                stack.append(memo[index] if index in memo else self._skipped(index))
            elif op == 0x89:  # NEWFALSE
                stack.append(False)
            elif op == 0x88:  # NEWTRUE
                stack.append(True)
            elif op == 0x86:  # TUPLE2
                second, first = stack.pop(), stack.pop()
                stack.append((first, second))
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
                self.puts += 1
            elif op == 0x2E:  # STOP
                self.position = position
                self.stopped = True
                return
            else:
                self.position = position - 1
                position = self._rare(op, position)
                stack = self.stack

    def _rare(self, op: int, position: int) -> int:
        """Interpret what torch writes seldom, or other writers of the same data do; return the next position."""
        data, stack, end = self.data, self.stack, len(self.data)
        match op:
            case 0x80:  # PROTO
                if data[position] > MAXIMUM_PROTOCOL:
                    raise Unreadable(f"it is a pickle of protocol {data[position]}, which is not known")
                return position + 1
            case 0x95:  # FRAME: a hint for the reader's buffer
                _UINT8.unpack_from(data, position)
                return position + 8
            case 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _target(stack, dict).update(_pairs([key, value]))
            case 0x47:  # BINFLOAT
                stack.append(_DOUBLE.unpack_from(data, position)[0])
                return position + 8
            case 0x8C | 0x55 | 0x43:  # SHORT_BINUNICODE, SHORT_BINSTRING, SHORT_BINBYTES
                return self._sized(op, position + 1, data[position])
            case 0x54 | 0x42:  # BINSTRING, BINBYTES
                return self._sized(op, position + 4, _UINT4.unpack_from(data, position)[0])
            case 0x8D | 0x8E:  # BINUNICODE8, BINBYTES8
                return self._sized(op, position + 8, _UINT8.unpack_from(data, position)[0])
            case 0x8B:  # LONG4
                start = position + 4
                stop = start + _UINT4.unpack_from(data, position)[0]
                stack.append(int.from_bytes(_slice(data, start, stop, end), "little", signed=True))
                return int(stop)
            case 0x85:  # TUPLE1
                stack.append((stack.pop(),))
            case 0x87:  # TUPLE3
                third, second, first = stack.pop(), stack.pop(), stack.pop()
                stack.append((first, second, third))
            case 0x29:  # EMPTY_TUPLE
                stack.append(())
            case 0x74 | 0x6C | 0x64 | 0x31:  # TUPLE, LIST, DICT, POP_MARK
                self._close(op)
            case 0x30:  # POP
                stack.pop()
            case 0x32:  # DUP
                stack.append(stack[-1])
            case 0x49 | 0x4C | 0x46 | 0x56 | 0x70 | 0x67:  # INT, LONG, FLOAT, UNICODE, PUT, GET
                return self._line(op, position)
            case _:
                raise Unreadable(
                    f"it is refused: opcode {REFUSED[op]} at byte {position - 1} would run or fetch something, "
                    "and a dump holds plain data only"
                    if op in REFUSED
                    else f"it is not a pickle of plain data: opcode {op:#04x} at byte {position - 1}"
                )
        return position

    def _sized(self, op: int, start: int, length: int) -> int:
        stop = start + length
        if op in (0x43, 0x42, 0x8E):
            self.stack.append(_slice(self.data, start, stop, len(self.data)))
        else:
            self.stack.append(_text(self.data, start, stop, len(self.data)))
        return stop

    def _close(self, op: int) -> None:
        items, self.stack = self.stack, self.marks.pop()
        if op == 0x74:
            self.stack.append(tuple(items))
        elif op == 0x6C:
            self.stack.append(items)
        elif op == 0x64:
            self.stack.append(dict(_pairs(items)))

    def _line(self, op: int, position: int) -> int:
        """Protocol 0: arguments are lines of text."""
        stop = self.data.index(b"\n", position)
        line = self.data[position:stop]
        text = line.decode("raw-unicode-escape" if op == 0x56 else "ascii", "replace")
        if op != 0x56 and len(text) > _MAXIMUM_DIGITS:
            raise Unreadable("it holds a number of absurd length")
        match op:
            case 0x49:
                self.stack.append({"00": False, "01": True}[text] if text in ("00", "01") else int(text))
            case 0x4C:
                self.stack.append(int(text.removesuffix("L")))
            case 0x46:
                self.stack.append(float(text))
            case 0x56:
                self.stack.append(text)
            case 0x70:
                self.memo[int(text)] = self.stack[-1]
                self.puts += 1
            case _:
                index = int(text)
                self.stack.append(self.memo[index] if index in self.memo else self._skipped(index))
        return stop + 1

    def _skipped(self, index: int) -> Any:
        if self.missing is None:
            raise Unreadable(f"it refers to value {index}, which it does not hold")
        return self.missing(index)


def _pairs(items: list[Any]) -> Iterable[tuple[Any, Any]]:
    keys = items[::2]
    # Hashing a deeply nested tuple overflows the C stack, and no dump has other keys.
    if not _KEY_TYPES.issuperset(map(type, keys)):
        raise Unreadable("it is refused: a key that is neither text nor a number")
    return zip(keys, items[1::2], strict=True)


def _slice(data: bytes, start: int, stop: int, end: int) -> bytes:
    if stop > end:
        raise Unreadable(
            f"it ends in the middle: a value announces {stop - start} bytes and {max(0, end - start)} are left"
        )
    return data[start:stop]


def _text(data: bytes, start: int, stop: int, end: int) -> str:
    # A path need not be UTF-8; surrogates would not survive being encoded again.
    return _slice(data, start, stop, end).decode("utf-8", "replace")


def _target(stack: list[Any], kind: type) -> Any:
    target: Any = stack[-1]
    if type(target) is not kind:
        raise Unreadable(
            f"it is not a valid pickle: items for a {kind.__name__} are added to a {type(target).__name__}"
        )
    return target
