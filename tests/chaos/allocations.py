"""Ticks of the daemon's loop in which allocations fail, some of them or thousands in a row: what was taken in before is
not lost by that, and the hang is told all the same. By CPython's `_testcapi`, each tick in a process of its own."""

import faulthandler
import importlib
import logging
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench

HANG = job_run(four(stuck_at=20.3), 60)
# The tick at which they fail: from before the hang to after its verdict.
_FIRST, _LAST = 16, 34
# One tick with a judgement makes some 20,000. None that fails for ever: CPython 3.11 then unwinds for ever
# (`PyLong_FromLong(lasti)` in ceval.c), and systemd's watchdog ends what does not tick.
_MOST_BEFORE, _IN_A_ROW = 20_000, (1, 3, 30, 300, 3000)
_SECONDS = 60
_LIVES, _RAISES, _LOST = 0, 3, 5


def run(ticks: int, seed: int) -> Iterator[str]:
    """Yield lines of what was lost, the sum last."""
    codes = Counter[int]()
    for number in range(seed, seed + ticks):
        codes[code := _played(number)] += 1
        if code not in (_LIVES, _RAISES):
            yield f"seed {number}: " + (
                f"signal {-code}" if code < 0 else "not told" if code == _LOST else f"exit {code}"
            )
    yield (
        f"{ticks} ticks from seed {seed}: an error left the loop's own guards in {codes[_RAISES]} "
        f"(and is caught there), lost {ticks - codes[_LIVES] - codes[_RAISES]}"
    )


def _played(seed: int) -> int:
    """The exit code of a process whose loop had no memory in one tick."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(_SECONDS, exit=True)
            code = _without_memory(random.Random(seed))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _without_memory(chance: random.Random) -> int:
    testcapi = importlib.import_module("_testcapi")  # CPython's own, and not on every node

    logging.disable(logging.CRITICAL)
    first, before = chance.randrange(_FIRST, _LAST), int(_MOST_BEFORE ** chance.random())
    with tempfile.TemporaryDirectory() as folder:
        bench, code = Bench(Path(folder), HANG).run(first), _LIVES
        tick, between, number = bench.daemon.tick, bench.daemon.between_ticks, bench.ticks
        fails = before, before + chance.choice(_IN_A_ROW)
        set_nomemory, remove = testcapi.set_nomemory, testcapi.remove_mem_hooks
        try:
            set_nomemory(*fails)
            tick(number, 0.0)
            between()
        except MemoryError:
            code = _RAISES
        finally:
            remove()
        bench.ticks += 1
        bench.run(len(HANG) - bench.ticks)
        told = [(one.state, one.severity) for one in bench.latest.incidents]
        return code if told in ([("open", "warning")], [("open", "critical")]) else _LOST
