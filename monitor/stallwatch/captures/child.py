"""A look of either kind (captures.spec), in its own process on the privileged side: `python -m
stallwatch.captures.child ORDER`, or forked from there, with the daemon's side (captures.keeper) at its standard input
and output. Decisive and cheap evidence first; what hangs is left behind at its deadline. It looks at ranks that its own
side knows, and writes nothing anywhere."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from stallwatch.captures import user_files
from stallwatch.captures.channel import NODE, AttemptNote, LookBefore, LookProgress, Sending
from stallwatch.captures.flight_recorder import EXTRA, turns
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.held import Held
from stallwatch.captures.kernel_log import read_kernel_log
from stallwatch.captures.neighbours import processes
from stallwatch.captures.profile import LATE_SECONDS
from stallwatch.captures.rank_look import LookContext, RankCapture
from stallwatch.captures.ras_capture import RasCapture
from stallwatch.captures.spec import KINDS, CaptureOrder, CaptureState, Evidence
from stallwatch.formats.outside_text import name_of
from stallwatch.model.evidence import Attempt
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node.known_ranks import read_known
from stallwatch.node.no_network import give_up_network

# Recorders are asked when every stack is taken, for a dump holds the GIL and would show itself in them; but not later
# than this, so that one py-spy that hangs does not delay the dumps.
_STACKS_FIRST_SECONDS = 1.5
_PROCESS_SECONDS = 2.0
_USER_FILES_SECONDS = 4.0
_LATER_FILES_SECONDS = 10.0  # from the third look on nobody waits for it: a crowded node's readers take long to start
# Call sites hold the GIL for 3–10 s the first time (symbols), and other threads of the rank for up to 0.6 s: a minute
# into a hang, when a passing wait has passed.
_STACKS_LOOK = 3
_MOST_PROFILED = 16  # ranks; who is suspected comes first
_LEAST_USAGE_SECONDS = 2.0  # counted in ticks of 10 ms: less tells nothing
_BETWEEN_SECONDS = 0.037  # of two moments of that: in no rhythm in which somebody stops it (cpulimit: 0.1 s)
_LATEST_NS = 60_000_000_000  # a moment further away is nobody's
_UNKNOWN = "process {pid} is no rank that the privileged side has seen"


class LookCapture:
    """All ranks of a look, taken in parallel."""

    def __init__(self, targets: Sequence[RankSample], place: LookContext, unknown: Sequence[int] = ()) -> None:
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
        hooked = [rank for rank, sample in by_rank.items() if isinstance(sample.heartbeat, Known)]
        turn_ns = dict(zip(hooked, turns(len(hooked), len(os.sched_getaffinity(0)), order.look), strict=True))
        self.ranks = [RankCapture(sample, place, turn_ns.get(rank, 0)) for rank, sample in by_rank.items()]

    def take(self) -> None:
        """Take all evidence of the order, ranks beside each other, and come back when that is done or its time is
        over."""
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
        _join(files, self._files_seconds + 1)
        _join(around + node + report, 1.0)
        self._tell(self.state(done=False))
        if profiles:
            _join(profiles, section.seconds)  # it has its own deadline
            # The lines that it saw, too.
            _join(self._start("user_files", [partial(self._user_files, self.ranks)]), self._files_seconds + 1)
        if self._order.call_sites and self._order.look >= _STACKS_LOOK and section.recorder_stacks:
            extra = [partial(rank.ask_recorder, (EXTRA,)) for rank in self.ranks if not rank.recorder.missing]
            _join(self._start("recorder", extra), recorder_seconds + 1)
        _join(self._start("process", [rank.count_answers for rank in self.ranks]), 1.0)
        self._tell(self.state(done=True))

    def state(self, done: bool) -> CaptureState:
        """How far it has come, with what is missing."""
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
        self._sending.send(LookProgress(state))

    def abandon(self) -> None:
        """End what still runs for it: py-spy above all, which may hold a rank."""
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
        measured, ends = [rank for rank in ranks if rank.is_measured], time.monotonic() + seconds
        while (now := time.monotonic()) < ends and (
            (measured and now < until) or any(thread.is_alive() for thread in running)
        ):
            for rank in measured:
                rank.see()
            time.sleep(_BETWEEN_SECONDS)
        after = processes()
        for rank in ranks:
            rank.take_usage(after)
        _join(running, LATE_SECONDS + 1)

    def _nccl_ras(self) -> None:
        """Whom to ask, which takes our rights; that is done by who has a network."""
        self._ras.take()

    def _user_files(self, ranks: Sequence[RankCapture]) -> None:
        """One reader a user: it becomes that user once and for all."""
        wanted = ((rank.sample, rank.gone, rank.folder, rank.lines()) for rank in ranks if not rank.refused)
        subjects, look = [user_files.Subject(*one) for one in wanted], [rank.sample for rank in self.ranks]
        readers = user_files.readers(subjects, self._files_seconds, look)
        _join(self._start("user_files", readers), self._files_seconds)

    @property
    def _files_seconds(self) -> float:
        return _USER_FILES_SECONDS if self._order.look < _STACKS_LOOK else _LATER_FILES_SECONDS

    def _kernel_log(self) -> None:
        asked_ns = time.monotonic_ns()
        try:
            lines = read_kernel_log()
        except NotCaptured as error:
            attempt = Attempt("kernel_log", self._order.look, asked_ns, False, f"{error}. {error.help}")
        else:
            self._node.write("kernel_log.txt", "".join(f"{line}\n" for line in lines).encode(), of_look=False)
            attempt = Attempt("kernel_log", self._order.look, asked_ns, True)
        self._sending.send(AttemptNote(NODE, attempt))


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def main(arguments: list[str]) -> None:
    """Take one look by the order in the arguments."""
    order = msgspec.json.decode(arguments[0], type=CaptureOrder)
    give_up_network()
    sending = Sending(sys.stdin.fileno(), sys.stdout.fileno())
    known = read_known(order.known)
    targets = [known[rank] for rank in dict.fromkeys(order.ranks) if rank in known]
    unknown = [pid for pid, ticks in order.ranks if (pid, ticks) not in known]
    told = LookBefore(sending.told) if order.look > 1 else LookBefore()
    order = replace(order, at_ns=min(order.at_ns, time.monotonic_ns() + _LATEST_NS))
    place = LookContext(order, sending, Held(order.held), told, partial(read_known, order.known))
    look = LookCapture(targets, place, unknown)

    def stop(number: int, frame: object) -> None:
        look.abandon()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    look.take()
    # A thread may sit in the kernel for good; nothing of it is needed any more.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
