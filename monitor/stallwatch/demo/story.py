"""The outcome in words: what a person reads at the end of the demo."""

import textwrap
from collections.abc import Iterator, Sequence

from stallwatch.demo.outcome import DemoOutcome
from stallwatch.model.verdict import CulpritProcess, Verdict

WIDTH = 100
MOST_FACTS = 5


def outcome_lines(outcome: DemoOutcome, page_stays: bool = False) -> Iterator[str]:
    """The verdict, then whether it is the truth."""
    if outcome.problem:
        yield from ("", f"Wrong: {outcome.problem}")
        return
    verdict = outcome.verdict
    if verdict is not None:
        yield from verdict_lines(verdict)
        if outcome.page_url:
            yield f"  page      {outcome.page_url}" + ("" if page_stays else " (gone now; --keep leaves it standing)")
    yield ""
    yield _conclusion(outcome)


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Return the verdict as it is read in a terminal: sentence, cause, culprits, facts, steps."""
    yield ""
    yield from textwrap.wrap(verdict.summary, WIDTH)
    yield ""
    where = f", {verdict.where}" if verdict.where else ""
    yield f"  cause     {verdict.cause}{where}; {verdict.confidence}"
    for process in verdict.culprit_processes:
        yield from _culprit(process)
    if verdict.waiting:
        yield f"  waiting   {_ranks(verdict.waiting)}{_operation(verdict)}"
    yield from _listed("because", [f"{fact.fact} ({fact.source})" for fact in verdict.because[:MOST_FACTS]])
    yield from _listed("next", verdict.next_steps)


def _culprit(process: CulpritProcess) -> Iterator[str]:
    host = f" on {process.host}" if process.host else ""
    pid = f", pid {process.pid}" if process.pid else ""
    yield f"  culprit   rank {process.rank}{host}{pid}"
    if frame := process.frame:
        yield f"            {frame.file}:{frame.line} in {frame.function}"
        if frame.source:
            yield f"            > {frame.source.strip()}"


def _operation(verdict: Verdict) -> str:
    if verdict.cause == "p2p_unmatched" and verdict.process_group is None:
        return ""  # the operation is then the culprits' own transfer, not what the others wait in
    operation = f" in {verdict.operation}" if verdict.operation else ""
    number = f" #{verdict.seq}" if verdict.seq is not None else ""
    group = verdict.process_group
    return f"{operation}{number}" + (f" of group {group.description or 'default'}" if group else "")


def _ranks(ranges: str) -> str:
    return f"rank {ranges}" if ranges.isdecimal() else f"ranks {ranges}"


def _listed(label: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        first = f"  {label if number == 0 else '':<10}"
        yield from textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * 12)


def _conclusion(outcome: DemoOutcome) -> str:
    truth = _truth(outcome)
    took = "" if outcome.seconds_to_verdict is None else f" {outcome.seconds_to_verdict:.1f} s after the fault."
    if outcome.agrees:
        return f"Right:{took} The truth was {truth}." if took else f"Right: the daemon told nobody, and {truth}."
    if outcome.verdict is None:
        heard = "; ".join(f"{said.cause} {list(said.culprits)} after {said.seconds} s" for said in outcome.said)
        return f"Wrong: the daemon came to no verdict ({heard or 'it said nothing'}). The truth was {truth}."
    return f"Wrong:{took} The truth was {truth}."


def _truth(outcome: DemoOutcome) -> str:
    if not outcome.expected_causes:
        return "nothing was wrong"
    ranks = ", ".join(str(rank) for rank in outcome.expected_culprits)
    return f"{outcome.expected_causes[0]} by rank {ranks} (fault {outcome.fault!r})"
