"""What Slack shows for an incident, as Block Kit: a pure function of the incident.

Everything that a job can write (its name, paths, code) is escaped: `<!channel>` in a file name must not call anybody.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stallwatch.bundle.stack_tree import render
from stallwatch.diagnosis.report.step_context import says_what_differs
from stallwatch.incidents.delivery_steps import LAST_STEPS, Step
from stallwatch.incidents.life_cycle import JOB_ENDED
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Companion, Incident, NodeReport
from stallwatch.model.reading import Known
from stallwatch.model.verdict import CulpritProcess, StackNode, Verdict
from stallwatch.outputs import company
from stallwatch.outputs.headline import clock_of, ending, headline, lasted, link, safety_words, sentence, slow_parts

# https://docs.slack.dev/reference/block-kit/blocks: a longer text makes Slack refuse the whole message.
_HEADER_CHARACTERS = 150
_TEXT_CHARACTERS = 3000
_FALLBACK_CHARACTERS = 4000
_MOST_CULPRITS = 8
_MOST_LINES = 50
_STACK_LINES = 40
_STACK_CHARACTERS = 1500
_STEPS_AT_ONCE = 2  # the first are to see what it is; what mends it afterwards is folded
_QUIET_NOW = "It is told again only if its verdict changes or it ends."
_OVER = "The job moves again or has ended."
_ENDED = "⚫"  # neither well nor to be acted on

_MARKS = {"none": "⚪", "warning": "🟠", "critical": "🔴"}

# A word that begins or ends with one of Slack's marks, brackets and punctuation around it left out.
_MARKED = re.compile(r"(?<![\w*~])[*_~][\w*~./:]*[\w*~]|\b\w[\w./:]*[*_~]+(?!\w)")

Block = dict[str, Any]


def slack_message(
    incident: Incident, step: Step, external_url: str = "", report: NodeReport | None = None
) -> dict[str, Any]:
    """Given an incident and the step of its life to tell, return the payload of an incoming webhook.

    A report of the node adds what it knows of the culprit's GPU. Slack folds the merged stacks, which are long.
    """
    others = company.beside(incident, report) if report is not None and step not in LAST_STEPS else ()
    title = _clip(_headline(incident, step, others), _HEADER_CHARACTERS)
    blocks = [{"type": "header", "text": {"type": "plain_text", "text": title}}]
    blocks += _resolved(incident) if step in LAST_STEPS else _standing(incident, step, _gpus(report))
    if others:
        there = [f"• {escape(one.said)}" for one in others[:_MOST_LINES]]
        until = "no message of their own while this one stands, unless one becomes critical"
        blocks.append(_section(_lines([f"*Others that wait there* ({until})", *there])))
    blocks.append(_context(_footer(incident, external_url)))
    message: dict[str, Any] = {"text": _notification(incident, step, others), "blocks": blocks}
    if step not in (*LAST_STEPS, "escalated") and incident.report is not None:  # why has been said, and is what it was
        attached = _folded(incident.verdict, incident.report.stacks)
        message |= {"attachments": attached} if attached else {}
    return message


def _notification(incident: Incident, step: Step, others: Sequence[Companion]) -> str:
    """What a locked phone shows, and the first lines must be enough: job, rank, cause, code line; may it be killed; the
    sentence."""
    over = step in LAST_STEPS
    safe = safety_words(incident) if incident.verdict is not None and not over else ""
    lines = [safe, _ending(incident) if over else sentence(incident)]
    lines = lines[::-1] if slow_parts(incident) else lines  # of a job that moves nobody asks whether it may be ended
    lines = [_headline(incident, step, others), *lines]
    return escape(_clip("\n".join(filter(None, lines)), _FALLBACK_CHARACTERS))


def slack_answer(incident: Incident, step: Step) -> dict[str, Any]:
    """What a thread hears after its first message, which shows the whole; the channel sees a critical one too."""
    if step == "acknowledged":
        text = f"👀 {_person(incident.acknowledged_by)} is on it. {_QUIET_NOW}"
        return {"text": text, "blocks": [_section(text)]}
    text = f"*{escape(_headline(incident, step))}*\n{_prose(_now(incident, step))}"
    blocks = [_section(text)]
    if incident.report is not None and step not in LAST_STEPS:
        blocks.append(_context([escape(safety_words(incident))]))
    return {"text": _clip(text, _FALLBACK_CHARACTERS), "blocks": blocks, "reply_broadcast": step == "escalated"}


def slack_acknowledged(incident: Incident, external_url: str = "") -> dict[str, Any]:
    """The same where there is no thread to say it in: the channel must see which incident is meant."""
    answer = slack_answer(incident, "acknowledged")
    opens = f"<{link(incident.incident_id, external_url)}|Open the incident>" if external_url else ""
    title = escape(_headline(incident, "acknowledged"))
    footer = _context([title, opens or f"incident `{_plain(incident.incident_id)}`"])
    text = f"{title}\n{answer['text']}"
    return {"text": _clip(text, _FALLBACK_CHARACTERS), "blocks": [*answer["blocks"], footer]}


def slack_line(incident: Incident, step: Step, external_url: str = "") -> str:
    """A message as a line of a digest."""
    line = f"{escape(_headline(incident, step))}: {escape(_clip(_now(incident, step), 200))}"
    return f"<{link(incident.incident_id, external_url)}|→> {line}" if external_url else line


def slack_digest(lines: Sequence[str]) -> dict[str, Any]:
    """Many messages as one, newest last."""
    text = f"{len(lines)} messages from stallwatch at once"
    shown = lines[-_MOST_LINES:]
    blocks: list[Block] = [{"type": "header", "text": {"type": "plain_text", "text": text}}]
    blocks += [_section(_lines(shown[first : first + 5])) for first in range(0, len(shown), 5)]
    if len(lines) > len(shown):
        blocks.append(_context([f"and {len(lines) - len(shown)} before these: `stallwatch incidents` lists them all"]))
    return {"text": text, "blocks": blocks}


def slack_test_message(node: str, external_url: str = "") -> dict[str, Any]:
    """Return the message by which a person sees that this node's alerts arrive."""
    page = f" <{external_url}|Status page>" if external_url else ""
    text = f"Test from stallwatch on {escape(node)}: alerts of stalled training jobs will arrive here.{page}"
    return {"text": text, "blocks": [_section(text)]}


def slack_context(text: str) -> Block:
    """Return a block of small print with this text, escaped."""
    return _context([escape(text)])


def escape(text: str) -> str:
    """The three characters that Slack's mrkdwn reads as markup of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _prose(text: str) -> str:
    """A sentence of ours in mrkdwn: what stands between backticks is code, and so is a word that Slack would take for
    its own marks (`__next__`, `*args`), since it has no way to escape these."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one that nothing closes
        parts = [*parts[:-2], f"{parts[-2]}'{parts[-1]}"]
    return "".join(
        (f"`{escape(part)}`" if part else "") if odd else _MARKED.sub(r"`\g<0>`", escape(part))
        for odd, part in ((number % 2, part) for number, part in enumerate(parts))
    )


def _headline(incident: Incident, step: Step, others: Sequence[Companion] = ()) -> str:
    mark = {"resolved": "🟢", "ended": _ENDED}.get(step, _MARKS[incident.severity])
    return f"{mark} {company.together_words(incident, others)}{headline(incident, step)}"


def _now(incident: Incident, step: Step) -> str:
    if step == "acknowledged":
        return f"{incident.acknowledged_by} is on it"
    return ending(incident, _OVER) if step in LAST_STEPS else sentence(incident)


def _resolved(incident: Incident) -> Iterator[Block]:
    was = f"It was: {_prose(incident.verdict.summary)}" if incident.verdict is not None else ""
    how = "" if was and incident.resolution == JOB_ENDED else _prose(_ending(incident))  # its headline says that
    yield _section("\n".join(filter(None, (how, was, lasted(incident)))))


def _ending(incident: Incident) -> str:
    said = incident.resolution or _OVER
    return f"{said[0].upper()}{said[1:].removesuffix('.')}."


def _gpus(report: NodeReport | None) -> dict[str, Gpu]:
    known = report is not None and isinstance(report.snapshot.gpus, Known)
    return {gpu.uuid: gpu for gpu in report.snapshot.gpus.value} if known else {}  # type: ignore[union-attr]


def _folded(verdict: Verdict | None, tree: StackNode | None) -> list[dict[str, Any]]:
    """The stacks, what to do after that, and why: one attachment, of which Slack shows five lines and folds the rest.
    Stacks first: their lines are short, and the outlier stands in these."""
    parts = []
    if tree is not None:
        lines = [line.replace("```", "'''") for line in render(tree, maximum_lines=_STACK_LINES)]
        block = escape(_clip(_lines(lines), _STACK_CHARACTERS))
        parts.append(f"*Stacks of all ranks, the outlier first*\n```{block}```")
    if verdict is not None and len(verdict.next_steps) > _STEPS_AT_ONCE:
        parts.append("*And then*\n" + _lines(_steps(verdict)[_STEPS_AT_ONCE:]))
    if verdict is not None and verdict.because:
        facts = (f"• {_prose(fact.fact)} ({_prose(fact.source)})" for fact in verdict.because)
        parts.append("*Because*\n" + _lines(facts))
    return [{"text": _clip("\n".join(parts), _TEXT_CHARACTERS), "mrkdwn_in": ["text"]}] if parts else []


def _standing(incident: Incident, step: Step, gpus: Mapping[str, Gpu]) -> Iterator[Block]:
    """The sentence says who, where, and who waits: only what it does not say follows; of an escalation nothing else,
    for the rest stands a minute above."""
    verdict = incident.verdict
    yield _section(_slow(incident) or _prose(sentence(incident)) or "_No sentence yet._")
    if verdict is None:
        return
    yield _context(_facts(incident, verdict))  # what to do with the job is asked first, and a phone folds what is below
    if step == "escalated":
        return
    unsaid = [process for process in verdict.culprit_processes if not _is_said(process, verdict)]
    if places := [_culprit(process, verdict, gpus) for process in unsaid[:_MOST_CULPRITS]]:
        more = len(unsaid) - len(places)
        yield _section(_lines([*places, *([f"and {more} more ranks"] if more > 0 else [])]))
    elif named := list(filter(None, (_known_gpu(process, gpus) for process in verdict.culprit_processes))):
        yield _context(named[:_MOST_CULPRITS])
    if verdict.cause == "undecided" and verdict.missing:
        yield _section("*What would decide it*\n" + _lines(f"• {_prose(text)}" for text in verdict.missing))
    if verdict.next_steps:
        yield _section("*What to do*\n" + _lines(_steps(verdict)[:_STEPS_AT_ONCE]))


def _slow(incident: Incident) -> str:
    """Who, since when, how much and why, a line each; "" where nobody is slow."""
    parts = slow_parts(incident)
    if parts is None:
        return ""
    who, cost, why = map(_prose, parts)
    since = f"*Since:* {clock_of(incident.opened_wall_ns)}"
    return _lines([f"*Who:* {who}", since, f"*How much:* {cost}", f"*Why:* {why or 'no look has shown it yet'}"])


def _steps(verdict: Verdict) -> list[str]:
    return [f"{number}. {_prose(text)}" for number, text in enumerate(verdict.next_steps, 1)]


def _facts(incident: Incident, verdict: Verdict) -> Iterator[str]:
    yield escape(safety_words(incident))
    yield f"`{verdict.cause}`, {verdict.confidence}"
    if verdict.slowness is not None and verdict.slowness.step_seconds:
        cost = verdict.slowness
        each, whole = f"{cost.cost_seconds:.2g} s", f"{cost.step_seconds:.3g} s"
        if not (cost.says_little or (each in verdict.summary and whole in verdict.summary)):
            yield f"costs {'at most ' if cost.at_most else ''}{each} of each step of {whole}"
    if verdict.mismatch and not says_what_differs(verdict):
        sides = _code(verdict.mismatch.expected), _code(verdict.mismatch.found)
        # Without a culprit nothing tells which side is right.
        said = "expected {}, found {}" if verdict.culprits else "some ranks {}, others {}"
        yield f"{verdict.mismatch.kind}: {said.format(*sides)}"


def _is_said(process: CulpritProcess, verdict: Verdict) -> bool:
    """Whether the sentence has said where this culprit stands."""
    frame = process.frame
    if len(verdict.culprits) > 1 and frame is not None:
        return False
    return frame is None or f"{frame.file.rpartition('/')[2]}:{frame.line}" in verdict.summary


def _culprit(process: CulpritProcess, verdict: Verdict, gpus: Mapping[str, Gpu]) -> str:
    place = []
    # Else the sentence has said who.
    if len(verdict.culprits) > 1 or process.pid is None or f"pid {process.pid}" not in verdict.summary:
        place.append(f"*Rank {process.rank}*")
        place += [f"on `{_plain(process.host)}`"] if process.host else []
        place += [f"pid {process.pid}"] if process.pid is not None else []
    place += [_known_gpu(process, gpus)] if _known_gpu(process, gpus) else []
    frame = process.frame
    if frame is not None:
        place.append(f"{_code(f'{frame.file}:{frame.line}')} in {_code(frame.function)}")
        place += [_code(frame.source.strip()[:200])] if frame.source else []
    return " · ".join(place)


def _known_gpu(process: CulpritProcess, gpus: Mapping[str, Gpu]) -> str:
    """Which board it is, where the node's own list says so."""
    gpu = gpus.get(process.gpu_uuid) if process.gpu_uuid else None
    return _gpu(process.gpu_uuid or "", gpu) if gpu is not None else ""


def _gpu(uuid: str, gpu: Gpu) -> str:
    serial = f", serial `{_plain(gpu.serial)}`" if gpu.serial else ""
    return f"GPU {gpu.index} `{_plain(uuid)}`{serial}"


def _footer(incident: Incident, external_url: str) -> Iterator[str]:
    told = f"`stallwatch incidents {_plain(incident.incident_id)}` on `{_plain(incident.node)}`"
    if external_url:
        words = "Open" if incident.is_over or incident.acknowledged_by else "Open or acknowledge"
        yield f"<{link(incident.incident_id, external_url)}|{words} the incident>, or {told}"
    else:
        yield f"why: {told} (no link: `http.external_url` is not set)"
    if incident.acknowledged_by and not incident.is_over:
        yield f"👀 {_person(incident.acknowledged_by)} is on it"
    whose = f"of `{_plain(incident.job.owner)}`, " if incident.job.owner else ""
    if whose or incident.is_over or slow_parts(incident) is None:
        yield f"{whose}since {clock_of(incident.opened_wall_ns)}"
    if not incident.is_over:
        owner = f" --owner {shlex.quote(incident.job.owner)}" if incident.job.owner else ""
        yield f"silence: `stallwatch mute {_plain(shlex.quote(incident.job.training_job) + owner)} --for 2h`"


def _person(name: str) -> str:
    """A member of the workspace as Slack shows one; any other name as it is, for anybody could be called `@channel`."""
    found = re.fullmatch(r"slack:([UW][A-Z0-9]{1,20})", name)
    return f"<@{found[1]}>" if found else f"`{_plain(name)}`"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _plain(text: str) -> str:
    return escape(text.replace("`", "'").replace("\n", " "))


def _code(text: str) -> str:
    return f"`{_plain(text)}`"


def _section(text: str) -> Block:
    return {"type": "section", "text": _mrkdwn(text, _TEXT_CHARACTERS)}


def _context(texts: Iterable[str]) -> Block:
    return {"type": "context", "elements": [_mrkdwn(text, _TEXT_CHARACTERS) for text in texts][:10]}


def _mrkdwn(text: str, most: int) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": _clip(text, most), "verbatim": True}


def _clip(text: str, most: int) -> str:
    """Cut to `most` characters, not inside an escaped character, and close a code block that the cut left open."""
    if len(text) <= most:
        return text
    cut = re.sub(r"&[a-z]{0,3}\Z", "", text[: most - 4])
    return f"{cut}…" + ("```" if cut.count("```") % 2 else "")
