"""How an examination looks: findings by severity, each with its remedy; or JSON."""

import click
import msgspec

from stallwatch.cli.terminal import safe
from stallwatch.doctor.check_result import Examination, FindingRecord, count, json_schema
from stallwatch.doctor.checks import checks_table
from stallwatch.encoding import json_of
from stallwatch.model.verdict import Report

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def print_json(examination: Examination) -> None:
    """Print an examination as JSON."""
    click.echo(msgspec.json.format(json_of(examination), indent=2).decode())


def print_schema() -> None:
    """Print the schema of that JSON."""
    click.echo(msgspec.json.format(json_of(json_schema()), indent=2).decode())


def print_table() -> None:
    """Print every check with what it looks for."""
    click.echo(checks_table(), nl=False)


def print_report(report: Report) -> None:
    """What `analyze` says of the logs."""
    from rich.console import Group

    from stallwatch.cli.report_view import report_parts
    from stallwatch.cli.terminal import show

    show(Group(*report_parts(report)))
    click.echo("")


def print_examination(examination: Examination, verbose: bool) -> None:
    """Print findings, the worst first; `verbose`: what was in order, too."""
    for finding in examination.findings:
        _print_finding(finding)
    unknown = [check for check in examination.checks if check.outcome == "unknown"]
    for check in unknown:
        click.echo(click.style("unknown", fg="magenta", bold=True) + f"  {check.check}: {safe(check.note)}")
    if unknown:
        click.echo("")
    if verbose:
        for check in examination.checks:
            click.echo(
                f"{check.outcome:8}{check.seconds:7.3f} s  {check.area}: {check.check}  {safe(check.note)}".rstrip()
            )
        click.echo("")
    click.echo(_summary(examination, verbose))


def _print_finding(finding: FindingRecord) -> None:
    label = click.style(finding.severity, fg=_COLOURS[finding.severity], bold=True)
    click.echo(f"{label}  {safe(finding.subject)}: {safe(finding.seen)}")
    click.echo(f"  why: {safe(finding.why)}")
    click.echo(f"  do:  {safe(finding.remedy)}")
    source = f"{finding.check}; {finding.source}" if finding.source else finding.check
    click.echo(click.style(f"  [{safe(source)}]", dim=True))
    click.echo("")


def _summary(examination: Examination, verbose: bool) -> str:
    counts = dict.fromkeys(_COLOURS, 0)
    for finding in examination.findings:
        counts[finding.severity] += 1
    outcomes = [check.outcome for check in examination.checks]
    return (
        f"{examination.node}: {count(counts['error'], 'error')}, {count(counts['warning'], 'warning')}, "
        f"{counts['info']} info; {count(len(outcomes), 'check')} in {examination.seconds:.1f} s, "
        f"{outcomes.count('skipped')} of them with nothing to look at here, {outcomes.count('unknown')} unknown"
        + ("" if verbose else " (-v shows each)")
    )
