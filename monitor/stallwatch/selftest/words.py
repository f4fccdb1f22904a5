"""A self-test's report as lines for a person."""

from collections.abc import Iterator

from stallwatch.selftest.result import Bisection, SelfTestReport, StepResult, TrialResult
from stallwatch.selftest.worker.step_lines import name_of, size_text

_MARKS = {"passes": "passes", "fails": "fails", "fails_otherwise": "fails otherwise", "not_run": "not run"}


def lines(report: SelfTestReport) -> Iterator[str]:
    """Given a report, yield its lines from findings of the node to the conclusion; an empty line parts two sections."""
    for finding in report.node_findings:
        yield f"This node, {finding.severity}: {finding.subject}: {finding.seen}"
        yield f"  why: {finding.why}"
        yield f"  do:  {finding.remedy}"
    if report.node_findings:
        yield ""
    if report.trial is not None:
        yield from _job(report.trial)
        yield from _steps(report.trial)
    if report.nccl_tests is not None:
        rate = report.nccl_tests.average_bus_bytes_per_second
        yield f"  nccl-tests all_reduce_perf: {'ok' if report.nccl_tests.ok else 'FAILED'}" + (
            f", average {rate / 1e9:.2f} GB/s" if rate is not None else ""
        ) + (f": {report.nccl_tests.detail}" if report.nccl_tests.detail else "")  # fmt: skip
    for warning in report.warnings:
        yield f"Warning: {warning}"
    if report.trial is not None and report.trial.failure is not None:
        yield ""
        yield from _failure(report.trial)
    if report.bisection is not None:
        yield ""
        yield from _bisection(report.bisection)
    yield ""
    yield conclusion(report)


def conclusion(report: SelfTestReport) -> str:
    """Given a report, return its last sentence: OK, NOT OK with step and ranks, or that the test itself did not
    work."""
    if report.ok is None:
        says = (
            "mend what the node checks found first"
            if report.node_findings
            else (f"the self-test itself did not work, which says nothing about {report.node}")
        )
        return f"No result: {says}.\n{report.problem}"
    took = f"in {report.seconds:.0f} s"
    if report.ok:
        assert report.trial is not None
        untested = tuple(dict.fromkeys(step.step for step in report.trial.steps if step.outcome == "unsupported"))
        right = sum(step.outcome != "unsupported" for step in report.trial.steps)
        unsaid = f"; not tested: {', '.join(untested)}" if untested else ""
        ranks = f"{report.trial.ranks} rank{'' if report.trial.ranks == 1 else 's'}"
        return f"OK: {right} steps on {ranks} are right, {took}{unsaid}."
    if report.trial is None or report.trial.failure is None:
        return f"NOT OK: nccl-tests failed, {took}."
    failure = report.trial.failure
    at = name_of(failure.step, failure.bytes)
    who = f", rank {', '.join(map(str, failure.culprits))}" if failure.culprits else ""
    return f"NOT OK: {failure.kind} at {at}{who}, {took}."


def _job(trial: TrialResult) -> Iterator[str]:
    versions = [f", {name} {version}" for name, version in (("torch", trial.torch), ("NCCL", trial.nccl)) if version]
    yield f"{trial.ranks} rank{'' if trial.ranks == 1 else 's'}, {trial.backend or 'backend unknown'}" + "".join(
        versions
    )
    for device in trial.devices:
        if device.index is None and device.name is None:
            on = "CPU"
        else:
            on = " ".join(filter(None, (f"GPU {device.index}", device.name, device.uuid)))
        yield f"  rank {device.rank}: pid {device.pid} on {device.host or 'this node'}, {on}"
    if trial.master:
        yield f"  master: {trial.master}"


def _steps(trial: TrialResult) -> Iterator[str]:
    """A line for every operation: its sizes, its outcome, its bandwidth."""
    rates = {step.step.removesuffix(" bandwidth"): step for step in trial.steps if step.bus_bytes_per_second}
    by_name: dict[str, list[StepResult]] = {}
    for step in trial.steps:
        if step.step.endswith(" bandwidth") and step.outcome == "ok":
            continue
        by_name.setdefault(step.step, []).append(step)
    for name, steps in by_name.items():
        sized = [step.bytes for step in steps if step.bytes is not None]
        span = " to ".join(map(size_text, sorted({min(sized), max(sized)}))) if sized else ""
        bad = [step for step in steps if step.outcome not in ("ok", "unsupported")]
        unsupported = next((step.detail for step in steps if step.outcome == "unsupported"), "")
        outcome = "; ".join(f"{step.outcome} at {name_of(step.step, step.bytes)}" for step in bad[:3]) or (
            f"not tested: {unsupported}" if unsupported else "ok"
        )
        rate = rates.get(name) or (rates.get("exchange") if name == "exchange +1" else None)
        speed = f", {(rate.bus_bytes_per_second or 0) / 1e9:.2f} GB/s at {size_text(rate.bytes or 0)}" if rate else ""
        yield f"  {name:<24} {span:<18} {outcome}{speed}"


def _failure(trial: TrialResult) -> Iterator[str]:
    failure = trial.failure
    assert failure is not None
    yield f"What failed: {failure.summary}"
    if failure.verdict is not None:
        yield f"  stallwatch's verdict: {failure.verdict.cause}, {failure.verdict.confidence}"
        yield from (f"  because: {fact.fact} ({fact.source})" for fact in failure.verdict.because[:4])
        yield from (f"  next: {step}" for step in failure.verdict.next_steps[:3])
    yield from (f"  missing: {text}" for text in failure.missing)


def _bisection(bisection: Bisection) -> Iterator[str]:
    yield "The failing step again, with one change each:"
    for trial in bisection.trials:
        detail = f": {trial.detail.splitlines()[0]}" if trial.detail and trial.outcome != "passes" else ""
        yield f"  {trial.change:<44} {_MARKS[trial.outcome]}{detail}"
    yield from bisection.conclusions
