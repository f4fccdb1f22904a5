"""The secret that opens page and API on TCP: stacks of other users are private on a shared node."""

import hmac
import os
import re
import secrets
from pathlib import Path

from stallwatch.errors import UsageError

_SHORTEST = 16  # characters; ours have 43 (256 bits)
_USABLE = re.compile(r"[A-Za-z0-9._~+/=-]+\Z")  # RFC 6750 b64token: fits a header, a cookie and a URL


def read_or_make(configured: str, run_directory: Path) -> str:
    """Given http.token_file, return its token; without one, keep a token in run_directory that only we can read.

    Raise UsageError when it cannot be read, made, or is too weak to protect anything.
    """
    path = Path(configured) if configured else run_directory / "token"
    return read_token(path, "http.token_file", make=not configured)


def read_token(path: Path, key: str, *, make: bool = False) -> str:
    """Given where a token lies and the key that says so, return it; `make` one where there is none. Raise UsageError
    as `read_or_make`."""
    try:
        if make:
            _make_if_absent(path)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"token file {path}: {reason}", f"Set {key} to a file that the daemon's user can read."
        ) from error
    if len(token) < _SHORTEST or not _USABLE.match(token):
        raise UsageError(
            f"token file {path}: needs one line of at least {_SHORTEST} letters, digits or - . _ ~ + / =",
            f"For instance: openssl rand -hex 32 > {path}; chmod 600 {path}",
        )
    return token


def equal(given: str, token: str) -> bool:
    """Compare in a time that tells nothing about where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _make_if_absent(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
