"""Phases for callbacks: a framework tells when things begin, less reliably when they end."""

from typing import TYPE_CHECKING, Optional

from stallwatch.hook.beat import Beat

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class PhaseSwitch:
    """At most one phase is open; the next one, or none, takes its place. An end that never comes leaks nothing."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._name = ""
        self._open: Optional[AbstractContextManager[None]] = None

    def become(self, name: str) -> None:
        """Be in this phase from now on; "" is outside every phase."""
        if name == self._name:
            return
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._name = name
        self._open = self._beat.phase(name) if name else None
        if self._open is not None:
            self._open.__enter__()
