"""What a configuration that is read again changes while the daemon runs, and what waits for a restart."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import asdict, replace

from stallwatch.config import Config
from stallwatch.loop.protocols import SensorPanel
from stallwatch.outputs.output import Control, Output

# Bound to sockets, files of other programs, or the size of what is remembered.
_FIXED = (
    *(("daemon", key) for key in ("state_directory", "run_directory", "tick_seconds")),
    *(("http", key) for key in ("listen", "token_file", "external_url", "socket_group")),
    ("incidents", "timeline_seconds"),
    *(("fleet", key) for key in ("url", "username", "password_file", "ca_file", "key_file", "detail")),
)


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
