"""What a configuration that is read again changes while the daemon runs, and what waits for a restart."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from msgspec.structs import asdict, replace

from stallwatch.config import Config
from stallwatch.loop.protocols import SensorPanel
from stallwatch.outputs.output import Control, Output

# Bound to sockets, files of other programs, or the size of what is remembered.
_FIXED = (
    *(("daemon", key) for key in ("state_directory", "run_directory", "tick_seconds", "node")),
    *(("http", key) for key in ("listen", "token_file", "external_url", "socket_group")),
    ("incidents", "timeline_seconds"),
    *(("fleet", key) for key in ("url", "username", "password_file", "ca_file", "key_file", "detail")),
)


class ReloadRequests:
    """How often the configuration was asked to be read again, and was: signal handlers ask, the loop reads, and other
    threads may wait for that."""

    def __init__(self) -> None:
        self._asked = 0
        self._done = 0
        self._changed = threading.Condition()  # the loop's alone to notify: a signal handler may hold no lock

    def ask(self) -> None:
        """Safe in a signal handler, and from any thread."""
        self._asked += 1

    @property
    def pending(self) -> bool:
        """Whether it is to be read."""
        return self._done != self._asked

    @contextmanager
    def carried_out(self) -> Iterator[None]:
        """What was asked for until now is done when this ends; what is asked for meanwhile is not."""
        asked = self._asked
        yield
        with self._changed:
            self._done = asked
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until all that was asked for is done, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self.pending, seconds)


class Renewal(Protocol):
    """Makes what the loop cannot change in place."""

    def privileged(self) -> None:
        """Have the privileged side read its own configuration again."""
        ...

    def panel(self, config: Config) -> SensorPanel:
        """The sensors of a new configuration."""

    def telling(self, config: Config, control: Control) -> tuple[Output, ...]:
        """The outputs that tell people. Raise UsageError for one that cannot work."""
        ...


def held(old: Config, new: Config) -> tuple[Config, tuple[str, ...]]:
    """Return `new` as far as it can be taken over now, and the keys that changed and keep their old value."""
    kept = []
    for section, key in _FIXED:
        before = getattr(getattr(old, section), key)
        if getattr(getattr(new, section), key) != before:
            kept.append(f"{section}.{key}")
            new = replace(new, **{section: replace(getattr(new, section), **{key: before})})
    return new, tuple(kept)


def changed(old: Config, new: Config) -> tuple[str, ...]:
    """Return the keys that differ, as "stall.floor_seconds"."""
    return tuple(
        f"{section}.{key}"
        for section in asdict(new)
        for key, value in asdict(getattr(new, section)).items()
        if getattr(getattr(old, section), key) != value
    )


def renews_sensors(keys: Sequence[str]) -> bool:
    """Whether a change of these settings asks for new sensors."""
    return any(key.startswith("sensors.") or key == "daemon.rank_directory" for key in keys)
