"""Which functions of the package hand a value on: watched as they run, and followed backwards from the end.

At each call and return of a function its arguments, and what it returns, are searched for the value, through containers
and encodings; each object in which it lies is noted with who made it. Then backwards from the end: who made it, of
what, who made that, and who handed it on without making anything. Who was only shown the value made nothing that is
needed, and is not listed; nor is a file that only defines a type.
"""

import contextlib
import functools
import gc
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

import stallwatch
from stallwatch.hook import native

PACKAGE = str(Path(stallwatch.__file__).parent) + os.sep
_INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # parts of their functions
_DEEPEST, _DEEPEST_PLAIN = 14, 4  # objects in objects; those of them that are no values

Key = tuple[str, object]


class Call(NamedTuple):
    """One call of a function of the package. `given`: what bears the value in its arguments; `heard`: in what those
    returned that it called."""

    number: int
    file: str
    function: str
    given: set[Key]
    heard: set[Key]

    @property
    def needs(self) -> set[Key]:
        """What it made its result of."""
        return self.given | self.heard


class Watch:
    """Notes in which objects a number lies, and who made them."""

    def __init__(self, value: object, forms: Sequence[bytes], last: str) -> None:
        """`forms`: how it is encoded; `last`: the function whose result is the end of the way."""
        self._value, self._forms, self._last = value, forms, last
        self._texts = tuple(form.decode("latin-1") for form in forms)
        self._old: set[int] = set()
        self._kept: list[list[object]] = [[]]  # so that no id is used again
        self._numbers = itertools.count()
        self._stacks: dict[int, list[tuple[FrameType, Call]]] = {}
        self.makers: dict[Key, Call] = {}
        self.passers: dict[Key, list[Call]] = {}  # who returned it, and neither made it nor was given it
        self.writers: dict[Key, list[Call]] = {}  # whose argument those bytes were
        self.last: set[Key] = set()
        self.is_on = False

    def begin(self) -> None:
        """The value is about to be. What exists by now and is changed in place is no step of its way."""
        self._kept = [gc.get_objects()]
        self._old = set(map(id, self._kept[0]))
        self.is_on = True

    def note(self, frame: FrameType, event: str, result: object) -> None:
        """As sys.setprofile calls it."""
        if not self.is_on or event not in ("call", "return"):
            return
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name in _INNER:
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if event == "call":
            given = self._of_arguments(frame)
            file = frame.f_code.co_filename.removeprefix(PACKAGE)
            call = Call(next(self._numbers), file, frame.f_code.co_qualname, given, set())
            caller = stack[-1][1] if stack else call
            for key in given:
                self.makers.setdefault(key, caller)
                self.writers.setdefault(key, []).append(call)
            stack.append((frame, call))
        else:
            while stack and stack[-1][0] is not frame:
                stack.pop()  # it did not come to its end under our eyes
            if stack:
                self._note_end(stack.pop()[1], frame, result, stack[-1][1] if stack else None)

    def _note_end(self, call: Call, frame: FrameType, result: object, caller: Call | None) -> None:
        returned = self.bearers(result)
        left = self._of_arguments(frame) | returned
        for key in left:
            self.makers.setdefault(key, call)
        for key in left - call.given:
            self.passers.setdefault(key, []).append(call)
        if caller is not None:
            caller.heard.update(returned)
        if call.function == self._last:
            self.last |= returned

    def _of_arguments(self, frame: FrameType) -> set[Key]:
        code = frame.f_code
        names = (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_freevars)
        found: set[Key] = set()
        for name in names:
            if name not in frame.f_locals:
                continue
            thing = frame.f_locals[name]
            if name == "self" and (held := getattr(thing, "__dict__", None)) is not None:
                used = _names_in(code)  # a daemon holds all there is; a method of its uses some
                for attribute, part in held.items():
                    if attribute in used:
                        found |= self.bearers(part)
                if id(thing) not in self._old and found:
                    found |= self.bearers(thing)
            else:
                found |= self.bearers(thing)
        return found

    def bearers(self, thing: object) -> set[Key]:
        """The objects in which the value lies, from this one down."""
        found: set[Key] = set()
        self._search(thing, found, {}, 0, 0)
        return found

    def _search(self, thing: object, found: set[Key], seen: dict[int, bool], depth: int, plain: int) -> bool:
        if isinstance(thing, int | float):
            return thing == self._value
        if isinstance(thing, str):
            bears = any(text in thing for text in self._texts)
            if bears and thing != self._value:  # as of a number: where it lies tells the way, not that it is there
                found.add(("text", thing))
            return bears
        if isinstance(thing, bytes | bytearray | memoryview | msgspec.Raw):
            data = bytes(thing)
            if bears := any(form in data for form in self._forms):
                found.add(("bytes", data))
            return bears
        if id(thing) in seen or depth > _DEEPEST or isinstance(thing, type | ModuleType | CodeType):
            return seen.get(id(thing), False)
        seen[id(thing)] = False
        parts, is_plain = _parts(thing)
        if plain + is_plain > _DEEPEST_PLAIN:
            return False
        bears = False
        for part in parts:
            bears |= self._search(part, found, seen, depth + 1, plain + is_plain)
        seen[id(thing)] = bears
        if bears and id(thing) not in self._old and not isinstance(thing, FunctionType | functools.partial):
            self._kept[0].append(thing)
            found.add(("object", id(thing)))
        return bears


def _names_in(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return {*code.co_names, *(name for one in inner for name in _names_in(one))}


def _parts(thing: object) -> tuple[list[object], bool]:
    """What lies in an object, and whether it is no value."""
    if isinstance(thing, msgspec.Struct):
        return [getattr(thing, name) for name in thing.__struct_fields__], False
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()], False
    if isinstance(thing, tuple | list | set | frozenset | deque):
        return list(thing), False
    if isinstance(thing, functools.partial):
        return [*thing.args, *thing.keywords.values()], False
    if isinstance(thing, FunctionType):
        found = []
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty yet
                found.append(cell.cell_contents)
        return found, False
    if type(thing).__module__.startswith(("stallwatch.", "starlette.responses")):
        return list(getattr(thing, "__dict__", {}).values()), True
    return [], False


def way(watch: Watch) -> list[Call]:
    """The calls that led to what was returned last, in the order in which they began."""
    waiting, needed, taken = list(watch.last), set(watch.last), []

    def take(call: Call) -> None:
        if call not in taken:
            taken.append(call)

    while waiting:
        key = waiting.pop(0)
        for call in watch.passers.get(key, ()):
            take(call)
        if key[0] == "bytes" and key not in watch.last:
            for call in watch.writers.get(key, ()):
                take(call)
        if (maker := watch.makers.get(key)) is not None:
            take(maker)
            waiting += maker.needs - needed
            needed |= maker.needs
    return sorted(taken, key=lambda call: call.number)


@contextlib.contextmanager
def watched_threads(watch: Watch) -> Iterator[None]:
    """All that start meanwhile, the hook's own too, and this one."""

    def start_new_thread(function: Any, arguments: Any) -> int:
        def run() -> None:
            sys.setprofile(watch.note)
            function(*arguments)

        return original(run, arguments)

    original = native._start_new_thread
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    try:
        with patch.object(native, "_start_new_thread", start_new_thread):
            yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
