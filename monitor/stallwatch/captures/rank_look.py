"""Everything that a look of either kind asks of one rank; captures.child has all ranks of a look asked in parallel."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.captures import process, torch_dumps
from stallwatch.captures.channel import LookBefore, Sending
from stallwatch.captures.flight_recorder import RecorderRequest
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.held import Held
from stallwatch.captures.process_limits import look_around
from stallwatch.captures.profile import ProfileCapture, UsageCapture, children_to_profile
from stallwatch.captures.ranks_of_root import refusal
from stallwatch.captures.sources import lines_of_stacks
from stallwatch.captures.spec import KINDS, CaptureOrder
from stallwatch.captures.stacks import StackCapture
from stallwatch.model.evidence import ChildProcess, ProcessLook
from stallwatch.model.process import ENDED
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import RankSample
from stallwatch.node import untrusted
from stallwatch.node.heartbeat_file import LayoutError, read_heartbeat
from stallwatch.node.known_ranks import RankId
from stallwatch.node.procfs import Stat

# A process may have ended since its reader of ranks last said how things are: that reader hears of it by pidfd, and
# tells how and when once a tick (a second): a tick and a half, on a crowded machine, within the time of such a look.
_TOLD_SECONDS, _TOLD_AGAIN_SECONDS = 1.6, 0.05
_PIPE_LOOKS = 2  # a byte into the user's dump pipe costs the job a dump with stacks


class LookContext(NamedTuple):
    """What every rank's look is given."""

    order: CaptureOrder
    sending: Sending
    held: Held
    told: LookBefore = LookBefore()
    known: Callable[[], Mapping[RankId, RankSample]] | None = None  # ranks as their reader last saw them


class RankCapture:
    """Everything that is asked of one rank at this look."""

    def __init__(self, sample: RankSample, place: LookContext, turn_ns: int = 0) -> None:
        """`turn_ns`: by how much its recorder's dump is put off."""
        self.sample = sample
        order = place.order
        self.look = order.look
        self.folder = Folder(place.sending, sample.rank, order.look)
        self._told = place.told
        self._known = place.known
        self._section = order.capture
        self._kind = KINDS[order.kind]
        self.stacks = StackCapture(sample, self.folder, order.capture, place.held)
        self.recorder = RecorderRequest(sample, self.folder, order.recorder_seconds, order.at_ns, turn_ns)
        self.profile = ProfileCapture(sample, self.folder, order.capture)
        self.gone = sample.end is not None
        self.refused = refusal(sample, order.capture.ranks_of_root)
        # The reader of ranks has not seen its process: that we do not either proves no end.
        self.hidden = not self.gone and (bool(self.refused) or isinstance(sample.process, Unavailable))
        self._children: tuple[ChildProcess, ...] = ()
        self._process: ProcessLook | None = None
        self._process_lock = threading.Lock()
        self._usage: UsageCapture | None = None

    def look_at_process(self) -> None:
        """Note state, threads and children of the process, or that it is gone."""
        asked_ns = time.monotonic_ns()
        if self.refused:
            self.folder.note("process", asked_ns, False, self.refused)
            return
        if not self.gone:
            try:
                state = process.look_at(self.sample.pid, self.sample.start_ticks, self.look)
                self.gone = state.state in ENDED
                self._children = process.of_same_user(self.sample.pid, state.children)
                self.hidden = False
            except ProcessLookupError:
                if isinstance(self.sample.process, Unavailable):
                    self.folder.note("process", asked_ns, False, self.sample.process.reason)
                    return
                self.gone = True
            except (OSError, ValueError) as error:
                self.folder.note("process", asked_ns, False, str(error))
                return
        if self.gone:
            state = process.ended(self._with_end(), self.look)
        self._process = state
        self.folder.write_json("process.json", state)
        self.folder.note("process", asked_ns, True, "it has ended" if self.gone else "")

    def _with_end(self) -> RankSample:
        """The sample of a process that is gone, with how it ended as soon as its reader of ranks has said so."""
        key, until = (self.sample.pid, self.sample.start_ticks), time.monotonic() + _TOLD_SECONDS
        while self.sample.end is None and self._known is not None and time.monotonic() < until:
            seen = self._known().get(key, self.sample)
            if seen.end is not None:
                self.sample = seen
            else:
                time.sleep(_TOLD_AGAIN_SECONDS)
        return self.sample

    def look_around(self) -> None:
        """What limits it, and what of its bytes is ours; apart, for who tells that may take long to start, and a
        foreign /dev/shm may be of a file system that does not answer."""
        if self.gone or self._process is None:
            return
        own = self._own_bytes(self._process.at_ns)
        if not self._told.came() and isinstance(self.sample.heartbeat, Known):
            self._keep_process(process.of_unknown_bytes)
        elif own != process.NOTHING_YET:
            self._keep_process(lambda look: process.without(look, own))
        with contextlib.suppress(ProcessLookupError):
            around = look_around(self.sample.pid)
            self._keep_process(lambda look: replace(look, **around))

    def _keep_process(self, more: Callable[[ProcessLook], ProcessLook]) -> None:
        """Add what is known more of its process; several threads of ours find it out."""
        with self._process_lock:
            if self._process is not None:
                self._process = more(self._process)
                self.folder.write_json("process.json", self._process)

    def _own_bytes(self, now_ns: int | None) -> process.OwnBytes:
        before = self._told.of(self.sample.rank)
        if before is None or before.pid != self.sample.pid:
            return process.NOTHING_YET
        return process.own_bytes_since(
            before.own, before.at_ns, isinstance(self.sample.heartbeat, Known), now_ns or time.monotonic_ns()
        )

    def count_answers(self) -> None:
        """Note what the rank read and wrote for us, so that the next look does not take it for work."""
        if not self.gone and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._keep_process(lambda look: process.with_answers(look, self.sample.pid))

    def take_heartbeat(self) -> None:
        """Keep its hook's record, read once more."""
        if not isinstance(self.sample.heartbeat, Known):
            self.folder.note("heartbeat", time.monotonic_ns(), False, self.sample.heartbeat.reason)
            return
        heartbeat = self.sample.heartbeat.value
        with contextlib.suppress(OSError, NotCaptured, LayoutError):
            heartbeat = read_heartbeat(Path(heartbeat.path))
        self.folder.write_json("heartbeat.json", heartbeat)
        self.folder.note("heartbeat", time.monotonic_ns(), True)

    def take_stacks(self) -> None:
        """Keep the stacks of the process and its children."""
        if self.gone or self.hidden:
            return
        before = self._wakes()
        self.stacks.capture(self._children)
        after = self._wakes()
        self._keep_process(lambda look: process.with_own_wakes(look, before, after))

    def _wakes(self) -> dict[int, int]:
        with contextlib.suppress(OSError):
            return process.wakes_of(self._process) if self._process is not None else {}
        return {}

    def start_usage(self, others: Mapping[int, Stat]) -> None:
        """Begin to measure what it uses; `others` are its neighbours' counters now."""
        with contextlib.suppress(OSError, ValueError):
            self._usage = UsageCapture(self.sample.pid, self.sample.start_ticks, others)

    def see(self) -> None:
        """Note whether it stands held at this moment of that measurement."""
        if self._usage is not None:
            with contextlib.suppress(OSError, ValueError):
                self._usage.see()

    @property
    def is_measured(self) -> bool:
        """Whether that measurement has begun."""
        return self._usage is not None

    def take_usage(self, others: Mapping[int, Stat]) -> None:
        """Keep what it and its neighbours have used since."""
        if self._usage is not None:
            with self.folder.attempt("usage"):
                known = self._known() if self._known is not None else {}
                ranks = {sample.pid: sample for sample in (*known.values(), self.sample)}
                self.folder.write_json("usage.json", self._usage.taken(self.look, ranks, others))

    def profiles(self, seconds: int) -> list[Callable[[], None]]:
        """What takes them, of itself and of children that it may wait for."""
        if self.gone or self.hidden:
            return []
        children = (partial(self.profile.take_child, pid, seconds) for pid in children_to_profile(self._children))
        return [partial(self.profile.take, seconds), *children]

    def lines(self) -> list[tuple[str, int]]:
        """Source lines that tell what it does."""
        return list(dict.fromkeys((*lines_of_stacks(self.stacks.frames), *self.profile.lines)))

    def ask_recorder(self, rungs: tuple[str, ...]) -> None:
        """Ask its flight recorder, rung by rung, and keep what it answers."""
        if self.gone:
            return
        self.recorder.ask(rungs)
        if self._kind.heartbeat_last:
            self.take_heartbeat()
        if self.recorder.missing and not self.hidden and "torch_dump" in self._kind.evidence:
            self._take_torch_dump()

    def ask_for_stacks(self) -> None:
        """Where py-spy may not look, the rank's own hook can, unless the GIL is held."""
        asked_ns = time.monotonic_ns()
        try:
            self.stacks.keep_of_hook(self.recorder.ask_python_stacks())
        except (NotCaptured, untrusted.FileRefused) as error:
            self.folder.note("stacks", asked_ns, False, f"by its own hook: {error}")
        else:
            self.folder.note("stacks", asked_ns, True, "by its own hook, without a state of the GIL")

    def _take_torch_dump(self) -> None:
        """What torch wrote by itself, or writes because its user set up a pipe for that."""
        asked_ns = time.monotonic_ns()
        try:
            dump = torch_dumps.take(self.sample, press=self.look <= _PIPE_LOOKS, seconds=self._section.dump_seconds)
        except (NotCaptured, ProcessLookupError) as error:
            self.folder.note("flight_recorder", asked_ns, False, f"torch's own file: {error}")
            return
        self.folder.write("flight_recorder.torch.pickle", dump.data)
        self.folder.note("flight_recorder", asked_ns, True, f"torch's own file {dump.path}: {len(dump.data)} bytes")
        self.recorder.missing = ""

    def missing(self) -> list[str]:
        """What is not known of this rank; a rank that is gone has nothing to add."""
        if self._has_ended():
            return []
        sentences = [] if self.is_complete() else [f"rank {self.sample.rank}: no stack"]
        if self.recorder.missing:
            sentences.append(f"rank {self.sample.rank}: flight recorder {self.recorder.missing}")
        return sentences

    def is_complete(self) -> bool:
        """Whether nothing is missing for a verdict: its stacks, or its end."""
        return "stacks" not in self._kind.evidence or self.stacks.answered or self._has_ended()

    def _has_ended(self) -> bool:
        return self.gone or (not self.hidden and not os.path.exists(f"/proc/{self.sample.pid}"))
