"""What people answer to the bot's message: a reaction acknowledges the incident, or mutes its job for a while.

Slack is asked, every now and then and only while an incident is open: a daemon on a training node has no address that
Slack could call. It needs the bot's scope `reactions:read`; without it this is said once, and nothing else is lost.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from stallwatch.clock import Clock
from stallwatch.errors import StallwatchError
from stallwatch.model.incident import NodeReport
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.delivery import ATTEMPT_SECONDS, Delivered, Later, Poster, Refused
from stallwatch.outputs.latest_only_worker import LatestOnlyWorker
from stallwatch.outputs.output import Control

logger = logging.getLogger("stallwatch.outputs")

ACKNOWLEDGE = frozenset({"eyes", "white_check_mark", "raised_hand", "hand"})
MUTE = frozenset({"no_bell", "mute"})
MUTE_SECONDS = 2 * 3600.0
HINT = "React with 👀 to acknowledge, with 🔕 to hear nothing of this job for 2 h."
_EVERY_NS = 10_000_000_000  # reactions.get allows 50 calls a minute: https://docs.slack.dev/apis/web-api/rate-limits
_AFTER_REFUSAL_SECONDS = 600.0  # somebody must give the bot a right first
_AFTER_FAILURE_SECONDS = 60.0
_MOST_AT_ONCE = 5
_REACTION = re.compile(r"([a-z0-9_+-]+):([UW][A-Z0-9]{1,20})\Z")


Threads = Callable[[], Mapping[str, str]]  # by incident, the "channel/ts" of its first message


class _Asked(NamedTuple):
    incident_id: str
    job: JobKey
    acknowledged: bool
    thread: str


class SlackReactions:
    """Looks at reactions to incidents' messages, and acknowledges or mutes as they ask."""

    name = "slack_reactions"

    def __init__(self, poster: Poster, clock: Clock, threads: Threads, control: Control) -> None:
        self._poster = poster
        self._clock = clock
        self._threads = threads
        self._control = control
        self._due_ns = 0
        self._refused = ""
        self._asked_ns: dict[str, int] = {}  # by incident
        self._muted: set[str] = set()  # by incident: a reaction that stays mutes once
        self._questions = LatestOnlyWorker(self.name, self._ask_all)

    def start(self) -> None:
        """Begin the thread that asks."""
        self._questions.start()

    def publish(self, report: NodeReport) -> None:
        """Ask for reactions under messages of open incidents, when it is time again."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return
        threads = self._threads()
        wanted = tuple(
            _Asked(one.incident_id, one.job, bool(one.acknowledged_by), threads[one.incident_id])
            for one in report.incidents
            if not one.is_over and one.incident_id in threads and not (one.acknowledged_by and one.muted)
        )
        self._muted &= {one.incident_id for one in report.incidents}
        known = {one.incident_id for one in wanted}
        self._asked_ns = {one: at_ns for one, at_ns in self._asked_ns.items() if one in known}
        if wanted:
            self._due_ns = now_ns + _EVERY_NS
            chosen = self._in_turn(wanted)
            self._asked_ns.update((one.incident_id, now_ns) for one in chosen)
            self._questions.hand(chosen)

    def _in_turn(self, wanted: Sequence[_Asked]) -> tuple[_Asked, ...]:
        """Of each user the one that was asked about longest ago, then the next: whose incidents are many keeps nobody's
        reactions from being heard."""
        of_owner: dict[str, list[_Asked]] = {}
        for one in sorted(wanted, key=lambda one: self._asked_ns.get(one.incident_id, 0)):
            of_owner.setdefault(one.job.owner, []).append(one)
        turns = chain.from_iterable(zip_longest(*of_owner.values()))
        return tuple(islice((one for one in turns if one is not None), _MOST_AT_ONCE))

    def problem(self) -> str | None:
        return None  # messages arrive all the same; what is missing is in the log

    def close(self, seconds: float) -> None:
        """Wait at most so many seconds for a question under way, then cancel it."""
        self._questions.close(seconds, self._poster.cancel)

    def _ask_all(self, wanted: tuple[_Asked, ...]) -> None:
        for asked in wanted:
            if self._questions.closing:
                return
            self._ask(asked)

    def _ask(self, asked: _Asked) -> None:
        outcome = self._poster.post(b"{}", ATTEMPT_SECONDS, asked.thread)
        if not isinstance(outcome, Delivered):
            self._due_ns = self._clock.monotonic_ns() + int(_wait_seconds(outcome) * 1e9)
            if outcome.reason != self._refused:
                logger.warning(
                    "%s: reactions are not read (the bot needs reactions:read): %s", self.name, outcome.reason
                )
            self._refused = outcome.reason
            return
        self._refused = ""
        for reaction in filter(None, map(_REACTION.match, outcome.detail.split())):
            try:
                self._obey(asked, reaction[1], reaction[2])
            except StallwatchError as error:  # it ended in the meantime
                logger.info("%s: incident %s: %s", self.name, asked.incident_id, error)

    def _obey(self, asked: _Asked, reaction: str, user: str) -> None:
        if reaction in ACKNOWLEDGE and not asked.acknowledged:
            self._control.acknowledge(asked.incident_id, f"slack:{user}")
        elif reaction in MUTE and asked.incident_id not in self._muted:
            self._muted.add(asked.incident_id)
            self._control.mute(asked.job.training_job, MUTE_SECONDS, asked.job.owner)


def _wait_seconds(outcome: Later | Refused) -> float:
    if isinstance(outcome, Refused) or "missing_scope" in outcome.reason:
        return _AFTER_REFUSAL_SECONDS
    return max(outcome.after_seconds or 0.0, _AFTER_FAILURE_SECONDS)
