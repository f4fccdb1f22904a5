"""`stallwatch status`: the ranks of this node now, and what stands open."""

from collections import Counter
from collections.abc import Sequence, Set

import click
from rich.console import Group, RenderableType
from rich.text import Text

from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.cli.terminal import SEVERITY_STYLES, STATE_STYLES, safe, seconds, severity_word, show, styled, table
from stallwatch.errors import StallwatchError
from stallwatch.model.incident import UNTOLD
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import IncidentDocument, IncidentList, RankDocument, RankList


@click.command()
@click.option("--url", is_flag=True, help="Print only the status page's address with its token.")
@asks_daemon
def command(client: Client, as_json: bool, url: bool) -> None:
    """Show each rank's state, step and age, and the open incidents."""
    if url:
        address = client.page_url()
        if address is None:
            raise StallwatchError("the daemon has no page", "Set http.listen, for instance to 127.0.0.1:9477.")
        click.echo(address)
        return
    ranks, incidents = client.ranks(), client.incidents()
    if as_json:
        echo_json(status_document(ranks, incidents))
    else:
        show(status_view(ranks, incidents))


def status_document(ranks: RankList, incidents: IncidentList) -> dict[str, object]:
    return {name: getattr(ranks, name) for name in ranks.__struct_fields__} | {"incidents": incidents.incidents}


def status_view(ranks: RankList, incidents: IncidentList, lines: int | None = None) -> RenderableType:
    """Given how many lines there are for ranks, of more ranks only those that differ are listed."""
    parts: list[RenderableType] = [_head(ranks)]
    parts += _sensors(ranks)
    parts += [Text(safe(problem), style="yellow") for problem in ranks.problems]
    standing = [incident for incident in incidents.incidents if incident.state != "resolved"]
    if ranks.ranks:
        blamed = {(one.training_job, rank) for one in standing if one.verdicts for rank in one.verdicts[0].culprits}
        listed = ranks.ranks
        if lines is not None and len(listed) > lines:
            parts += [Text(), *(Text(safe(words)) for words in _counts(listed))]
            listed = _differing(listed, blamed)[: max(lines, 1)]
        parts += [Text(), _ranks(listed, blamed)] if listed else []
    parts.append(Text())
    if not standing:
        parts.append(Text("No open incident.", style="green" if ranks.ranks else "dim"))
    for incident in standing:
        parts += _incident(incident)
    return Group(*parts)


def _head(ranks: RankList) -> Text:
    jobs = {rank.training_job for rank in ranks.ranks}
    count = f"{len(ranks.ranks)} ranks of {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}" if jobs else "no ranks"
    return Text(safe(f"{ranks.node}: {count}"), style="bold")


def _sensors(ranks: RankList) -> list[Text]:
    """What sensors have to say, one line a reason. One that is up may still have met what it does not read."""
    names: dict[tuple[str, str], list[str]] = {}
    for sensor in ranks.sensors:
        if sensor.reason:
            style = ("yellow" if sensor.up else "bold red") if sensor.required else "dim"
            names.setdefault((sensor.reason, style), []).append(sensor.sensor)
    return [Text(safe(f"{', '.join(who)}: {reason}"), style=style) for (reason, style), who in names.items()]


def _counts(ranks: Sequence[RankDocument]) -> list[str]:
    """A line a job: how many of its ranks are in which state, the most first."""
    return [
        f"{job}: " + ", ".join(f"{count} {state}" for state, count in states.most_common())
        for job, states in _states(ranks).items()
    ]


def _differing(ranks: Sequence[RankDocument], blamed: Set[tuple[str, int]]) -> tuple[RankDocument, ...]:
    """Culprits first, then who is not in the state of most of its job."""
    usual = {job: states.most_common(1)[0][0] for job, states in _states(ranks).items()}
    culprits = [rank for rank in ranks if (rank.training_job, rank.rank) in blamed]
    others = [rank for rank in ranks if rank not in culprits and rank.state != usual[rank.training_job]]
    return (*culprits, *others)


def _states(ranks: Sequence[RankDocument]) -> dict[str, Counter[str]]:
    states: dict[str, Counter[str]] = {}
    for rank in ranks:
        states.setdefault(rank.training_job, Counter())[rank.state] += 1
    return states


def _ranks(ranks: Sequence[RankDocument], blamed: Set[tuple[str, int]]) -> RenderableType:
    numbers = ("rank", "step", "step time", "since step", "limit", "pid")
    grid = table("job", "rank", "state", "step", "step time", "since step", "limit", "phase", "pid", right=numbers)
    grid.columns[2].no_wrap = True  # the state is the point: a narrow window cuts the job's name first
    for rank in ranks:
        state = styled(rank.state, STATE_STYLES)
        if (rank.training_job, rank.rank) in blamed:
            state = Text.assemble(state, (", culprit", "bold red"))
        grid.add_row(
            Text(safe(rank.training_job)),
            f"{rank.rank}/{rank.world_size}",
            state,
            "?" if rank.step is None else str(rank.step),
            seconds(rank.step_seconds),
            seconds(rank.beat_age_seconds),
            seconds(rank.limit_seconds),
            Text(safe(rank.phase)),
            str(rank.pid),
        )
    return grid


def _incident(incident: IncidentDocument) -> list[Text]:
    text = Text()
    word = severity_word(incident.severity) if incident.state == "open" else "suspect"
    text.append(word, style=SEVERITY_STYLES[incident.severity])
    text.append(safe(f"  {incident.incident_id}  "), style="bold")
    if not incident.verdicts:
        text.append(safe("; ".join(finding.reason for finding in incident.findings) or "no verdict yet"))
        return [text]
    text.append(safe(incident.verdicts[0].summary))
    text.append(safe(f" {incident.acknowledged_by} is on it.") if incident.acknowledged_by else "", style="green")
    reasons = [event.what for event in incident.events if event.what.startswith(UNTOLD)]
    more = [reasons[-1]] if incident.severity == "none" and reasons else []
    more.append(f"why and what to do: stallwatch incidents {incident.incident_id}")
    return [text, *(Text(safe(f"  {line}"), style="dim") for line in more)]
