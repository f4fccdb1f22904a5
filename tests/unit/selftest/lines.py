"""Lines as ranks write them."""

from stallwatch.selftest.result import StepOutcome
from stallwatch.selftest.told_so_far import Line, Progress


def begin(rank: int, step: str, size: int | None = None, at_ns: int = 0) -> Line:
    return Line("begin", rank, at_ns, 1, step=step, bytes=size)


def end(
    rank: int,
    step: str,
    size: int | None = None,
    outcome: StepOutcome = "ok",
    detail: str = "",
    at_ns: int = 0,
    **facts: int,
) -> Line:
    return Line(
        "end", rank, at_ns, 1, step=step, bytes=size, outcome=outcome, detail=detail, seconds=0.1, facts=dict(facts)
    )


def done(rank: int, *steps: str) -> list[Line]:
    return [line for step in steps for line in (begin(rank, step), end(rank, step))]


def progress(ranks: int, *lines: Line) -> Progress:
    made = Progress(ranks)
    made.add(lines)
    return made
