"""The secret that opens page and API on TCP: stacks of other users are private on a shared node."""

import errno
import hmac
import logging
import os
import re
import secrets
import stat
from pathlib import Path

from stallwatch.errors import UsageError
from stallwatch.node.atomic_file import write_atomically

log = logging.getLogger("stallwatch.outputs")

_LONGEST = 1 << 12
_SHORTEST = 16  # characters; ours have 43 (256 bits)
_USABLE = re.compile(r"[A-Za-z0-9._~+/=-]+\Z")  # RFC 6750 b64token: fits a header, a cookie and a URL


def read_or_make(configured: str, run_directory: Path) -> str:
    """Given http.token_file, return its token; without one, keep a token in run_directory that only we can read.

    Raise UsageError when it cannot be read, made, or is too weak to protect anything.
    """
    if configured:
        return read_token(Path(configured), "http.token_file")
    path = run_directory / "token"
    try:
        _make_unless_usable(path)
    except OSError as error:
        raise _unusable(path, "http.token_file", error) from error
    return read_token(path, "http.token_file")


def read_token(path: Path, key: str) -> str:
    """Given where a token lies and the key that says so, return it. Raise UsageError as `read_or_make`."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, key, error) from error
    if not _is_token(token):
        raise UsageError(
            f"token file {path}: needs one line of at least {_SHORTEST} letters, digits or - . _ ~ + / =",
            f"For instance: openssl rand -hex 32 > {path}; chmod 600 {path}",
        )
    return token


def equal(given: str, token: str) -> bool:
    """Compare in a time that tells nothing about where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _unusable(path: Path, key: str, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(f"token file {path}: {reason}", f"Set {key} to a file that the daemon's user can read.")


def _is_token(text: str) -> bool:
    return len(text) >= _SHORTEST and _USABLE.match(text) is not None


def _own_text(path: Path) -> str:
    """What a regular file says, "" of anything else. Raise OSError where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return ""
        raise
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, _LONGEST).decode("ascii", "replace").strip() if regular else ""
    finally:
        os.close(descriptor)


def _make_unless_usable(path: Path) -> None:
    """What is no token in the place of our own is put aside: a full file system left it so, and nobody mends it."""
    if os.path.lexists(path):
        if _is_token(_own_text(path)):
            return
        log.warning("token file %s cannot be used; another one is made", path)
        os.replace(path, path.with_name(f"{path.name}.unusable"))
    write_atomically(path, secrets.token_urlsafe(32).encode() + b"\n", makes_folder=False)
