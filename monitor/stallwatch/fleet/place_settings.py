"""How the meeting place is reached, as the children are told it: names of files, no secret."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from stallwatch.config_sections import FleetSection
from stallwatch.errors import UsageError
from stallwatch.fleet.place import MeetingPlace, PlaceProblem
from stallwatch.fleet.seal import LEAST_KEY_BYTES, key_id

if TYPE_CHECKING:
    from stallwatch.fleet.directory_home import SharedRoot

_T = TypeVar("_T")
_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "file")


class Settings(msgspec.Struct, frozen=True):
    """Where nodes meet, and the files of its secrets."""

    url: str
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    key_file: str = ""


def settings_of(section: FleetSection) -> Settings | None:
    """Return how the meeting place is reached, None where there is none. Raise UsageError for what cannot be; reads no
    file."""
    if not section.url:
        return None
    try:
        parts = urlsplit(section.url)
        scheme, secret, path = parts.scheme, parts.password or parts.username, parts.path
    except ValueError:
        scheme, secret, path = "", None, ""
    if scheme not in _SCHEMES or (scheme == "file" and not path.startswith("/")):
        raise UsageError(
            f"fleet.url: no meeting place is reached by {scheme or 'nothing'!r}",
            "Write redis://host:6379, rediss://host:6380, redis+sentinel://h1:26379,h2:26379/mymaster or "
            "file:///shared/stallwatch.",
        )
    if scheme != "file" and not parts.netloc.rpartition("@")[2].partition(":")[0]:
        raise UsageError(f"fleet.url {section.url}: names no host", f"Two slashes before it: {scheme}://host:port.")
    if secret:
        raise UsageError(
            "fleet.url: holds a user or a password, and addresses are shown",
            "Set fleet.username, and fleet.password_file to a file that the daemon's user may read.",
        )
    if not section.key_file:
        raise UsageError(
            "fleet.key_file is empty: nobody could tell a node's word from anybody's",
            "Make one for all nodes: head -c 32 /dev/urandom | base64 > fleet-key; chmod 0400, the daemon's own.",
        )
    return Settings(section.url, section.username, section.password_file, section.ca_file, section.key_file)


def secret_of(settings: Settings) -> bytes:
    """Read the key with which nodes sign what they say. Raise PlaceProblem where the file cannot be read or is too
    short."""
    secret = _read(settings.key_file, "fleet.key_file", Path.read_bytes).strip()
    if len(secret) < LEAST_KEY_BYTES:
        raise PlaceProblem(
            f"fleet.key_file {settings.key_file}: {len(secret)} bytes are no secret", "head -c 32 /dev/urandom | base64"
        )
    return secret


def exposed(settings: Settings) -> str:
    """That others may read the key, a sentence with what to do; "" where they may not, or nothing is known."""
    try:
        mode = stat.S_IMODE(os.stat(settings.key_file).st_mode)
    except OSError:
        return ""
    if not mode & 0o007:
        return ""
    return (
        f"fleet.key_file {settings.key_file}: every user of this node may read it (mode {mode:04o}), and who can "
        "speaks for any node: chmod 0400 with the daemon's user as owner, or 0440 with its group"
    )


def open_place(settings: Settings, secret: bytes, homes: "dict[Path, SharedRoot] | None" = None) -> MeetingPlace:
    """Return the meeting place of those that sign with this key; `homes`: what was found at the paths of directories
    before. Raise PlaceProblem. What it is made of is imported here and nowhere else."""
    parts = urlsplit(settings.url)
    if parts.scheme == "file":
        from stallwatch.fleet.directory_place import DirectoryPlace

        return DirectoryPlace(Path(unquote(parts.path)), key=key_id(secret), homes=homes)
    try:
        from stallwatch.fleet.redis_place import connect
    except ImportError as error:
        raise PlaceProblem(f"{settings.url}: {error}", "pip install redis") from error
    return connect(settings.url, settings.username, password_of(settings) or None, settings.ca_file, key_id(secret))


def password_of(settings: Settings) -> str:
    """Read the place's password, "" where it has none. Raise PlaceProblem where the file cannot be read."""
    file = settings.password_file
    return _read(file, "fleet.password_file", Path.read_text).strip() if file else ""


def _read(file: str, key: str, read: Callable[[Path], _T]) -> _T:
    try:
        return read(Path(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise PlaceProblem(f"{key} {file}: {reason}", "The daemon's user must be able to read it.") from error
