"""Writes down what a capture sends: `python -m stallwatch.captures.keeper` with the numbers of the capture's socket and
of a file that holds a KeepSpec as arguments. Tells a CaptureState, framed, whenever it changes. A process of the
daemon's own, for a disk may hang; without capabilities, for where things lie is the daemon's own to say."""

import contextlib
import gc
import os
import re
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from stallwatch.bundle.writer import write_json
from stallwatch.captures.allowance import Allowance, ByteLimits
from stallwatch.captures.channel import (
    NODE,
    Asks,
    AttemptNote,
    Before,
    BeforeByRank,
    FilePiece,
    LookProgress,
    Message,
    Removal,
    messages,
    tell,
)
from stallwatch.captures.folder import NotCaptured, name_of_look
from stallwatch.captures.nccl_ras import RasAnswer, RasAsk
from stallwatch.captures.process import OwnBytes
from stallwatch.captures.ras_capture import ask
from stallwatch.captures.spec import CaptureState, Compared, KeepSpec, Sampling
from stallwatch.encoding import json_of, pack
from stallwatch.errors import StallwatchError
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Attempt, ProcessLook
from stallwatch.node.atomic_file import write_atomically
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.framing import as_child
from stallwatch.node.no_network import give_up_network

_ATTEMPTS = msgspec.json.Decoder(list[Attempt])
_PROCESS_LOOK = msgspec.json.Decoder(ProcessLook)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE_LIMIT_BYTES = 300 << 20  # the largest dump is 256 MiB
# A verdict waits so long for NCCL's word, beyond all that a look waits for anyway.
_RAS_SECONDS = 3.0
_RAS_LAST_SECONDS = 6.0
_IN_MEMORY = ByteLimits(rank=32 << 20, incident=256 << 20, owner=256 << 20, whole=256 << 20)  # of what is only compared
_COMPARING_BYTES = 2 << 30
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder of its own in it, closed to others
_MEMORY_ROOM_BYTES = 64 << 20  # a container's whole /dev/shm by default: never the last of a job's


class Keeper:
    """Writes a bundle from what a capture sends, within its user's allowance."""

    def __init__(
        self, bundle: Path, node: str, ranks: Collection[int], look: int, allowance: Allowance | None = None
    ) -> None:
        """`ranks`: those that this look is of; nobody else has a folder made. `allowance` bounds what is written."""
        self._folders = {NODE: bundle / "nodes" / node, **{rank: bundle / "ranks" / str(rank) for rank in ranks}}
        self._look = look
        self._allowance = allowance or Allowance(bundle, "", ByteLimits.of(0))
        self._refused: dict[tuple[int, str], str] = {}
        self._attempts: dict[int, list[Attempt]] = {}
        self._parts: dict[tuple[int, str], bytearray] = {}
        self._lock = threading.Lock()
        self._asking: list[tuple[threading.Thread, float]] = []
        self.problems: dict[str, None] = {}
        self.missing: dict[str, None] = {}  # what was refused

    def told(self) -> BeforeByRank:
        """What the look before this one knew of each rank."""
        before = {}
        for rank, folder in self._folders.items():
            last = _last_process(folder, self._look)
            if rank != NODE and last is not None:
                own = OwnBytes(last.own_read_bytes, last.own_write_bytes)
                before[rank] = Before(last.pid, own, last.at_ns)
        return BeforeByRank(before)

    def take(self, message: Message) -> CaptureState | None:
        """Do what it says; return the state that it tells. What a disk takes from one file it does not take from
        others. Raise ValueError for what no capture sends."""
        match message:
            case FilePiece(place, name, data, is_last):
                self._take_piece(self._path(place, name), place, name, data, is_last)
            case Removal(place, name):
                with self._guarded():
                    self._path(place, name).unlink(missing_ok=True)
            case AttemptNote(place, attempt):
                self._note(place, attempt)
            case Asks(asked_at_ns, asks):
                thread = threading.Thread(target=self._ask, args=(asked_at_ns, asks), daemon=True)
                thread.start()
                self._asking.append((thread, time.monotonic()))
            case LookProgress(state):
                self.wait_for_answers(_RAS_LAST_SECONDS if state.done else _RAS_SECONDS)
                problem = "; ".join(filter(None, (state.problem, *self.problems)))
                return msgspec.structs.replace(state, problem=problem, missing=(*state.missing, *self.missing))
        return None

    def _take_piece(self, path: Path, place: int, name: str, data: bytes, is_last: bool) -> None:
        """A file that is too much is dropped at its first piece that is, and said."""
        rank = None if place == NODE else place
        whole = self._parts.setdefault((place, name), bytearray())
        whole += data
        if len(whole) > _FILE_LIMIT_BYTES:
            raise ValueError(f"{name} is longer than {_FILE_LIMIT_BYTES} bytes")
        why = self._refused.get((place, name)) or self._allowance.refusal(rank, len(whole))
        if why:
            self._refused[place, name] = why
            whole.clear()
        if not is_last:
            return
        del self._parts[place, name]
        if self._refused.pop((place, name), ""):
            whose = "the node" if rank is None else f"rank {rank}"
            self.missing[f"{whose}: {name} was not kept: {why}"] = None
            self._note(place, Attempt(name.partition(".")[0], self._look, None, False, f"not kept: {why}"))
            return
        with self._guarded():
            write_atomically(path, bytes(whole))
            self._allowance.add(rank, len(whole))

    def wait_for_answers(self, seconds: float) -> None:
        """Wait for answers that the daemon's side has asked for, each for so long from its own beginning."""
        for thread, began in self._asking:
            thread.join(max(0.0, began + seconds - time.monotonic()))

    def _path(self, place: int, name: str) -> Path:
        folder = self._folders.get(place)
        if folder is None or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} of {place} has no place in this look")
        return folder / name

    def _note(self, place: int, attempt: Attempt) -> None:
        path = self._path(place, "attempts.json")
        with self._lock, self._guarded():
            attempts = self._attempts.setdefault(place, _read_attempts(path))
            attempts.append(attempt)
            write_json(path, attempts)

    def _ask(self, asked_ns: int, asks: tuple[RasAsk, ...]) -> None:
        try:
            answers = ask(asks)
        except (NotCaptured, OSError) as error:
            self._note(NODE, Attempt("nccl_ras", self._look, asked_ns, False, str(error)))
            return
        for number, answer in enumerate(answers):
            self._keep(answer, first=number == 0, asked_ns=asked_ns)

    def _keep(self, answer: RasAnswer, *, first: bool, asked_ns: int) -> None:
        if not answer.report:
            said = f"port {answer.port}: {answer.problem}"
            self._note(NODE, Attempt("nccl_ras", self._look, asked_ns, False, said))
            return
        kind = "json" if answer.report.lstrip()[:1] in (b"{", b"[") else "txt"
        # One service is the rule; those of more ports (several jobs in one container) lie beside it.
        name = f"nccl_ras.{kind}" if first else f"nccl_ras.{answer.port}.{kind}"
        if why := self._allowance.refusal(None, len(answer.report)):
            self._note(NODE, Attempt("nccl_ras", self._look, asked_ns, False, f"{name} was not kept: {why}"))
            return
        with self._guarded():
            write_atomically(self._path(NODE, name_of_look(name, self._look)), answer.report)
        said = f"port {answer.port}: {len(answer.report)} bytes, {kind}"
        self._note(NODE, Attempt("nccl_ras", self._look, asked_ns, True, said))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problems[f"{error.filename or 'capture'}: {error.strerror}"] = None


def _last_process(folder: Path, look: int) -> ProcessLook | None:
    """What the last look before this one that knew its bytes saw of the process, else the last; None at the first."""
    last = None
    for number in range(look - 1, 0, -1):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            seen = _PROCESS_LOOK.decode((folder / name_of_look("process.json", number)).read_bytes())
            if seen.write_bytes is not None:
                return seen
            last = last or seen
    return last


def _read_attempts(path: Path) -> list[Attempt]:
    try:
        return _ATTEMPTS.decode(path.read_bytes())
    except (OSError, *NOT_JSON):
        return []


def compare(folder: Path, sampling: Sampling) -> Compared:
    """Given what a sample has left in a folder, return what its ranks called."""
    # Nobody else who writes things down needs what judges.
    from stallwatch.bundle.reader import load
    from stallwatch.diagnosis.calls.sample_verdict import judge_sample

    write_json(folder / "bundle.json", {"schema_version": 1, "world_size": sampling.world_size})
    wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
    try:
        evidence = load([folder], is_judged=False)
    except StallwatchError as error:
        return Compared(0, (), sampling.before, str(error))
    answered = sum(bool(rank.recorders) for rank in evidence.ranks)
    if not answered:
        return Compared(0, (), sampling.before, "no rank's recorder answered")
    verdicts, memory = judge_sample(evidence, sampling.before, wall_minus_monotonic_ns)
    return Compared(answered, verdicts, memory)


def keep(spec: KeepSpec, bundle: Path, limits: ByteLimits, channel: socket.socket) -> Iterator[CaptureState]:
    """Write down below `bundle` what comes; yield where the look stands whenever that changes."""
    keeper = Keeper(bundle, spec.node, spec.ranks, spec.look, Allowance(bundle, spec.owner, limits))
    if spec.look > 1:
        with contextlib.suppress(OSError):
            tell(channel, keeper.told())
    if spec.gpus:
        with contextlib.suppress(OSError):
            write_json(bundle / "nodes" / spec.node / "gpus.json", spec.gpus)
    for message in messages(channel):
        state = keeper.take(message)
        if state is not None and state.done and spec.sampling is not None:
            state = msgspec.structs.replace(state, compared=compare(bundle, spec.sampling))
        if state is not None:
            yield state


def scratch_folder(memory: str = _MEMORY_FOLDER) -> "tempfile.TemporaryDirectory[str]":
    """Return a folder for files that live as long as this child: in memory where there is room, since /tmp may be full,
    hang, or be closed to a service (ProtectSystem=strict). Raise OSError when there is no place at all."""
    return tempfile.TemporaryDirectory(prefix="stallwatch-", dir=memory if _has_room(memory) else None)


def _has_room(folder: str) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize > 2 * _MEMORY_ROOM_BYTES and os.access(folder, os.W_OK | os.X_OK)


def main() -> None:
    """Keep what the capture of the socket in the arguments sends, until it ends."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    with open(int(sys.argv[2]), "rb") as file:
        spec = msgspec.json.decode(file.read(), type=KeepSpec)
    with contextlib.ExitStack() as until_the_end:
        if spec.sampling is None:
            bundle, limits = Path(spec.bundle), ByteLimits.of(spec.keep_bytes)
        else:
            # What is read of rings holds no cycles, and the collector walked it again and again: a sixth of comparing.
            gc.disable()
            drop_unless_root()
            give_up_network()
            resource.setrlimit(resource.RLIMIT_AS, (_COMPARING_BYTES, _COMPARING_BYTES))
            bundle, limits = Path(until_the_end.enter_context(scratch_folder())), _IN_MEMORY
        for state in keep(spec, bundle, limits, channel):
            sys.stdout.buffer.write(pack(json_of(state)))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    as_child(main)
