"""`stallwatch daemon`: watch this node until told to stop."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from stallwatch import config as configuration
from stallwatch.clock import Clock, SystemClock
from stallwatch.config import Config
from stallwatch.daemon import Daemon
from stallwatch.errors import EXIT_CRASH, UsageError
from stallwatch.incidents.far_store import FarStore
from stallwatch.loop.judging import JudgeRun, command_for
from stallwatch.loop.notify import take_from
from stallwatch.loop.privileged import make_rank_directory, side_of
from stallwatch.loop.protocols import SharedIncidents
from stallwatch.loop.sampling import Sampler
from stallwatch.loop.starter import ChildStarter
from stallwatch.model.incident import Incident, StandsAt, Told
from stallwatch.node.disk import DiskChildEnded, DiskHangs, read_regular
from stallwatch.node.free_lists import keep_what_is_there
from stallwatch.node.privileged_client import Privileged
from stallwatch.outputs.build import build, notify_test, secret_files, telling
from stallwatch.outputs.output import Control, Output, stands_by, told_by
from stallwatch.outputs.sockets import SOCKET_NAME, make_way
from stallwatch.sensors.panel import SensorSet

log = logging.getLogger("stallwatch.daemon")


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False, path_type=Path),
    help="TOML file; see `stallwatch config example`.",
)
@click.option("--verbose", is_flag=True, help="Log every step of every incident.")
def command(path: Path | None, verbose: bool) -> int:
    """Run the node daemon: watch the training jobs of this node and tell who hung them."""
    log_to_stderr(logging.DEBUG if verbose else logging.INFO)

    config = read_config(path, again=False)
    service = take_from(configuration.current_environment())  # before the first child
    side = side_of(config, path)  # this process talks to the network; those that read other users' processes do not
    clock = SystemClock()
    make_way(Path(config.daemon.run_directory) / SOCKET_NAME)  # before we touch what a daemon that runs has on disk
    store = FarStore(Path(config.daemon.state_directory))
    spare = FarStore(Path(config.daemon.run_directory))
    open_store(store, config)
    if side.is_ours:
        make_rank_directory(config.daemon.rank_directory)
    fleet = shared_with(
        config,
        clock,
        lambda incident_id: told_by(daemon.outputs, incident_id),
        lambda incidents: stands_by(daemon.outputs, incidents),
    )
    panel = SensorSet(config, clock, side)
    judging = partial(JudgeRun, command=command_for(config.fleet))
    starter = ChildStarter(config, clock, side, judging)
    sampler = Sampler(config.drift, clock, starter.sample)
    daemon = Daemon(
        config,
        clock,
        panel,
        starter,
        store,
        service,
        reload=partial(read_config, path, again=True),
        renewal=_Renewal(clock, side),
        sampler=sampler,
        spare=spare,
        cannot_go_on=side.has_ended,
        fleet=fleet,
    )
    daemon.handle_signals()
    try:
        outputs = build(config, daemon.control, clock)
    except BaseException:
        panel.close()
        raise
    daemon.control.test_outputs = lambda: notify_test(daemon.outputs_in_force())
    log.info("watching state_directory=%s listen=%s", config.daemon.state_directory, config.http.listen or "off")
    if sys.stderr.isatty():
        log.info("`stallwatch status` shows this node's ranks, `stallwatch status --url` the address of the page")
    keep_what_is_there()
    daemon.run(outputs)
    store.close()
    spare.close()
    if side.has_ended():
        log.error("the process that holds the capabilities has ended, and without it nothing can be seen: start again")
        return EXIT_CRASH
    side.close()
    log.info("stopped")
    return 0


def read_config(path: Path | None, *, again: bool) -> Config:
    """Return the configuration; what is wrong and harmless is logged. `again`: it is the loop that reads, which must
    not wait for a file."""
    reader = read_regular if again else Path.read_bytes
    config, warnings = configuration.load(path, configuration.current_environment(), read=reader)
    if again:
        read_secrets(config)
    for warning in warnings:
        log.warning("%s", warning)
    return config


def open_store(store: FarStore, config: Config) -> None:
    """Make the store's folders, and bring home what a daemon without a store has kept elsewhere. Raise UsageError where
    it cannot be had; a disk that does not answer is waited for later."""
    try:
        store.prepare()
        take_home(store, Path(config.daemon.run_directory))
    except (DiskHangs, DiskChildEnded) as error:
        log.warning("watching without a store: %s", error.strerror)  # until it answers
    except OSError as error:
        raise no_store(error, config.daemon.state_directory) from error


def shared_with(
    config: Config,
    clock: Clock,
    told: Callable[[str], Told],
    stands: Callable[[Sequence[Incident]], tuple[StandsAt, ...] | None],
) -> SharedIncidents | None:
    """How incidents are shared with other nodes; nothing of it is imported where they are not. Raise UsageError."""
    if not config.fleet.url:
        return None
    from stallwatch.loop.shared_incidents import fleet_of

    return fleet_of(config, clock, told, stands)


def log_to_stderr(level: int) -> None:
    """For machines a line of keys; for the person at a terminal the sentence."""
    handler = logging.StreamHandler(sys.stderr)
    at_terminal = sys.stderr.isatty()
    handler.setFormatter(ForPeople() if at_terminal else logging.Formatter(_FOR_MACHINES))
    logging.basicConfig(handlers=[handler], level=level)


_FOR_MACHINES = "%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


class ForPeople(logging.Formatter):
    """ "17:31:20 WARNING train-eeea2139-1: Rank 1 …": time, what is worse than news, of the keys who it is about."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """A record as a sentence for a terminal, without its keys."""
        keys, bar, sentence = record.getMessage().partition(" | ")
        if bar:
            who = keys.partition(" ")[0].partition("=")[2]
            keys = f"{who}: {sentence}"
        level = f"{record.levelname} " if record.levelno > logging.INFO else ""
        text = f"{self.formatTime(record, self.datefmt)} {level}{keys}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def no_store(error: OSError, state_directory: str) -> UsageError:
    """The error of a state directory that cannot be written, with what to do."""
    if error.filename == sys.executable:
        return UsageError(
            f"{sys.executable}: {error.strerror}: this user cannot start it again for the daemon's children",
            "Install stallwatch with a Python that every user may run: none below /root, such as pyenv's.",
        )
    return UsageError(
        f"state directory {error.filename or state_directory}: {error.strerror}",
        "Set daemon.state_directory (STALLWATCH_DAEMON_STATE_DIRECTORY) to a folder that this user may write.",
    )


def read_secrets(config: Config) -> None:
    """Who tells people reads these again, in the loop: see first that they can be read. Raise UsageError."""
    for file in secret_files(config):
        try:
            read_regular(Path(file))
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}", "The daemon's user must be able to read it.") from error


def take_home(store: FarStore, run_directory: Path) -> None:
    """Evidence of a daemon before this one that could not be kept where it belongs."""
    try:
        for incident_id in store.take_in_all(run_directory):
            log.info("incident=%s evidence moved from %s to the state directory", incident_id, run_directory)
    except OSError as error:
        log.warning("evidence stays in %s/incidents: %s", run_directory, error.strerror)


class _Renewal:
    def __init__(self, clock: Clock, side: Privileged) -> None:
        self._clock = clock
        self._side = side

    def privileged(self) -> None:
        self._side.renew()

    def panel(self, config: Config) -> SensorSet:
        if self._side.is_ours:
            make_rank_directory(config.daemon.rank_directory)
        return SensorSet(config, self._clock, self._side)

    def telling(self, config: Config, control: Control) -> tuple[Output, ...]:
        return telling(config, control, self._clock)
