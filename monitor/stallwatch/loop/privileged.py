"""What the privileged side is told by its own configuration, and where the daemon finds it."""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.captures.spec import CaptureSettings
from stallwatch.config import Config, node_of
from stallwatch.errors import Denied, UsageError
from stallwatch.model.snapshot import SENSORS, RankSample
from stallwatch.node import gpu_release
from stallwatch.node.heartbeat_file import prepare, rank_directories
from stallwatch.node.known_ranks import known_file
from stallwatch.node.privileged_client import Privileged, find_side, part_with_capabilities, start_side
from stallwatch.sensors.sensor import Options

log = logging.getLogger("stallwatch.daemon")

_FIND_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LATE_SECONDS = 5.0  # the daemon's own deadline comes first, and says what is missing


def settings_of(config: Config, renew: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the parts of the privileged side are given (node.privileged_server). `renew`: the command that prints
    this again, from a configuration that has changed."""
    options = Options(
        directories=tuple(str(path) for path in rank_directories(config.daemon.rank_directory)),
        deadline_seconds=config.sensors.deadline_seconds,
        keep_ended_seconds=config.sensors.keep_ended_seconds,
        discover_seconds=config.sensors.discover_seconds,
        node=node_of(config),
        release_file=str(Path(config.daemon.run_directory) / gpu_release.FILE),
    )
    seconds = config.capture.seconds + _LATE_SECONDS
    captures = CaptureSettings(config.capture, seconds, config.drift.seconds)
    return {
        "sensor_names": [sensor.name for sensor in SENSORS],
        "sensors": msgspec.to_builtins(options),
        "captures": msgspec.to_builtins(captures),
        "renew": list(renew),
    }


def printing(path: Path | None) -> list[str]:
    """The command that prints the settings by a configuration file."""
    return [
        sys.executable,
        "-P",
        "-m",
        "stallwatch.cli",
        "privileged",
        "--print",
        *(("--config", str(path)) if path else ()),
    ]


def own_side(config: Config, ranks: Sequence[RankSample] = (), path: Path | None = None) -> Privileged:
    """Start a side for this process alone, with its rights, which knows `ranks` from the start. Raise OSError."""
    known = known_file(ranks)
    with open(known, "rb"):  # closed here, kept there
        return start_side(settings_of(config, printing(path)), known)


def side_of(config: Config, path: Path | None) -> Privileged:
    """Find the side that is a unit of its own, or start one; and part with every capability, for this process talks to
    the network. Call it before threads start. Raise UsageError or OSError."""
    if not config.daemon.privileged_socket:
        side = own_side(config, path=path)
        part_with_capabilities()
        return side
    part_with_capabilities()
    until = time.monotonic() + _FIND_SECONDS
    while True:
        try:
            return find_side(config.daemon.privileged_socket)
        except OSError as error:
            if time.monotonic() > until:
                raise UsageError(
                    f"the privileged side does not listen at {config.daemon.privileged_socket}: {error.strerror}",
                    'Start stallwatch-privileged.socket, or set daemon.privileged_socket to "" to start one here.',
                ) from error
        time.sleep(_POLL_SECONDS)


def make_rank_directory(configured: str) -> None:
    """Before anybody is told that we are ready: a job that starts then must find it. Without one the sensor goes on
    trying; that is said, and is no reason not to start."""
    refusals = []
    for directory in rank_directories(configured):
        try:
            prepare(directory)
            return
        except Denied as error:
            refusals.append(f"{error}. {error.help}")
    log.warning("no rank directory yet: %s", "; ".join(refusals))
