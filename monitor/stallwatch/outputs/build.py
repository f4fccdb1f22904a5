"""The outputs of a daemon, written out: add yours to `build`."""

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.outputs.alertmanager import alertmanager
from stallwatch.outputs.archive import archive
from stallwatch.outputs.deadman import deadman
from stallwatch.outputs.http import HttpOutput
from stallwatch.outputs.log import LogOutput
from stallwatch.outputs.output import Control, Notifies, Output
from stallwatch.outputs.slack import slack, slack_reactions
from stallwatch.outputs.webhook import webhook

_SENDING = ("slack", "slack_reactions", "webhook", "alertmanager", "deadman", "archive")


def build(config: Config, control: Control, clock: Clock) -> tuple[Output, ...]:
    """Every output that the configuration asks for. Raise UsageError for one that cannot work."""
    peers: tuple[Output, ...] = (LogOutput(), *telling(config, control, clock))
    return (*peers, HttpOutput(config, control, clock, peers))


def telling(config: Config, control: Control, clock: Clock) -> tuple[Output, ...]:
    """Those that send something to somebody: what is made again when the configuration is read again."""
    messages = slack(config, clock)
    reactions = slack_reactions(config, clock, control, messages)
    sending = (
        messages,
        reactions,
        webhook(config, clock),
        alertmanager(config, clock),
        deadman(config, clock),
        archive(config),
    )
    return tuple(output for output in sending if output is not None)


def with_telling(outputs: tuple[Output, ...], sending: tuple[Output, ...]) -> tuple[Output, ...]:
    """Given the outputs of a daemon, return them with others that send."""
    servers = [output for output in outputs if isinstance(output, HttpOutput)]
    staying = (output for output in outputs if output not in servers and output.name not in _SENDING)
    peers = (*staying, *sending)
    for server in servers:
        server.peers = peers
    return (*peers, *servers)


def notify_test(outputs: tuple[Output, ...], seconds: float = 20.0) -> tuple[str, ...]:
    """Send a test alert through every notifying output; return a line per output with what happened."""
    notifying = [output for output in outputs if isinstance(output, Notifies)]
    if not notifying:
        return (
            "nothing is configured that could tell anybody: set slack.webhook_url_file, webhook.url_file or "
            "alertmanager.urls",
        )
    return tuple(f"{output.name}: {output.notify_test(seconds)}" for output in notifying)
