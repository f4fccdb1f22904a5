"""Slack by incoming webhook: one message when an incident is told, when it escalates, and when it is over."""

import socket
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.outputs.courier import Courier
from stallwatch.outputs.delivery import ChildPoster
from stallwatch.outputs.poster import Request
from stallwatch.outputs.secret import secret_url
from stallwatch.outputs.slack_message import slack_message, slack_test_message


def slack(config: Config, clock: Clock) -> Courier | None:
    """The output, or None where no webhook is configured. Raise UsageError for one that cannot be used."""
    url = secret_url("slack.webhook_url", config.slack.webhook_url, config.slack.webhook_url_file)
    if url is None:
        return None
    external_url = config.http.external_url
    return Courier(
        "slack",
        lambda incident, step: slack_message(incident, step, external_url),
        ChildPoster(Request("slack", url, msgspec.Raw(b"{}"), 0)),
        clock,
        Path(config.daemon.state_directory),
        config.slack.minimum_severity,
        slack_test_message(socket.gethostname(), external_url),
        config.slack.attempt_seconds,
    )
