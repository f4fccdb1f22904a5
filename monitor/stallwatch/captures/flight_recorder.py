"""Asks a rank's hook for its flight recorder: a request in the daemon's own folder, torch's own bytes as the answer."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stallwatch.captures.folder import DUMP_LIMIT_BYTES, Folder, NotCaptured
from stallwatch.errors import StallwatchError
from stallwatch.hook import layout
from stallwatch.model.evidence import ANSWERED_WITHOUT_DUMP, REFUSED
from stallwatch.model.process import ENDED, STOPPED
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import Heartbeat, RankSample
from stallwatch.node import rank_files, untrusted
from stallwatch.node.heartbeat_file import LayoutError, read_heartbeat, request_body
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.progress.ticks import pulse_stands

_POLL_SECONDS = 0.05
_REQUEST_LIMIT_BYTES = 4096
_LEAST_WAIT_SECONDS = 1.0
# Dumping a full ring takes 30 ms of a core, with the GIL held where torch has no other way (hook/recorder.py), and who
# stands still holds up all: eight gloo ranks on two cores that dump at one moment stood for 120–280 ms, in turns 30–45.
_TURN_NS = 60_000_000
# Hooks look for requests four times a second, all at one moment: a turn begins when every hook has seen its own.
_NOTICE_NS = 300_000_000
_SOON_NOTICE_NS = 100_000_000  # whoever has answered a moment ago looks all the time (hook/pulse.py, ASKED_AGAIN_NS)
_SOON_LOOK = 2  # comes two seconds after the first
_MOST_TURNS_NS = 2_000_000_000

EXTRA = "stacks"
ACTIVE = "active"
PYTHON_STACKS = "python_stacks"  # hook/stacks.py: not the recorder's, but asked and answered as it is
_STACKS_LIMIT_BYTES = 16 << 20
SCENE = "scene"  # hook/scene.py: comes with every answer of a hook that knows it
_SCENE_LIMIT_BYTES = 1 << 20


def turns(ranks: int, cores: int, look: int = 1) -> tuple[int, ...]:
    """Given how many ranks are asked at once, how many cores they share and at which look, return by how many
    nanoseconds each puts its dump off: half of the cores dump at a time, for the ranks that wait meanwhile poll on the
    others."""
    at_once = max(1, cores // 2)
    if ranks <= at_once:
        return (0,) * ranks
    each_ns = min(_TURN_NS, _MOST_TURNS_NS * at_once // ranks)
    notice_ns = _SOON_NOTICE_NS if look == _SOON_LOOK else _NOTICE_NS
    return tuple(notice_ns + rank // at_once * each_ns for rank in range(ranks))


def rungs_of(heartbeat: Heartbeat | None, rungs: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what says nothing of its own: gloo's recorder never calls an entry over, so all of them are active
    (torch 2.13: 229 KB of 229 KB), and a rank would be held twice for one answer."""
    gloo = heartbeat is not None and bool(heartbeat.groups) and all(g.recorder == "gloo" for g in heartbeat.groups)
    return tuple(rung for rung in rungs if rung != ACTIVE) if gloo and len(rungs) > 1 else rungs


# Takes an answer out of the open rank directory, given its key and the request's number; returns what it was.
_Take = Callable[[int, tuple[int, str], int], str]


class RecorderRequest:
    """Asks one rank, rung by rung; every answer replaces the poorer one before it."""

    def __init__(self, sample: RankSample, folder: Folder, seconds: float, at_ns: int = 0, turn_ns: int = 0) -> None:
        """Ask `sample` within `seconds`; the hook dumps at `at_ns` (CLOCK_MONOTONIC), else `turn_ns` after it is
        asked."""
        self._sample = sample
        self._at_ns = at_ns
        self._turn_ns = turn_ns
        self._folder = folder
        self._seconds = seconds
        self._kinds: dict[str, str] = {}  # by recorder: how it answered last
        self.missing = ""  # why there is no dump, once that is known

    def ask(self, rungs: tuple[str, ...]) -> None:
        """Ask for each rung in turn, within the deadline for all; stop at the first that is not answered."""
        deadline = time.monotonic() + self._seconds
        rungs = rungs_of(self._sample.heartbeat.value if isinstance(self._sample.heartbeat, Known) else None, rungs)
        for rung in rungs:
            asked_ns = time.monotonic_ns()
            try:
                detail = self._rung(rung, deadline)
            except (NotCaptured, untrusted.FileRefused) as error:
                reason = str(error)
            except OSError as error:
                reason = f"{error.filename or 'request'}: {error.strerror}"
            else:
                self._folder.note("flight_recorder", asked_ns, True, f"{rung}: {detail}")
                continue
            self._folder.note("flight_recorder", asked_ns, False, f"{rung}: {reason}")
            if rung != EXTRA and rung == rungs[0]:
                self.missing = reason
            return

    def ask_python_stacks(self) -> bytes:
        """Return the rank's stacks as its own hook sees them. Raise NotCaptured, Refused or OSError."""
        answers: list[bytes] = []

        def keep(directory: int, key: tuple[int, str], request_id: int) -> str:
            ends = layout.answer_ends(*key, request_id, "python")
            answers.append(self._read_answer(directory, ends, _STACKS_LIMIT_BYTES))
            return ""

        try:
            self._rung(PYTHON_STACKS, time.monotonic() + self._seconds, keep)
        except FileNotFoundError as error:
            raise NotCaptured("its hook is of a version that does not know its own stacks") from error
        return answers[0]

    def _rung(self, rung: str, deadline: float, take: _Take | None = None) -> str:
        if not isinstance(self._sample.heartbeat, Known):
            raise NotCaptured(f"not asked: {self._sample.heartbeat.reason}")
        path = Path(self._sample.heartbeat.value.path)
        key = layout.parse_record_name(path.name)
        if key is None:
            raise NotCaptured(f"not asked: {path.name} is no record's name")
        at_ns = self._at_ns or (time.monotonic_ns() + self._turn_ns if self._turn_ns else 0)
        request_id = self._post(path.parent, key, self._sample.heartbeat.value.answered_request, rung, at_ns)
        asked = time.monotonic()
        # Nobody answers before that: a sample of eight ranks asked all the time took 0.8 s of processor, now 0.4.
        time.sleep(max(0.0, min(at_ns / 1e9, deadline) - asked))
        while True:
            answered = self._answered(path)
            if answered is not None and answered.answered_request >= request_id:
                if answered.answered_request == request_id and answered.refused_errno:
                    why = os.strerror(answered.refused_errno)
                    raise NotCaptured(f"{REFUSED}: {why}; {path.parent} is full, or closed to its process")
                directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    return (take or self._copy)(directory, key, request_id)
                finally:
                    os.close(directory)
            self._check_hope(answered, asked, deadline)
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _answered(path: Path) -> Heartbeat | None:
        try:
            return read_heartbeat(path)
        except (OSError, StallwatchError, LayoutError):
            return None  # met in mid-write, or gone; the deadline ends the waiting

    def _check_hope(self, heartbeat: Heartbeat | None, asked: float, deadline: float) -> None:
        """Raise NotCaptured when no answer can come any more, or not in time."""
        waited = time.monotonic() - asked
        try:
            with ProcessDirectory(self._sample.pid) as directory:
                stat = directory.stat()
        except ProcessLookupError:
            stat = None
        if stat is None or stat.state in ENDED or stat.start_ticks != self._sample.start_ticks:
            raise NotCaptured("asked, not answered: the process has ended")
        if stat.state in STOPPED and waited > _LEAST_WAIT_SECONDS:
            raise NotCaptured("asked, not answered: the process is stopped")
        if heartbeat is not None and waited > _LEAST_WAIT_SECONDS:
            now_ns = time.monotonic_ns()
            if pulse_stands(heartbeat.pulse_ns, now_ns, heartbeat.dump_started_ns):
                # The hook's thread cannot run, and will not answer either.
                still_seconds = (now_ns - heartbeat.pulse_ns) / 1e9
                raise NotCaptured(f"asked, not answered: its hook's thread has stood still for {still_seconds:.0f} s")
        if time.monotonic() > deadline:
            raise NotCaptured(f"asked, not answered within {self._seconds:.0f} s")

    def _post(self, directory: Path, key: tuple[int, str], answered: int, rung: str, at_ns: int) -> int:
        """Write the request and return its number: above every one that was used before."""
        folder = rank_files.open_requests(directory)
        try:
            name = layout.request_name(*key)
            last = answered
            with contextlib.suppress(
                OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError, untrusted.FileRefused
            ):
                before, _ = untrusted.read_regular(folder, name, _REQUEST_LIMIT_BYTES)
                last = max(last, int(msgspec.json.decode(before)["id"]))
            request_id = max(0, last) + 1
            part = f".{name}.{layout.new_mark()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(part, flags, 0o644, dir_fd=folder)
            try:
                os.fchmod(descriptor, 0o644)  # the rank's user reads it, whatever our umask is
                os.write(descriptor, request_body(request_id, rung, at_ns))
            finally:
                os.close(descriptor)
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        return request_id

    def _copy(self, directory: int, key: tuple[int, str], request_id: int) -> str:
        """Copy what the hook wrote; a build without recorder answers with nothing, which is an answer."""
        names = rank_files.names_in(directory)
        with contextlib.suppress(FileNotFoundError):
            ends = layout.answer_ends(*key, request_id, SCENE)
            self._folder.write("scene.json", self._read_answer(directory, ends, _SCENE_LIMIT_BYTES, names))
        copied = []
        for recorder in layout.RECORDERS:
            ends = layout.answer_ends(*key, request_id, recorder)
            with self._folder.turn():
                try:
                    data = self._read_answer(directory, ends, DUMP_LIMIT_BYTES, names)
                except FileNotFoundError:
                    continue
                kind = "json" if data[:1] == b"{" else "pickle"  # as torch wrote it
                if self._kinds.setdefault(recorder, kind) != kind:  # stacks are in no JSON
                    self._folder.remove(f"flight_recorder.{recorder}.{self._kinds[recorder]}")
                    self._kinds[recorder] = kind
                self._folder.write(f"flight_recorder.{recorder}.{kind}", data)
            copied.append(f"{recorder} {len(data)} bytes")
        return ", ".join(copied) or f"{ANSWERED_WITHOUT_DUMP}: torch is not loaded or has no recorder"

    def _read_answer(
        self, directory: int, ends: tuple[str, str], limit_bytes: int, names: Iterable[str] | None = None
    ) -> bytes:
        """Read an answer and remove it; `names`: those of the directory, where they are known. Raise FileNotFoundError
        when there is none of the rank's user."""
        owners = self._owners()
        name = rank_files.find(directory, ends, owners, names)
        try:
            descriptor = untrusted.open_regular(directory, name, limit_bytes)
            try:
                status = os.fstat(descriptor)
                if status.st_uid not in owners:
                    raise NotCaptured(f"{name} belongs to uid {status.st_uid}, not to the rank's user")
                untrusted.check_holes(descriptor, name)
                return untrusted.read_bounded(descriptor, limit_bytes)
            finally:
                os.close(descriptor)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)

    def _owners(self) -> tuple[int, ...]:
        with ProcessDirectory(self._sample.pid) as directory:
            return directory.status().uids
