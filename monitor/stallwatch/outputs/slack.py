"""Slack: by incoming webhook a message for each step of an incident, by bot token one thread for each incident."""

import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import Config, slack_speaks
from stallwatch.config_sections import SlackSection
from stallwatch.errors import UsageError
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.outputs.delivery import ChildPoster
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.output import Control
from stallwatch.outputs.poster import PostRequest
from stallwatch.outputs.rate_cap import RateCap
from stallwatch.outputs.secret import secret_text, secret_url
from stallwatch.outputs.slack_message import (
    slack_acknowledged,
    slack_answer,
    slack_context,
    slack_digest,
    slack_line,
    slack_message,
    slack_test_message,
)
from stallwatch.outputs.slack_reactions import HINT, SlackReactions
from stallwatch.outputs.spool import FarSpoolFile

_HOUR_SECONDS = 3600.0


def slack(config: Config, clock: Clock) -> Notifier | None:
    """The output, or None where nothing is configured. Raise UsageError for what cannot be used."""
    request = _request(config.slack)
    if request is None or not slack_speaks(config):
        return None
    return Notifier(
        "slack",
        SlackWords(config.http.external_url, *_channels(config.slack, bot=request.kind == "slack_bot")),
        ChildPoster(request),
        clock,
        FarSpoolFile(Path(config.daemon.state_directory) / "slack.json"),
        config.slack.minimum_severity,
        config.slack.attempt_seconds,
        cap=RateCap(config.slack.messages_per_hour, _HOUR_SECONDS),
    )


def slack_reactions(config: Config, clock: Clock, control: Control, notifier: Notifier | None) -> SlackReactions | None:
    """The output that reads what people answer to a bot's messages; None without a bot."""
    request = _request(config.slack)
    if notifier is None or request is None or request.kind != "slack_bot":
        return None
    asking = msgspec.structs.replace(request, kind="slack_reactions")
    return SlackReactions(ChildPoster(asking), clock, notifier.threads, control)


def _request(section: SlackSection) -> PostRequest | None:
    token = secret_text("slack.bot_token", section.bot_token, section.bot_token_file)
    url = secret_url("slack.webhook_url", section.webhook_url, section.webhook_url_file)
    if token and url:
        raise UsageError("slack: a webhook and a bot token are set, and each incident would be told twice", "Keep one.")
    if token:
        if not section.channel:
            raise UsageError("slack.channel is empty", "A bot must be told where to write: a channel's id or name.")
        api = secret_url("slack.api_url", section.api_url, "") or ""
        return PostRequest("slack_bot", api, msgspec.Raw(b"{}"), 0, bearer=token)
    return PostRequest("slack", url, msgspec.Raw(b"{}"), 0) if url else None


def _channels(section: SlackSection, *, bot: bool) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The bot's channel, and those of certain jobs. Raise UsageError for a rule that is none; a webhook has one
    channel, its own."""
    rules = []
    for rule in filter(None, map(str.strip, section.channels.split(","))):
        pattern, equals, channel = (part.strip() for part in rule.rpartition("="))
        if not (pattern and equals and channel):
            raise UsageError(f"slack.channels: {rule!r} is no rule", "For instance llama-*=#llama, owner:anna=#anna.")
        rules.append((pattern, channel))
    if rules and not bot:
        raise UsageError("slack.channels needs a bot", "A webhook writes to its own channel: set slack.bot_token_file.")
    return (section.channel, tuple(rules)) if bot else ("", ())


class SlackWords:
    """Given a channel, the messages are a bot's: what follows the first one is short, and brings it up to date."""

    def __init__(self, external_url: str, channel: str = "", rules: tuple[tuple[str, str], ...] = ()) -> None:
        """`rules`: (pattern of a job's name, or owner: and one of its owner's; channel)."""
        self._external_url = external_url
        self._channel = channel
        self._to = {"channel": channel} if channel else {}
        self._rules = rules

    def readers(self, incident: Incident) -> str:
        """The channel of its job or owner, by the rules; "" for a webhook's own."""
        for pattern, channel in self._rules:
            whose = pattern.removeprefix("owner:")
            name = incident.job.training_job if whose == pattern else incident.job.owner
            if fnmatchcase(name, whose):
                return channel
        return self._channel

    def _where(self, incident: Incident) -> Mapping[str, str]:
        channel = self.readers(incident)
        return {"channel": channel} if channel else {}

    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        """Given a step of an incident, return the blocks of its message; of a bot, with what reactions do."""
        if step == "acknowledged" and not self._to:
            return slack_acknowledged(incident, self._external_url)
        whole = slack_message(incident, step, self._external_url, report)
        if self._to and not incident.is_over and not incident.acknowledged_by:
            whole = {**whole, "blocks": [*whole["blocks"], slack_context(HINT)]}
        if not self._to or step == "told":
            return {**self._where(incident), **whole}
        return {**self._where(incident), **slack_answer(incident, step), "root": whole}

    def line(self, incident: Incident, step: Step) -> str:
        """One line of mrkdwn, for a digest."""
        return slack_line(incident, step, self._external_url)

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        """Several lines in one message, when there are too many to tell each."""
        return {**self._to, **slack_digest(lines)}

    def test(self) -> Mapping[str, object]:
        """What `stallwatch notify-test` sends."""
        return {**self._to, **slack_test_message(socket.gethostname(), self._external_url)}
