"""Lines as ranks write them."""

from stallwatch.selftest.result import StepOutcome
from stallwatch.selftest.told_so_far import ReportLine, ToldSoFar


def begin(rank: int, step: str, size: int | None = None, at_ns: int = 0) -> ReportLine:
    return ReportLine("begin", rank, at_ns, 1, step=step, bytes=size)


def end(
    rank: int,
    step: str,
    size: int | None = None,
    outcome: StepOutcome = "ok",
    detail: str = "",
    at_ns: int = 0,
    **facts: int,
) -> ReportLine:
    return ReportLine(
        "end", rank, at_ns, 1, step=step, bytes=size, outcome=outcome, detail=detail, seconds=0.1, facts=dict(facts)
    )


def done(rank: int, *steps: str) -> list[ReportLine]:
    return [line for step in steps for line in (begin(rank, step), end(rank, step))]


def progress(ranks: int, *lines: ReportLine) -> ToldSoFar:
    made = ToldSoFar(ranks)
    made.add(lines)
    return made
