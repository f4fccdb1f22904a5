"""`stallwatch status`: the ranks of this node now, and what stands open."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import click
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from stallwatch import config
from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.cli.incident_view import marks
from stallwatch.cli.terminal import (
    SEVERITY_STYLES,
    STATE_STYLES,
    console,
    indented,
    local_time,
    safe,
    seconds,
    severity_word,
    show,
    styled,
    table,
    time_and_distance,
)
from stallwatch.errors import StallwatchError
from stallwatch.hook.rank_directory import FALLBACK_DIRECTORY, SERVICE_DIRECTORY, is_read
from stallwatch.incidents.incident_names import incident_id
from stallwatch.model.incident import UNTOLD
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import HeldMessages, IncidentDocument, IncidentList, RankDocument, RankList

_COLUMNS = ("job", "rank", "state", "step", "step time", "since step", "limit", "phase", "pid")
_NUMBERS = ("rank", "step", "step time", "since step", "limit", "pid")
_DROPPED_FIRST = ("limit", "step time", "pid", "phase")  # by a window that is too narrow for all


class Who(NamedTuple):
    """A rank of one life of a job: several may go by one name."""

    training_job: str
    epoch: str
    owner: str
    rank: int


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
        click.echo(_written_elsewhere(any_ranks=bool(ranks.ranks)), err=True, nl=False)


def _written_elsewhere(any_ranks: bool) -> str:
    """A line for a shell whose jobs write where no daemon reads; "" where none is needed."""
    named = config.current_environment().get("STALLWATCH_DIR", "")
    if named:
        where, mend = f"STALLWATCH_DIR is {safe(named)} in this shell", "Unset it, or set the same for the daemon."
    else:
        where = SERVICE_DIRECTORY if os.access(SERVICE_DIRECTORY, os.W_OK | os.X_OK) else FALLBACK_DIRECTORY
        mend = "Export the STALLWATCH_DIR that the daemon has (its daemon.rank_directory)."
        if any_ranks:
            return ""  # jobs find their way
    if is_read(named or where):
        return ""
    here = where if named else f"jobs of this shell write to {where}"
    return f"stallwatch: {here}, and no daemon reads there: none sees jobs that start here. {mend}\n"


def status_document(ranks: RankList, incidents: IncidentList) -> dict[str, object]:
    """`status --json`: the ranks' document with the incidents in it."""
    return {name: getattr(ranks, name) for name in ranks.__struct_fields__} | {"incidents": incidents.incidents}


def status_view(ranks: RankList, incidents: IncidentList, lines: int | None = None) -> RenderableType:
    """Given how many lines there are for ranks, only those that differ are listed of more, below the incidents."""
    head: list[RenderableType] = [_head(ranks), *_sensors(ranks)]
    head += [Text(safe(silence), style="yellow") for silence in ranks.telling.silences]
    head += [Text(safe(problem), style="yellow") for problem in (*ranks.problems, *map(_held, ranks.held))]
    standing = sorted((one for one in incidents.incidents if not one.is_over and not _is_well(one)), key=_urgency)
    last = next((one for one in incidents.incidents if one.is_over), None)
    told = _standing(standing, last, any_ranks=bool(ranks.ranks))
    blamed = {Who(one.training_job, one.epoch, one.owner, rank) for one in standing for rank in _culprits(one)}
    if lines is None:  # what was printed last is nearest to the prompt
        return Group(*head, *_rank_parts(ranks.ranks, blamed, None), Text(), *told)
    return Group(*head, Text(), *told, *_rank_parts(ranks.ranks, blamed, lines))  # a screen cuts at its lower end


def _held(held: HeldMessages) -> str:
    whose = f" about jobs of {held.owner}" if held.owner else ""
    count = f"{held.messages} {'message waits' if held.messages == 1 else 'messages wait'}"
    return f"{held.output}: {count}{whose} until {local_time(held.until)}: {held.reason}"


def _is_well(incident: IncidentDocument) -> bool:
    """Of a suspicion that a look at the ranks has not borne out nobody needs to hear."""
    return incident.severity == "none" and bool(incident.verdicts) and incident.verdicts[0].cause == "healthy"


def _urgency(incident: IncidentDocument) -> int:
    return ("critical", "warning", "none").index(incident.severity)


def _culprits(incident: IncidentDocument) -> tuple[int, ...]:
    return incident.verdicts[0].culprits if incident.verdicts else ()


def _rank_parts(ranks: Sequence[RankDocument], blamed: Set[Who], lines: int | None) -> Iterator[RenderableType]:
    names = _names(ranks)
    listed = ranks
    if lines is not None and len(ranks) > lines:
        yield Text()
        yield from (Text(safe(words)) for words in _counts(ranks, names))
        listed = _differing(ranks, blamed)[: max(lines, 1)]
    if listed:
        yield Text()
        yield _ranks(listed, blamed, names)


def _names(ranks: Sequence[RankDocument]) -> dict[JobKey, str]:
    """What each job is called: its name; where several users have one of it, whose; where one user has, the beginning
    of its incidents' ids."""
    jobs = {_job(rank) for rank in ranks}
    alike, own = Counter(job.training_job for job in jobs), Counter(job.name for job in jobs)
    return {job: _called(job, alike[job.training_job], own[job.name]) for job in jobs}


def _called(job: JobKey, alike: int, own: int) -> str:
    if own > 1:
        return incident_id(job, 0).removesuffix("-0")
    return job.training_job if alike == 1 else f"{job.training_job} ({job.owner})"


def _job(rank: RankDocument) -> JobKey:
    return JobKey(rank.training_job, rank.epoch, rank.owner)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _head(ranks: RankList) -> Text:
    jobs = set(map(_job, ranks.ranks))
    count = f"{_counted(len(ranks.ranks), 'rank')} of {_counted(len(jobs), 'job')}" if jobs else "no ranks"
    gone = sum(rank.state == "gone" for rank in ranks.ranks)
    ended = f", {'all' if gone == len(ranks.ranks) else gone} gone" if gone else ""
    return Text(safe(f"{ranks.node}: {count}{ended}"), style="bold")


def _sensors(ranks: RankList) -> list[Text]:
    """What sensors have to say, one line a reason. One that is up may still have met what it does not read."""
    names: dict[tuple[str, str], list[str]] = {}
    for sensor in ranks.sensors:
        if sensor.reason:
            style = ("yellow" if sensor.up else "bold red") if sensor.required else "dim"
            names.setdefault((sensor.reason, style), []).append(sensor.sensor)
    return [Text(safe(f"{', '.join(who)}: {reason}"), style=style) for (reason, style), who in names.items()]


def _counts(ranks: Sequence[RankDocument], names: Mapping[JobKey, str]) -> list[str]:
    """A line a job: how many of its ranks are in which state, the most first."""
    return [
        f"{names[job]}: " + ", ".join(f"{count} {state}" for state, count in states.most_common())
        for job, states in _states(ranks).items()
    ]


def _differing(ranks: Sequence[RankDocument], blamed: Set[Who]) -> tuple[RankDocument, ...]:
    """Culprits first, then who is not in the state of most of its job."""
    usual = {job: states.most_common(1)[0][0] for job, states in _states(ranks).items()}
    culprits = [rank for rank in ranks if _who(rank) in blamed]
    others = [rank for rank in ranks if rank not in culprits and rank.state != usual[_job(rank)]]
    return (*culprits, *others)


def _who(rank: RankDocument) -> Who:
    return Who(rank.training_job, rank.epoch, rank.owner, rank.rank)


def _states(ranks: Sequence[RankDocument]) -> dict[JobKey, Counter[str]]:
    states: dict[JobKey, Counter[str]] = {}
    for rank in ranks:
        states.setdefault(_job(rank), Counter())[rank.state] += 1
    return states


def _ranks(ranks: Sequence[RankDocument], blamed: Set[Who], names: Mapping[JobKey, str]) -> RenderableType:
    """A narrow window leaves out the columns that say least, and cuts no job's name before that."""
    rows = [_cells(rank, names[_job(rank)], culprit=_who(rank) in blamed) for rank in ranks]
    wide = {title: max(cell_len(str(row[title])) for row in rows) for title in _COLUMNS}
    shown = [title for title in _COLUMNS if wide[title] or title != "phase"]
    for title in _DROPPED_FIRST:
        if sum(max(wide[name], len(name)) + 2 for name in shown) > console().width and title in shown:
            shown.remove(title)
    grid = table(*shown, right=_NUMBERS)
    grid.columns[shown.index("state")].no_wrap = True  # the state is the point
    for row in rows:
        grid.add_row(*(row[title] for title in shown))
    return grid


def _cells(rank: RankDocument, name: str, *, culprit: bool) -> dict[str, Text]:
    state = styled(rank.state, STATE_STYLES)
    if rank.ended:
        state.append(safe(f", {rank.ended}"))
    return {
        "job": Text(safe(name)),
        "rank": Text(f"{rank.rank}/{rank.world_size}"),
        "state": Text.assemble(state, (", culprit", "bold red")) if culprit else state,
        "step": Text("?" if rank.step is None else str(rank.step)),
        "step time": Text(seconds(rank.step_seconds)),
        "since step": Text(seconds(rank.beat_age_seconds)),
        "limit": Text(seconds(rank.limit_seconds)),
        "phase": Text(safe(rank.phase)),
        "pid": Text(str(rank.pid)),
    }


def _standing(
    incidents: Sequence[IncidentDocument], last: IncidentDocument | None, *, any_ranks: bool
) -> Iterator[RenderableType]:
    if not incidents:
        yield Text("No open incident.", style="green" if any_ranks else "dim")
        if last is not None:
            what = last.verdicts[0].summary if last.verdicts else last.resolution or "no verdict"
            when = time_and_distance(last.resolved_at or last.opened_at)
            yield Text(safe(f"The last, {last.state} {when}: {what}"))
            yield Text(safe(f"  why and what to do: stallwatch incidents {last.incident_id}"), style="dim")
        return
    for incident in incidents:
        yield from _incident(incident)
    which = incidents[0].incident_id if len(incidents) == 1 else "ID"
    yield Text(safe(f"  why and what to do: stallwatch incidents {which}"), style="dim")


def _incident(incident: IncidentDocument) -> list[RenderableType]:
    text = Text()
    word = severity_word(incident.severity) if incident.state == "open" else "suspect"
    text.append(word, style=SEVERITY_STYLES[incident.severity])
    text.append(safe(f"  {incident.incident_id}  "), style="bold")
    if not incident.verdicts:
        text.append(safe("; ".join(finding.reason for finding in incident.findings) or "no verdict yet"))
        return [text]
    text.append(safe(incident.verdicts[0].summary))
    text.append(safe("".join(f" {mark}." for mark in marks(incident))), style="green")
    reasons = [event.what for event in incident.events if event.what.startswith(UNTOLD)]
    more = [indented(reasons[-1], "dim")] if incident.severity == "none" and reasons else []
    return [text, *more]
