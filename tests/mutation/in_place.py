"""Mutants in a process that has collected the tests: each in a fork, where its code takes the place of the module's.

A run of pytest for each mutant takes seconds before the first test begins, and runs tests that never come to the
changed line. Here one fork runs all tests once and notes which lines each comes to (by coverage.py, its contexts) and
how long it takes. Then each mutant is a fork in which functions get the changed code, so that every importer has it,
and which runs the tests that come to its lines, the quickest first, until one fails. What stands in a class beside its
methods cannot be changed so: it is left to those who run it in a process of its own.
"""

import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.left_behind import end_children, end_with
from tests.mutation.mutants import Mutant

_SPARE_SECONDS = {signal.ITIMER_REAL: 10.0, signal.ITIMER_PROF: 3.0}
"""A test that takes so much longer with a mutant than five times what it took without hangs. What turns in a loop is
found by its processor time, however busy the machine is."""
_MOST_MEMORY_BYTES = 6 << 30


class Touched(NamedTuple):
    by_line: dict[str, dict[int, list[str]]]
    """For each file its lines, each with the tests that come there."""
    seconds: dict[str, float]
    failed: list[str]
    """They fail without a mutant and say nothing."""
    kills: dict[str, int]
    """How many mutants each has killed so far."""


def touched_by(items: Sequence[pytest.Item], files: Sequence[str]) -> Touched:
    """Run every test once, in a fork: nothing that they leave in memory is there when a mutant is tried."""

    def run() -> Touched:
        measured = importlib.import_module("coverage").Coverage(data_file=None, include=list(files), config_file=False)
        measured.start()
        seconds, failed = {}, []
        for item in items:
            measured.switch_context(item.nodeid)
            began = time.monotonic()
            if not _passes(item):
                failed.append(item.nodeid)
            seconds[item.nodeid] = time.monotonic() - began
        measured.stop()
        data = measured.get_data()
        return Touched({file: dict(data.contexts_by_lineno(file)) for file in files}, seconds, failed, {})

    said = in_a_fork(run)
    assert said, "the tests ended their process"
    return msgspec.json.decode(said, type=Touched)


def tests_for(
    changed: Mutant, file: str, touched: Touched, items: Sequence[pytest.Item], most_seconds: float
) -> list[pytest.Item]:
    """The tests that come to its lines (of what an import runs: to the module), those of the module's own file
    before the others, the quickest and those that have killed first, as many as take `most_seconds` in all."""
    lines = touched.by_line[file]
    wanted = range(changed.line, changed.last_line + 1) if changed.kind == "function" else lines
    found = {test for line in wanted for test in lines.get(line, ())}.difference(touched.failed)
    own = f"test_{Path(file).name}"
    coming = [item for item in items if item.nodeid in found]
    cost = {item: touched.seconds[item.nodeid] / (1 + touched.kills.get(item.nodeid, 0)) for item in coming}
    coming.sort(key=lambda item: (item.path.name != own, cost[item]))
    spent = accumulate(touched.seconds[item.nodeid] for item in coming)
    return [item for item, seconds in zip(coming, spent, strict=True) if seconds <= most_seconds]


def is_killed(module: ModuleType, changed: Mutant, tests: Sequence[pytest.Item], touched: Touched) -> bool | None:
    """Whether one of the tests fails with the mutant in place; None where it cannot be put there."""

    def run() -> str | None:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
        if not put_in_place(module, changed):
            return None
        for test in tests:
            for timer, spare in _SPARE_SECONDS.items():
                signal.setitimer(timer, 5 * touched.seconds[test.nodeid] + spare)
            if not _passes(test):
                return test.nodeid
        return ""

    # A fork that says nothing was ended: by its alarm, by a signal, by a lack of memory.
    if not (said := in_a_fork(run)):
        return True
    killer = msgspec.json.decode(said, type=str | None)
    if killer:
        touched.kills[killer] = 1 + touched.kills.get(killer, 0)
    return None if killer is None else bool(killer)


def put_in_place(module: ModuleType, changed: Mutant) -> bool:
    """Give the module's functions the mutant's code, or its names their values; False where that cannot be done."""
    file = str(module.__file__)
    code = compile(changed.tree, file, "exec")
    # By `type`: `isinstance` asks an object for its class, which some answer by a warning (torch's `reduce_op`).
    functions = [one for one in gc.get_objects() if type(one) is FunctionType and one.__code__.co_filename == file]
    if changed.kind == "function":
        return _give_code(functions, code, compile(Path(file).read_bytes(), file, "exec"))
    if changed.kind == "class":
        return False
    fresh = ModuleType(module.__name__)
    fresh.__file__ = file
    exec(code, fresh.__dict__)
    if changed.kind == "module":
        return _give_names(module, fresh)
    made = [one for one in gc.get_objects() if type(one) is FunctionType and one.__globals__ is fresh.__dict__]
    named = {_name_of(one.__code__): one for one in made}
    for function in functions:
        if new := named.get(_name_of(function.__code__)):
            function.__defaults__, function.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
    return True


def _give_code(functions: Sequence[FunctionType], changed: CodeType, before: CodeType) -> bool:
    of_name: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    for one in _codes(changed):
        of_name[_name_of(one)].append(one)
    differs = set(_codes(changed)).difference(_codes(before))
    given = False
    for function in functions:
        found = of_name[_name_of(function.__code__)]
        if len(found) == 1 and found[0] in differs and found[0].co_freevars == function.__code__.co_freevars:
            function.__code__ = found[0]
            given = True
    return given


def _give_names(module: ModuleType, fresh: ModuleType) -> bool:
    for name, value in list(vars(fresh).items()):
        before = vars(module).get(name)
        if name.startswith("__") or isinstance(value, (FunctionType, type, ModuleType)) or repr(before) == repr(value):
            continue
        for other in (module, *(() if name.startswith("_") else sys.modules.values())):
            if vars(other).get(name) is before:
                setattr(other, name, value)
    return True


def _name_of(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def in_a_fork(run: Callable[[], object]) -> bytes:
    """What `run` returns in a fork of this process, as JSON; nothing where the fork was ended. Nothing that it started
    outlives it."""
    parent = os.getpid()
    # A file: the other end of a pipe would be open for as long as a process that a test has left.
    with tempfile.TemporaryFile() as answer:
        try:
            if not (pid := os.fork()):
                end_with(parent)
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, 1)
                os.dup2(nothing, 2)
                try:
                    answer.write(msgspec.json.encode(run()))
                    answer.flush()
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            answer.seek(0)
            return answer.read()
        finally:
            end_children()


class Session:
    """Takes the place of pytest's own loop over the tests; `tried` is called with the tests that were collected."""

    def __init__(self, tried: Callable[[Sequence[pytest.Item]], None]) -> None:
        self._tried = tried

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._tried(session.items)
        return True


def module_of(path: Path) -> ModuleType:
    """`monitor/stallwatch/a/b.py` as it is imported."""
    return importlib.import_module(".".join(path.with_suffix("").parts[1:]))
