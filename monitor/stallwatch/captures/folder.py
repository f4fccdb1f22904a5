"""A rank's folder in the bundle, as the capture fills it: files named by look, and what was asked and what answered."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from stallwatch.bundle.writer import as_json
from stallwatch.captures.channel import AttemptNote, Removal, Sending
from stallwatch.errors import StallwatchError
from stallwatch.formats.outside_text import text_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Attempt

# A ring of 2,000 entries with 40-frame stacks took 437 KB; rings are configurable.
DUMP_LIMIT_BYTES = 256 << 20


class NotCaptured(StallwatchError):
    """This evidence could not be had; the message says why and goes into attempts.json."""


def name_of_look(name: str, look: int) -> str:
    """`stacks.json` of the second look is `stacks-2.json`: the number stands before the extension."""
    stem, dot, extension = name.rpartition(".")
    return name if look == 1 else f"{stem}-{look}{dot}{extension}"


class Folder:
    """Of a rank or of the node, as a capture sees it: it sends what belongs there; where that lies is not its own to
    know. Written by several threads."""

    def __init__(self, sending: Sending, place: int, look: int) -> None:
        self.look = look
        self._sending = sending
        self._place = place

    def write(self, name: str, data: bytes, *, of_look: bool = True) -> None:
        """Write a file of this rank's look; `of_look`: its name carries the look's number."""
        self._sending.send_file(self._place, name_of_look(name, self.look) if of_look else name, data)

    def turn(self) -> contextlib.AbstractContextManager[object]:
        """While it is held nobody else of this look holds a large answer in memory."""
        return self._sending.turn

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON."""
        self.write(name, as_json(value))

    def remove(self, name: str) -> None:
        """Take back a file of this look."""
        self._sending.send(Removal(self._place, name_of_look(name, self.look)))

    def note(self, what: str, asked_at_ns: int | None, answered: bool, detail: str = "") -> None:
        """Add to the incident that something was asked, when (CLOCK_MONOTONIC), and whether and what it answered."""
        self._sending.send(AttemptNote(self._place, Attempt(what, self.look, asked_at_ns, answered, text_of(detail))))

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note how the body went; what it raises is noted and stays here, so that the rest goes on."""
        asked_at_ns = time.monotonic_ns()
        try:
            yield
        except NotCaptured as error:
            self.note(what, asked_at_ns, False, f"{error}. {error.help}" if error.help else str(error))
        except ProcessLookupError as error:
            self.note(what, asked_at_ns, False, f"the process has ended ({error})")
        except (OSError, ValueError, *NOT_JSON) as error:
            self.note(what, asked_at_ns, False, f"{type(error).__name__}: {error}")
        else:
            self.note(what, asked_at_ns, True)
