"""What the ranks have told so far, and what follows from it. No I/O: lines and exit codes in, findings out."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from stallwatch.selftest.result import Device, Failure, StepOutcome, StepResult
from stallwatch.selftest.worker.step_lines import IMPORT, name_of

_WORST_FIRST: tuple[StepOutcome, ...] = ("error", "wrong", "unfinished", "unsupported", "ok")


class ReportLine(msgspec.Struct, frozen=True):
    """One line of a rank's report (selftest/worker/step_lines.py)."""

    kind: Literal["begin", "end", "finished", "crash"]
    rank: int
    at_ns: int
    schema_version: int
    step: str = ""
    bytes: int | None = None
    outcome: StepOutcome | None = None
    detail: str = ""
    seconds: float | None = None
    facts: dict[str, Any] = {}

    @property
    def key(self) -> tuple[str, int | None]:
        """Step and size in bytes: what makes the lines of several ranks lines of one step."""
        return self.step, self.bytes


class ToldSoFar:
    """All lines of one job. Ranks walk the same steps in the same order."""

    def __init__(self, ranks: int) -> None:
        self.lines: dict[int, list[ReportLine]] = {rank: [] for rank in range(ranks)}

    def add(self, lines: Iterable[ReportLine]) -> bool:
        """Return whether there were any."""
        before = self.count
        for line in lines:
            self.lines[line.rank].append(line)
        return self.count > before

    @property
    def count(self) -> int:
        """How many lines all ranks have told."""
        return sum(map(len, self.lines.values()))

    def silent(self) -> tuple[int, ...]:
        """Ranks that have not told anything yet."""
        return tuple(rank for rank, lines in self.lines.items() if not lines)

    def crash(self) -> ReportLine | None:
        """Return a line that tells of our own mistake, None where no rank told of one."""
        return next((line for lines in self.lines.values() for line in lines if line.kind == "crash"), None)

    def errors(self) -> list[ReportLine]:
        """Oldest first; all clocks are this node's."""
        found = [line for lines in self.lines.values() for line in lines if line.outcome == "error"]
        return sorted(found, key=lambda line: line.at_ns)

    def finished(self, rank: int) -> bool:
        """Whether the rank has told that it went through all steps."""
        return any(line.kind == "finished" for line in self.lines[rank])

    def open_step(self, rank: int) -> ReportLine | None:
        """The step in which a rank is; None between steps and before the first."""
        last = self.lines[rank][-1] if self.lines[rank] else None
        return last if last is not None and last.kind == "begin" else None

    def importing(self) -> bool:
        """Whether Python or torch is still being loaded by some rank."""
        opened = [self.open_step(rank) for rank in self.lines]
        return bool(self.silent()) or any(line is not None and line.step == IMPORT for line in opened)

    def behind(self) -> tuple[int, ...]:
        """Ranks that have begun fewer steps than others; empty when all are equally far."""
        begun = {rank: sum(line.kind == "begin" for line in lines) for rank, lines in self.lines.items()}
        return tuple(rank for rank, count in begun.items() if count < max(begun.values()))

    def stuck(self) -> tuple[int, ...]:
        """Ranks that stand in a step which others have ended; empty when all stand in it."""
        standing = tuple(rank for rank in self.lines if self.open_step(rank) is not None)
        return standing if len(standing) < len(self.lines) else ()

    def farthest(self) -> ReportLine | None:
        """The beginning of the step that the foremost rank stands in or had last."""
        begun = [[line for line in lines if line.kind == "begin"] for lines in self.lines.values()]
        foremost = max(begun, key=len)
        return foremost[-1] if foremost else None

    def steps(self) -> tuple[StepResult, ...]:
        """Return each step once, in the order in which ranks began them, with the worst outcome of all ranks."""
        order: dict[tuple[str, int | None], list[ReportLine]] = {}
        for lines in self.lines.values():
            for line in lines:
                if line.kind == "begin":
                    order.setdefault(line.key, [])
        for lines in self.lines.values():
            for line in lines:
                if line.kind == "end":
                    order.setdefault(line.key, []).append(line)
        return tuple(self._step(key, ends) for key, ends in order.items())

    def _step(self, key: tuple[str, int | None], ends: list[ReportLine]) -> StepResult:
        by_outcome: dict[StepOutcome, list[int]] = {}
        for line in ends:
            by_outcome.setdefault(line.outcome or "error", []).append(line.rank)
        unfinished = [rank for rank in self.lines if rank not in {line.rank for line in ends}]
        if unfinished:
            by_outcome.setdefault("unfinished", []).extend(unfinished)
        outcome = next(outcome for outcome in _WORST_FIRST if outcome in by_outcome)
        rates = [int(line.facts["bus_bytes_per_second"]) for line in ends if "bus_bytes_per_second" in line.facts]
        return StepResult(
            step=key[0],
            bytes=key[1],
            outcome=outcome,
            ranks=tuple(sorted(by_outcome[outcome])),
            seconds=max((line.seconds for line in ends if line.seconds is not None), default=None),
            bus_bytes_per_second=min(rates, default=None),
            detail=next((line.detail for line in ends if line.outcome == outcome and line.detail), ""),
        )

    def facts(self) -> dict[int, dict[str, Any]]:
        """What each rank's `device` step told."""
        return {
            rank: line.facts
            for rank, lines in self.lines.items()
            for line in lines
            if line.step == "device" and line.kind == "end" and line.outcome == "ok"
        }

    def devices(self) -> tuple[Device, ...]:
        """Return who each rank is and on what it works, by the facts that ranks told; a rank without facts is left
        out."""
        return tuple(
            Device(
                rank=rank,
                host=str(facts.get("host", "")),
                pid=facts.get("pid"),
                index=facts.get("index") if facts.get("device") else None,
                name=facts.get("device"),
                uuid=facts.get("uuid") or None,
            )
            for rank, facts in self.facts().items()
        )


def failure_at_end(progress: ToldSoFar, exit_codes: Mapping[int, int | None]) -> Failure | None:
    """Given the exit codes of the ranks that ended by themselves, return what went wrong first; None: all is right.

    The order is that of causes: a process that is gone explains the errors of the others, an error ends a job before
    anybody can see more wrong results.
    """
    return _died(progress, exit_codes) or _error(progress) or _wrong(progress)


def _died(progress: ToldSoFar, exit_codes: Mapping[int, int | None]) -> Failure | None:
    told = {line.rank for line in progress.errors()}
    died = {
        rank: code
        for rank, code in exit_codes.items()
        if code and rank not in told and not progress.finished(rank) and progress.lines[rank]
    }
    if not died:
        return None
    first = min(died)
    at = progress.open_step(first) or progress.farthest()
    how = "; ".join(f"rank {rank} {_ending(code)}" for rank, code in died.items())
    step, size = at.key if at else ("start", None)
    return Failure("died", step, size, tuple(sorted(died)), f"{how} in step {name_of(step, size)}")


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _error(progress: ToldSoFar) -> Failure | None:
    errors = progress.errors()
    if not errors:
        return None
    first = errors[0]
    same = tuple(sorted({line.rank for line in errors if line.key == first.key}))
    behind = progress.behind()
    absent = first.step == "meeting" and behind and first.rank not in behind
    culprits = behind if absent else () if len(same) == len(progress.lines) and len(same) > 1 else (first.rank,)
    summary = f"rank {first.rank} failed in step {name_of(*first.key)}: {first.detail}"
    return Failure("absent" if absent else "error", first.step, first.bytes, culprits, summary)


def _wrong(progress: ToldSoFar) -> Failure | None:
    wrong = next((step for step in progress.steps() if step.outcome == "wrong"), None)
    if wrong is None:
        return None
    everybody = len(wrong.ranks) == len(progress.lines)
    who = "all ranks" if everybody else "rank " + ", ".join(map(str, wrong.ranks))
    summary = f"{name_of(wrong.step, wrong.bytes)} gives a wrong result on {who}: {wrong.detail}"
    return Failure("wrong", wrong.step, wrong.bytes, () if everybody else wrong.ranks, summary)
