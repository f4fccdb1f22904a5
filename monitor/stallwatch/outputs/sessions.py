"""Who has opened the page: a browser holds the name of a session, never the token, and every session ends."""

import hashlib
import secrets

from stallwatch.clock import Clock

SESSION_SECONDS = 12 * 3600  # a shift; the page's address opens the next one
_MOST = 256


class Sessions:
    """Of this daemon alone, in its memory: what was opened on another one, or before a restart, opens nothing here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_ns: dict[bytes, int] = {}  # by digest: looking one up compares nothing that is a secret

    def begin(self) -> str:
        """Return the secret name of a new session."""
        now_ns = self._clock.monotonic_ns()
        self._ends_ns = {digest: ends_ns for digest, ends_ns in self._ends_ns.items() if ends_ns > now_ns}
        while len(self._ends_ns) >= _MOST:
            del self._ends_ns[next(iter(self._ends_ns))]
        name = secrets.token_urlsafe(32)
        self._ends_ns[_digest(name)] = now_ns + SESSION_SECONDS * 1_000_000_000
        return name

    def is_open(self, name: str) -> bool:
        """Whether a session of that name has begun and has not ended."""
        return self._ends_ns.get(_digest(name), 0) > self._clock.monotonic_ns()

    def end(self, name: str) -> None:
        """Forget the session of that name; one that is not known is none."""
        self._ends_ns.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
