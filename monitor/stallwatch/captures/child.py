"""A look of either kind (captures.spec), in its own process on the privileged side: `python -m
stallwatch.captures.child ORDER`, with the daemon's side (captures.keeper) at its standard input and output. Decisive
and cheap evidence first; what hangs is left behind at its deadline. It looks at ranks that its own side knows, and
writes nothing anywhere."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch.captures import process, torch_dumps, user_files
from stallwatch.captures.channel import NODE, Note, Progress, Sending, Told
from stallwatch.captures.flight_recorder import EXTRA, RecorderRequest
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.held import Held
from stallwatch.captures.kernel_log import read_kernel_log
from stallwatch.captures.profile import LATE_SECONDS, ProfileCapture, UsageCapture, children_to_profile, processes
from stallwatch.captures.ras_capture import RasCapture
from stallwatch.captures.roots import refusal
from stallwatch.captures.sources import lines_of_stacks
from stallwatch.captures.spec import KINDS, CaptureState, Evidence, Order
from stallwatch.captures.stacks import StackCapture
from stallwatch.captures.surroundings import look_around
from stallwatch.formats.outside_text import name_of
from stallwatch.hook.layout import LayoutError
from stallwatch.model.evidence import Attempt, ChildProcess, ProcessLook
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import RankSample
from stallwatch.node import untrusted
from stallwatch.node.heartbeat_file import read_heartbeat
from stallwatch.node.known_ranks import read_known
from stallwatch.node.no_network import give_up_network
from stallwatch.node.procfs import Stat

# Recorders are asked when every stack is taken, for a dump holds the GIL and would show itself in them; but not later
# than this, so that one py-spy that hangs does not delay the dumps.
_STACKS_FIRST_SECONDS = 1.5
_PROCESS_SECONDS = 2.0
_USER_FILES_SECONDS = 4.0
# Call sites hold the GIL for 3–10 s the first time (symbols), and other threads of the rank for up to 0.6 s: a minute
# into a hang, when a passing wait has passed.
_STACKS_LOOK = 3
_PIPE_LOOKS = 2  # a byte into the user's dump pipe costs the job a dump with stacks
_MOST_PROFILED = 16  # ranks; who is suspected comes first
_LEAST_USAGE_SECONDS = 2.0  # counted in ticks of 10 ms: less tells nothing
_LATEST_NS = 60_000_000_000  # a moment further away is nobody's
_UNKNOWN = "process {pid} is no rank that the privileged side has seen"


class Place(NamedTuple):
    """What every rank's look is given."""

    order: Order
    sending: Sending
    held: Held
    told: Told = Told()


class RankLook:
    """Everything that is asked of one rank at this look."""

    def __init__(self, sample: RankSample, place: Place) -> None:
        self.sample = sample
        order = place.order
        self.look = order.look
        self.folder = Folder(place.sending, sample.rank, order.look, place.told.before.get(sample.rank))
        self._section = order.capture
        self._kind = KINDS[order.kind]
        self.stacks = StackCapture(sample, self.folder, order.capture, place.held)
        self.recorder = RecorderRequest(sample, self.folder, order.recorder_seconds, order.at_ns)
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
        asked_ns = time.monotonic_ns()
        if self.refused:
            self.folder.note("process", asked_ns, False, self.refused)
            return
        if not self.gone:
            try:
                state = process.look_at(self.sample.pid, self.sample.start_ticks, self.look, own=self._own_bytes())
                self.gone = state.state in ("Z", "X")
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
            state = process.ended(self.sample, self.look)
        self._process = state
        self.folder.write_json("process.json", state)
        self.folder.note("process", asked_ns, True, "it has ended" if self.gone else "")

    def look_around(self) -> None:
        """What limits it; apart, for a foreign /dev/shm may be of a file system that does not answer."""
        if self.gone or self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            around = look_around(self.sample.pid)
            self._keep_process(lambda look: replace(look, **around))

    def _keep_process(self, more: Callable[[ProcessLook], ProcessLook]) -> None:
        """Add what is known more of its process; several threads of ours find it out."""
        with self._process_lock:
            if self._process is not None:
                self._process = more(self._process)
                self.folder.write_json("process.json", self._process)

    def _own_bytes(self) -> process.OwnBytes:
        before = self.folder.before
        if before is None or before.pid != self.sample.pid:
            return process.NOTHING_YET
        return process.own_bytes_since(
            before.own, before.at_ns, isinstance(self.sample.heartbeat, Known), time.monotonic_ns()
        )

    def count_answers(self) -> None:
        """Note what the rank read and wrote for us, so that the next look does not take it for work."""
        if not self.gone and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._keep_process(lambda look: process.with_answers(look, self.sample.pid))

    def take_heartbeat(self) -> None:
        if not isinstance(self.sample.heartbeat, Known):
            self.folder.note("heartbeat", time.monotonic_ns(), False, self.sample.heartbeat.reason)
            return
        heartbeat = self.sample.heartbeat.value
        with contextlib.suppress(OSError, NotCaptured, LayoutError):
            heartbeat = read_heartbeat(Path(heartbeat.path))
        self.folder.write_json("heartbeat.json", heartbeat)
        self.folder.note("heartbeat", time.monotonic_ns(), True)

    def take_stacks(self) -> None:
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
        with contextlib.suppress(OSError, ValueError):
            self._usage = UsageCapture(self.sample.pid, self.sample.start_ticks, others)

    @property
    def is_measured(self) -> bool:
        return self._usage is not None

    def take_usage(self, others: Mapping[int, Stat]) -> None:
        if self._usage is not None:
            with self.folder.attempt("usage"):
                own = [child.pid for child in self._children]
                self.folder.write_json("usage.json", self._usage.taken(self.look, own, others))

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
        except (NotCaptured, untrusted.Refused) as error:
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
        return "stacks" not in self._kind.evidence or self.stacks.answered or self._has_ended()

    def _has_ended(self) -> bool:
        return self.gone or (not self.hidden and not os.path.exists(f"/proc/{self.sample.pid}"))


class Look:
    """All ranks of a look, taken in parallel."""

    def __init__(self, targets: Sequence[RankSample], place: Place, unknown: Sequence[int] = ()) -> None:
        """`unknown`: pids that were asked for and are no ranks."""
        order = self._order = place.order
        self._kind = KINDS[order.kind]
        self._sending = place.sending
        self._ras = RasCapture(targets, order.look, order.capture, place.sending)
        self._problems = [_UNKNOWN.format(pid=pid) for pid in unknown]
        self._node = Folder(place.sending, NODE, order.look)
        # A folder holds one process; where two say that they are one rank, the first speaks and the other is named.
        by_rank: dict[int, RankSample] = {}
        for sample in targets:
            if by_rank.setdefault(sample.rank, sample) is not sample:
                self._problems.append(f"process {sample.pid} is rank {sample.rank} too and was not looked at")
        self.ranks = [RankLook(sample, place) for sample in by_rank.values()]

    def take(self) -> None:
        section, recorder_seconds = self._order.capture, self._order.recorder_seconds
        node = self._start("kernel_log", [self._kernel_log])
        report = self._start("nccl_ras", [self._nccl_ras])
        _join(self._start("process", [rank.look_at_process for rank in self.ranks]), _PROCESS_SECONDS)
        _join(self._start("heartbeat", [rank.take_heartbeat for rank in self.ranks]), _PROCESS_SECONDS)
        around = self._start("process", [rank.look_around for rank in self.ranks])
        profiles = self._start("profile", [self._profile] if self._order.profile_seconds else [])
        stacks = self._start("stacks", [rank.take_stacks for rank in self.ranks])
        _join(stacks, _STACKS_FIRST_SECONDS)
        rungs = self._kind.first_rungs if self._order.look == 1 else self._kind.later_rungs
        recorders = self._start("recorder", [partial(rank.ask_recorder, rungs) for rank in self.ranks])
        # Two looks of a rank, each with its own deadline, and its children.
        _join(stacks, 4 * section.stack_seconds)
        blind = [rank for rank in self.ranks if not rank.is_complete()]
        seeing = [rank for rank in self.ranks if rank not in blind]
        files = [] if profiles else self._start("user_files", [partial(self._user_files, seeing)])
        _join(recorders, recorder_seconds + 1)
        _join(self._start("stacks", [rank.ask_for_stacks for rank in blind]), recorder_seconds + 1)
        if blind and not profiles:
            # What its own hook told names lines, too.
            files += self._start("user_files", [partial(self._user_files, blind)])
        _join(files, _USER_FILES_SECONDS + 1)
        _join(around + node + report, 1.0)
        self._tell(self.state(done=False))
        if profiles:
            _join(profiles, section.seconds)  # it has its own deadline
            # The lines that it saw, too.
            _join(self._start("user_files", [partial(self._user_files, self.ranks)]), _USER_FILES_SECONDS + 1)
        if self._order.call_sites and self._order.look >= _STACKS_LOOK and section.recorder_stacks:
            extra = [partial(rank.ask_recorder, (EXTRA,)) for rank in self.ranks if not rank.recorder.missing]
            _join(self._start("recorder", extra), recorder_seconds + 1)
        _join(self._start("process", [rank.count_answers for rank in self.ranks]), 1.0)
        self._tell(self.state(done=True))

    def state(self, done: bool) -> CaptureState:
        missing = tuple(sentence for rank in self.ranks for sentence in rank.missing())
        complete = all(rank.is_complete() for rank in self.ranks)
        return CaptureState(done, complete, missing, "; ".join(dict.fromkeys(self._problems)))

    def _start(self, evidence: Evidence, functions: Sequence[Callable[[], None]]) -> list[threading.Thread]:
        """Have them gather evidence, of which this kind of look has some."""
        if evidence not in self._kind.evidence:
            return []
        threads = [threading.Thread(target=self._guarded, args=(function,), daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        return threads

    def _guarded(self, function: Callable[[], None]) -> None:
        """What a full disk, or anything that a job made up, takes from one rank, it does not take from the others."""
        try:
            function()
        except OSError as error:
            self._problems.append(name_of(f"{os.fsdecode(error.filename or 'capture')}: {error.strerror}"))
        except Exception as error:  # noqa: BLE001 - the guard of a thread: what it raises is said and costs its rank
            self._problems.append(name_of(f"a part of this look failed: {type(error).__name__}: {error}"))

    def _tell(self, state: CaptureState) -> None:
        self._sending.send(Progress(state))

    def abandon(self) -> None:
        for rank in self.ranks:
            rank.stacks.abandon()
            rank.profile.abandon()

    def _profile(self) -> None:
        ranks, seconds = self.ranks[:_MOST_PROFILED], self._order.profile_seconds
        before = processes()
        for rank in ranks:
            rank.start_usage(before)
        until = time.monotonic() + min(seconds, _LEAST_USAGE_SECONDS)
        running = self._start("profile", [take for rank in ranks for take in rank.profiles(seconds)])
        _join(running, seconds)  # less where all of them have failed
        if any(rank.is_measured for rank in ranks):
            time.sleep(max(0.0, until - time.monotonic()))
        after = processes()
        for rank in ranks:
            rank.take_usage(after)
        _join(running, LATE_SECONDS + 1)

    def _nccl_ras(self) -> None:
        """Whom to ask, which takes our rights; that is done by who has a network."""
        self._ras.take()

    def _user_files(self, ranks: Sequence[RankLook]) -> None:
        """One reader a user: it becomes that user once and for all."""
        wanted = ((rank.sample, rank.gone, rank.folder, rank.lines()) for rank in ranks if not rank.refused)
        readers = user_files.readers([user_files.Subject(*one) for one in wanted], _USER_FILES_SECONDS)
        _join(self._start("user_files", readers), _USER_FILES_SECONDS)

    def _kernel_log(self) -> None:
        asked_ns = time.monotonic_ns()
        try:
            lines = read_kernel_log()
        except NotCaptured as error:
            attempt = Attempt("kernel_log", self._order.look, asked_ns, False, f"{error}. {error.help}")
        else:
            self._node.write("kernel_log.txt", "".join(f"{line}\n" for line in lines).encode(), of_look=False)
            attempt = Attempt("kernel_log", self._order.look, asked_ns, True)
        self._sending.send(Note(NODE, attempt))


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    give_up_network()
    sending = Sending(sys.stdin.fileno(), sys.stdout.fileno())
    known = read_known(order.known)
    targets = [known[rank] for rank in dict.fromkeys(order.ranks) if rank in known]
    unknown = [pid for pid, ticks in order.ranks if (pid, ticks) not in known]
    told = sending.told() if order.look > 1 else Told()
    order = replace(order, at_ns=min(order.at_ns, time.monotonic_ns() + _LATEST_NS))
    look = Look(targets, Place(order, sending, Held(order.held), told), unknown)

    def stop(number: int, frame: object) -> None:
        look.abandon()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    look.take()
    # A thread may sit in the kernel for good; nothing of it is needed any more.
    os._exit(0)


if __name__ == "__main__":
    main()
