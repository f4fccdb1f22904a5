"""Public reports as people paste them: cut, wrapped, marked. Whatever is lost, no innocent rank is named."""

import json
import random
import re
from collections.abc import Callable

from stallwatch.diagnosis import judge
from tests.builders.texts import of_logs
from tests.unit.diagnosis.logs import test_reports_of_more_launchers, test_reports_of_other_kinds

_REPORTS = test_reports_of_other_kinds.REPORTS | test_reports_of_more_launchers.REPORTS
# What is left of some may look like another failure: of one process that its manager killed.
_LOOK_ALIKE = ("intel/torch-ccl 71", "open-mmlab/mmsegmentation 3106")
_CASES = 300
_Lines = list[str]
_RANK = re.compile(r"\[rank(\d+)\]")


def _wrapped(rng: random.Random, lines: _Lines) -> _Lines:
    width = rng.choice([72, 80, 100, 132])
    return [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]


def _without_a_rank(rng: random.Random, lines: _Lines) -> _Lines:
    ranks = sorted({match[1] for line in lines if (match := _RANK.search(line))})
    gone = rng.choice(ranks) if ranks else ""
    return [line for line in lines if f"[rank{gone}]" not in line]


def _half_coloured(rng: random.Random, lines: _Lines) -> _Lines:
    return [f"\x1b[31m{line}\x1b[0m" if rng.random() < 0.5 else line for line in lines]


_CHANGES: tuple[Callable[[random.Random, _Lines], _Lines], ...] = (
    _wrapped,
    _half_coloured,
    _without_a_rank,
    lambda rng, lines: [line for line in lines if rng.random() > 0.3],
    lambda rng, lines: lines[-rng.randint(1, len(lines)) :] if lines else lines,
    lambda rng, lines: lines[: rng.randint(1, len(lines))] if lines else lines,
    lambda rng, lines: [line[:160] for line in lines],
    lambda rng, lines: [f"{line}\r" for line in lines],
    lambda rng, lines: [f"2026-11-28T10:00:31.123456789Z stderr F {line}" for line in lines],
    lambda rng, lines: [json.dumps({"log": f"{line}\n", "time": "2026-11-28T10:00:31.1Z"}) for line in lines],
    lambda rng, lines: [f"> {line}" for line in lines],
)


def test_whatever_is_lost_of_a_report_no_innocent_rank_is_named() -> None:
    names = sorted(set(_REPORTS) - set(_LOOK_ALIKE))
    for seed in range(_CASES):
        rng = random.Random(f"reports cut {seed}")
        name = rng.choice(names)
        text, accepted = _REPORTS[name]
        lines, changes = text.split("\n"), rng.sample(_CHANGES, rng.choice([1, 2]))
        for change in changes:
            lines = change(rng, lines)
        found = judge(of_logs("\n".join(lines))).verdicts[0]
        may = {rank for _, ranks in accepted for rank in ranks}
        assert found.cause != "healthy" or not "".join(lines).strip(), (seed, name)
        assert set(found.culprits) <= may, (seed, name, found.summary)
