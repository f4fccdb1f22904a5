"""A rank's folder in the bundle: names its files by look, and keeps the list of what was asked and what answered."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.bundle.writer import write_atomically, write_json
from stallwatch.errors import StallwatchError
from stallwatch.formats.outside_text import text_of
from stallwatch.model.evidence import Attempt, ProcessLook

_ATTEMPTS = msgspec.json.Decoder(list[Attempt])

_PROCESS_LOOK = msgspec.json.Decoder(ProcessLook)


class NotCaptured(StallwatchError):
    """This evidence could not be had; the message says why and goes into attempts.json."""


def name_of_look(name: str, look: int) -> str:
    """`stacks.json` of the second look is `stacks-2.json`: the number stands before the extension."""
    stem, dot, extension = name.rpartition(".")
    return name if look == 1 else f"{stem}-{look}{dot}{extension}"


class Folder:
    """Of a rank or of the node; written by several threads of a capture. The looks of an incident follow each other."""

    def __init__(self, path: Path, look: int) -> None:
        self.path = path
        self.look = look
        self._lock = threading.Lock()
        self._attempts = _read_attempts(self.path / "attempts.json")

    def write(self, name: str, data: bytes, *, of_look: bool = True) -> None:
        write_atomically(self.path / (name_of_look(name, self.look) if of_look else name), data)

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name_of_look(name, self.look), value)

    def last_process(self) -> ProcessLook | None:
        """What the look before this one saw of the process; None at the first."""
        for look in range(self.look - 1, 0, -1):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                data = (self.path / name_of_look("process.json", look)).read_bytes()
                return _PROCESS_LOOK.decode(data)
        return None

    def note(self, what: str, asked_at_ns: int | None, answered: bool, detail: str = "") -> None:
        """Add an attempt; the list on disk is complete at every moment."""
        with self._lock:
            self._attempts.append(Attempt(what, self.look, asked_at_ns, answered, text_of(detail)))
            write_json(self.path / "attempts.json", self._attempts)

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
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.note(what, asked_at_ns, False, f"{type(error).__name__}: {error}")
        else:
            self.note(what, asked_at_ns, True)


class RankFolder(Folder):
    def __init__(self, bundle: Path, rank: int, look: int) -> None:
        super().__init__(bundle / "ranks" / str(rank), look)


def _read_attempts(path: Path) -> list[Attempt]:
    try:
        return _ATTEMPTS.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return []
