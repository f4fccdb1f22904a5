"""A fast way through the entries of a dump that repeat.

A training loop writes the same entries again and again: their bytes differ only in the numbers that count up and in
the indexes under which the writer memoises its containers. So an entry that was interpreted once becomes a template,
its bytes with those places masked out; where the following bytes are equal under the mask, they are an entry of the
same kind, and only the numbers are read. What follows each other again and again is compared in one go, as a block.
Ranks of one program write nearly equal dumps: a library serves many. Exact, as what does not match is interpreted; and
skipped values that the file later refers to are interpreted then.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from stallwatch.formats.entry_shape import EntryShape
from stallwatch.formats.pickle_subset import Machine
from stallwatch.formats.recorder_entries import BadEntry, EntryReader
from stallwatch.formats.recorder_table import ABSENT, CallKind
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame

SKIPPED: Final = object()  # stands in the list of entries for one that a template read

_MAXIMUM_TEMPLATES: Final = 2_048
_MAXIMUM_FOLLOWERS: Final = 4
_BLOCK: Final = 16  # entries; a block costs as much again as a dump's bytes, what is saved is the same from here on
_MAXIMUM_BLOCK_BYTES: Final = 8 << 20  # of a library's blocks


class _Template:
    """The bytes of one kind of entry, with the changing places masked out."""

    count = 1

    def __init__(
        self, entry: bytes, kind: CallKind, frames: tuple[CodeFrame, ...], numbers: tuple[int, ...], shape: EntryShape
    ) -> None:
        mask = bytearray(b"\xff") * len(entry)
        for start, stop in shape.variable:
            mask[start:stop] = bytes(stop - start)
        self.length = len(entry)
        self.mask = int.from_bytes(mask, "little")
        self.literal = int.from_bytes(entry, "little") & self.mask
        self.kind, self.frames = kind, frames
        self.first_put = shape.first_put or (0, 0)
        self.references = shape.references
        self.portable = shape.portable
        self.followers: list[_Template] = []  # what came after it, most recent first
        self.user: object = None  # the reading for which `references` were found to hold, and …
        self.kind_indexes = [0]  # … the number of `kind` in its table
        self.constants, self.places = numbers, shape.numbers
        self.numbers_at = _reader([self])

    def parts(self, start: int) -> "list[tuple[_Template, int]]":
        return [(self, start)]

    def is_followed_by(self, template: "_Template") -> None:
        if template in self.followers:
            self.followers.remove(template)
        self.followers.insert(0, template)
        del self.followers[_MAXIMUM_FOLLOWERS:]


class _Block:
    """Templates that followed each other, as one."""

    count = _BLOCK

    def __init__(self, templates: "_Run") -> None:
        self.templates = templates
        self.length = sum(template.length for template in templates)
        self.mask = self._joined([template.mask for template in templates])
        self.literal = self._joined([template.literal for template in templates])
        self.first_put = templates[0].first_put
        self.user: object = None
        self.kind_indexes: list[int] = []
        self.numbers_at = _reader(templates)

    def _joined(self, numbers: list[int]) -> int:
        pieces = zip(numbers, self.templates, strict=True)
        return int.from_bytes(b"".join(n.to_bytes(template.length, "little") for n, template in pieces), "little")

    def parts(self, start: int) -> list[tuple[_Template, int]]:
        found = []
        for template in self.templates:
            found.append((template, start))
            start += template.length
        return found


_Run = tuple[_Template, ...]


def _reader(templates: Sequence[_Template]) -> Callable[[bytes, int], "array[int]"]:
    """Return what reads the numbers of entries that follow each other like this, of all of them, from a place on."""
    code, end, at = "<", 0, 0
    constants: list[int] = []
    picked: list[tuple[bool, int]] = []  # for each number whether it is read, and its index among those of its sort
    read = 0
    for template in templates:
        place = {}
        for offset, letter, column in template.places:
            code += f"{at + offset - end}x{letter}"
            end = at + offset + struct.calcsize("<" + letter)
            place[column] = read
            read += 1
        for column, constant in enumerate(template.constants):
            picked.append((True, place[column]) if column in place else (False, len(constants)))
            constants += [] if column in place else [constant]
        at += template.length
    unpack_from, fixed = struct.Struct(code).unpack_from, tuple(constants)
    pick = itemgetter(*(index if is_read else read + index for is_read, index in picked))
    return lambda data, start: array("q", pick(unpack_from(data, start) + fixed))


class TemplateLibrary:
    """Templates of the dumps read so far, and what followed what in them."""

    def __init__(self) -> None:
        self._by_length: dict[int, dict[int, dict[int, _Template]]] = {}  # length → mask → literal
        self._count = 0
        self._blocks: dict[_Run, _Block] = {}  # by the templates before them
        self._followed: dict[_Run, _Run] = {}  # what came once after them
        self._block_bytes = 0

    def add(self, template: _Template) -> _Template:
        """Return the template, or an equal one that is there already."""
        if self._count >= _MAXIMUM_TEMPLATES:
            self._by_length.clear()
            self._count = 0
        alike = self._by_length.setdefault(template.length, {}).setdefault(template.mask, {})
        known = alike.get(template.literal)
        # The same bytes mean something else when the memo differs: the newer file is the better guess.
        if known is None or not known.portable or known.references != template.references:
            self._count += known is None
            alike[template.literal] = template
            return template
        return known

    def find(self, data: bytes, position: int) -> _Template | None:
        """The template that the entry at this position fits; None: none yet."""
        for length, masks in self._by_length.items():
            # An entry ends with SETITEMS; after it the next dictionary begins or the list is closed.
            if data[position + length - 1 : position + length + 1] in (b"u}", b"ue"):
                number = int.from_bytes(data[position : position + length], "little")
                for mask, alike in masks.items():
                    if (template := alike.get(number & mask)) is not None:
                        return template
        return None

    def block_after(self, before: _Run) -> _Block | None:
        """The entries that came again and again after these; None: none yet."""
        return self._blocks.get(before)

    def note(self, before: _Run, after: _Run) -> None:
        """Note what came after these: what does so for the second time is a block."""
        if self._followed.get(before) != after:
            if len(self._followed) >= _MAXIMUM_TEMPLATES:
                self._followed.clear()
            self._followed[before] = after
            return
        if self._block_bytes > _MAXIMUM_BLOCK_BYTES:
            self._blocks.clear()
            self._block_bytes = 0
        block = self._blocks[before] = _Block(after)
        self._block_bytes += 2 * block.length


class EntryTemplates:
    """Hooked into a Machine: `after_dict` is asked after each dictionary and moves it over what it can read."""

    def __init__(self, machine: Machine, entry_reader: EntryReader, library: TemplateLibrary) -> None:
        self._skipped: list[tuple[_Template | _Block, int]] = []
        self._reading = object()  # what templates know this dump by: they outlive its bytes
        self._machine = machine
        self._entry_reader = entry_reader
        self._library = library
        self._entry_end: int | None = None
        self._latest: _Template | None = None
        self._added = 0
        machine.missing = self._interpret_skipped

    def after_dict(self, machine: Machine) -> bool:
        """Advance the machine over the following entries of known kinds; never end the interpretation."""
        marks = machine.marks
        # An entry has just been closed when its dictionary lies directly in the list under the key "entries".
        if len(marks) != 2 or len(marks[1]) < 2 or marks[1][-2] != "entries":
            return False
        template = None
        if self._entry_end is not None:
            template = self._known(self._entry_end, machine.position) or self._learn(
                self._entry_end, machine.position, machine.stack[-1]
            )
        if template is not None and self._latest is not None:
            self._latest.is_followed_by(template)
        self._latest = template
        self._advance(machine)
        self._entry_end = machine.position
        return False

    def add_next(self, count: int) -> None:
        """Add the rows of the next `count` SKIPPED entries to the table."""
        data, skipped, table = self._machine.data, self._skipped, self._entry_reader.table
        while count > 0 and self._added < len(skipped):
            entries, start = skipped[self._added]
            if entries.count > count:
                skipped[self._added : self._added + 1] = entries.parts(start)
                continue
            table.extend(entries.kind_indexes, entries.numbers_at(data, start))
            self._added += 1
            count -= entries.count

    def _known(self, start: int, stop: int) -> _Template | None:
        """The template, of this dump or of one before, of an entry that was interpreted."""
        template = self._library.find(self._machine.data, start)
        if template is None or template.length != stop - start:
            return None
        return template if template.user is self._reading or self._adopt(template) else None

    def _learn(self, start: int, stop: int, entry: Any) -> _Template | None:
        data = self._machine.data[start:stop]
        shape = EntryShape.of(data, self._machine.memo)
        # Only an entry that says all in the usual way is a pattern for others; a duration differs each time.
        if shape is None or shape.first_put is None or "duration_ms" in entry or "record_id" not in entry:
            return None
        table = self._entry_reader.table
        try:
            index, numbers = self._entry_reader.kind(entry), self._entry_reader.numbers(entry, ABSENT)
        except BadEntry:
            return None
        kind = table.kind_at(index)
        template = self._library.add(_Template(data, kind, table.frames_of(kind), numbers, shape))
        template.user, template.kind_indexes = self._reading, [index]
        return template

    def _advance(self, machine: Machine) -> None:
        data, position, latest = machine.data, machine.position, self._latest
        skipped, library, from_bytes = self._skipped, self._library, int.from_bytes
        before: _Run | None = None  # the block before those that are read one by one
        run: list[_Template] = []  # these
        count = 0
        while data[position : position + 1] == b"}":
            if before is not None and not run and (block := library.block_after(before)) is not None:
                piece = data[position : position + block.length]
                if from_bytes(piece, "little") & block.mask == block.literal and self._adopt_block(block):
                    skipped.append((block, position))
                    position += block.length
                    count += _BLOCK
                    before, latest = block.templates, block.templates[-1]
                    continue
            for template in latest.followers if latest is not None else ():
                piece = data[position : position + template.length]
                if from_bytes(piece, "little") & template.mask == template.literal:
                    break
            else:
                found = library.find(data, position)
                if found is None:
                    break
                template = found
                if latest is not None:
                    latest.is_followed_by(template)
            if template.user is not self._reading and not self._adopt(template):
                break
            skipped.append((template, position))
            position += template.length
            count += 1
            latest = template
            run.append(template)
            if len(run) == _BLOCK:
                after = tuple(run)
                if before is not None:
                    library.note(before, after)
                before, run = after, []
        self._latest = latest
        machine.position = position
        machine.stack.extend([SKIPPED] * count)

    def _adopt_block(self, block: _Block) -> bool:
        if block.user is not self._reading:
            if not all(template.user is self._reading or self._adopt(template) for template in block.templates):
                return False
            block.kind_indexes = [template.kind_indexes[0] for template in block.templates]
            block.user = self._reading
        return True

    def _adopt(self, template: _Template) -> bool:
        """Whether a template of another dump means the same here: its memo indexes refer to equal texts."""
        if not template.portable:
            return False
        memo = self._machine.memo
        try:
            for index, value in template.references.items():
                if (memo[index] if index in memo else self._interpret_skipped(index)) != value:
                    return False
        except Unreadable:
            return False
        table = self._entry_reader.table
        template.kind_indexes = [table.kind_with(template.kind, template.frames)]
        template.user = self._reading
        return True

    def _interpret_skipped(self, index: int) -> Any:
        """The value that a skipped entry memoised under `index`: interpret that entry now."""
        data, memo = self._machine.data, self._machine.memo

        def first_put(skipped: tuple[_Template | _Block, int]) -> int:
            entries, at = skipped
            start, stop = entries.first_put
            return int.from_bytes(data[at + start : at + stop], "little")

        # Writers number their memo from 0 upwards.
        place = bisect_right(self._skipped, index, key=first_put) - 1
        if place >= 0:
            entries, start = self._skipped[place]
            parts = entries.parts(start)
            single = Machine(data, parts[bisect_right(parts, index, key=first_put) - 1][1])
            single.memo, single.missing = memo, self._machine.missing
            single.run(lambda machine: not machine.marks)
        if index not in memo:
            raise Unreadable(f"it refers to value {index}, which it does not hold")
        return memo[index]


def runs(entries: Sequence[object]) -> list[tuple[int, object]]:
    """(number of SKIPPED entries before it, entry) for each other entry, and a last (number, SKIPPED) for the rest."""
    places = [place for place, entry in enumerate(entries) if entry is not SKIPPED]
    before = [-1, *places[:-1]]
    found = [(place - last - 1, entries[place]) for place, last in zip(places, before, strict=False)]
    return [*found, (len(entries) - 1 - (places[-1] if places else -1), SKIPPED)]
