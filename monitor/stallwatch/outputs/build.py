"""The outputs of a daemon, a row each: add yours to `OUTPUTS`. Whoever must know them all goes by these rows."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from stallwatch.clock import Clock
from stallwatch.config import Config, marked, slack_speaks
from stallwatch.outputs.alertmanager import alertmanager
from stallwatch.outputs.archive import archive
from stallwatch.outputs.deadman import deadman
from stallwatch.outputs.log import LogOutput
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.output import Control, Notifies, Output
from stallwatch.outputs.slack import slack, slack_reactions
from stallwatch.outputs.webhook import webhook


class Given(NamedTuple):
    """What an output may be made of."""

    config: Config
    control: Control
    clock: Clock
    made: tuple[Output, ...]  # of the rows before its own


class OutputRow(NamedTuple):
    """An output that a configuration can ask for."""

    name: str
    kind: Literal["shows", "tells", "sends"]
    """shows: one that stays as long as the daemon. The others send something to somebody, and are made again when the
    configuration is read again; tells: incidents, from the `minimum_severity` of its section on."""
    make: Callable[[Given], Output | None]
    """Starts nothing yet; None where the configuration does not ask for it. Raise UsageError where it cannot work."""
    settings: str = ""  # how the keys that concern it begin
    asked_by: tuple[str, ...] = ()  # of one that tells: the keys of its section that ask for it, each or its _file twin
    speaks: Callable[[Config], bool] = lambda _: True  # whether another that is asked for does not tell in its place

    @property
    def section(self) -> str:
        """The section of its settings."""
        return self.settings.partition(".")[0]

    def is_asked_for(self, config: Config) -> bool:
        """Whether the configuration wants one that tells. Nothing secret is read."""
        section = getattr(config, self.section)
        wanted = any(getattr(section, key) or getattr(section, f"{key}_file", "") for key in self.asked_by)
        return wanted and self.speaks(config)


OUTPUTS = (
    OutputRow("log", "shows", lambda g: LogOutput()),
    OutputRow(
        "slack", "tells", lambda g: slack(g.config, g.clock), "slack.", ("webhook_url", "bot_token"), slack_speaks
    ),
    OutputRow("slack_reactions", "sends", lambda g: _reactions(g), "slack."),
    OutputRow("webhook", "tells", lambda g: webhook(g.config, g.clock), "webhook.", ("url",)),
    OutputRow("alertmanager", "tells", lambda g: alertmanager(g.config, g.clock), "alertmanager.", ("urls",)),
    OutputRow("deadman", "sends", lambda g: deadman(g.config, g.clock), "deadman."),
    OutputRow("archive", "sends", lambda g: archive(g.config), "incidents.archive"),
    OutputRow("http", "shows", lambda g: _http(g), "http."),  # the last, for it shows how the others do
)

TELLING = tuple(row for row in OUTPUTS if row.kind == "tells")
_SENDING = tuple(row for row in OUTPUTS if row.kind != "shows")


def _reactions(given: Given) -> Output | None:
    messages = next((one for one in given.made if isinstance(one, Notifier) and one.name == "slack"), None)
    return slack_reactions(given.config, given.clock, given.control, messages)


def _http(given: Given) -> Output:
    from stallwatch.outputs.http import HttpOutput  # who only asks these rows must not pay for the web server

    return HttpOutput(given.config, given.control, given.clock, given.made)


@runtime_checkable
class _ShowsOthers(Protocol):
    peers: tuple[Output, ...]


def build(config: Config, control: Control, clock: Clock) -> tuple[Output, ...]:
    """Every output that the configuration asks for. Raise UsageError for one that cannot work."""
    return _made(OUTPUTS, config, control, clock)


def telling(config: Config, control: Control, clock: Clock) -> tuple[Output, ...]:
    """Those that send something to somebody: what is made again when the configuration is read again."""
    return _made(_SENDING, config, control, clock)


def _made(rows: Iterable[OutputRow], config: Config, control: Control, clock: Clock) -> tuple[Output, ...]:
    made: tuple[Output, ...] = ()
    for row in rows:
        output = row.make(Given(config, control, clock, made))
        made = (*made, output) if output is not None else made
    return made


def with_telling(outputs: tuple[Output, ...], sending: tuple[Output, ...]) -> tuple[Output, ...]:
    """Given the outputs of a daemon, return them with others that send: only what shows stays, so that one of which no
    row is known does not send twice."""
    staying = {row.name for row in OUTPUTS if row.kind == "shows"}
    servers = [output for output in outputs if isinstance(output, _ShowsOthers)]
    peers = (*(one for one in outputs if one.name in staying and one not in servers), *sending)
    for server in servers:
        server.peers = peers
    return (*peers, *servers)


def secret_files(config: Config) -> tuple[str, ...]:
    """The files that `telling` reads for this configuration, whose secrets may be others by now."""
    return tuple(
        file
        for section, key in marked("secret_file")
        if _concerns_sending(f"{section}.{key}") and (file := getattr(getattr(config, section), key))
    )


def renews_telling(config: Config, keys: Iterable[str]) -> bool:
    """Whether those that send are made again for the keys that changed: also where a secret lies in a file."""
    return bool(secret_files(config)) or any(map(_concerns_sending, keys))


def _concerns_sending(key: str) -> bool:
    return any(key.startswith(row.settings) for row in _SENDING)


def notify_test(outputs: tuple[Output, ...], seconds: float = 20.0) -> tuple[str, ...]:
    """Send a test alert through every notifying output; return a line per output with what happened."""
    notifying = [output for output in outputs if isinstance(output, Notifies)]
    if not notifying:
        *most, last = (_key_to_set(row) for row in TELLING)
        return (f"nothing is configured that could tell anybody: set {', '.join(most)} or {last}",)
    return tuple(f"{output.name}: {output.notify_test(seconds)}" for output in notifying)


def _key_to_set(row: OutputRow) -> str:
    """The first key that asks for it, better its file."""
    key = row.asked_by[0]
    is_secret_file = (row.section, f"{key}_file") in marked("secret_file")
    return f"{row.settings}{key}_file" if is_secret_file else f"{row.settings}{key}"
