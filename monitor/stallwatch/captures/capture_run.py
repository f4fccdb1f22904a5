"""One look at the given ranks, of an incident or as a sample of a job that moves: taken on the privileged side, written
down by a child of ours that the loop is willing to lose."""

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.captures.spec import INCIDENT, SAMPLE, CaptureState, KeepSpec, Sampling
from stallwatch.config import Config
from stallwatch.encoding import json_of
from stallwatch.model.gpu import Gpu
from stallwatch.model.snapshot import RankSample
from stallwatch.node.children import module_of_ours, start_own
from stallwatch.node.memory_file import memory_file
from stallwatch.node.privileged_client import Privileged
from stallwatch.node.worker import Worker

_STATE = msgspec.json.Decoder(CaptureState)
_KEEPER = module_of_ours("stallwatch.captures.keeper")

__all__ = ["CaptureRun", "CaptureState"]

# The privileged side tells a look that is late to end, which kills its py-spys and lets the ranks go on; then ends it.
_END_SECONDS = 3.0
_KEEP_SECONDS = 2.0


class CaptureRun:
    """Starts at construction; the bundle folder is valid at every moment, each file appears whole."""

    def __init__(
        self,
        bundle: Path | None,
        targets: Sequence[RankSample],
        look: int,
        config: Config,
        *,
        node: str,
        side: Privileged,
        gpus: Sequence[tuple[Gpu, ...]] = (),
        profile_seconds: int = 0,
        call_sites: bool = False,
        sampling: Sampling | None = None,
        command: Sequence[str] = _KEEPER,
    ) -> None:
        """Have look number `look` (1, 2, …) taken at `targets` by `side`, and write it below `bundle`.

        `gpus` are the samples of the last snapshots, oldest first; the look sees what ranks do for `profile_seconds`;
        `call_sites`: they stand, and may be held for long. With `sampling` it is a sample: without a bundle, of which
        the last state tells what was `compared`. `command` replaces our child in tests. Raise OSError when no process
        can be started.
        """
        self._kind = INCIDENT if sampling is None else SAMPLE
        self._seconds = config.capture.seconds if sampling is None else config.drift.seconds
        # What was sent by then is written in this time, or the disk hangs; a sample is compared then, too.
        self._keep_seconds = _KEEP_SECONDS if sampling is None else self._seconds
        self._deadline = time.monotonic() + self._seconds
        self._state = CaptureState(done=False, evidence_complete=False)
        self._ended = self._is_whole = False
        self._told_to_end = False
        self._keep_until: float | None = None
        ranks = tuple(dict.fromkeys(rank.rank for rank in targets))
        owner = targets[0].job.owner if targets else ""
        place = "" if bundle is None else str(bundle)
        spec = KeepSpec(place, look, node, ranks, tuple(gpus), owner, config.incidents.keep_bytes, sampling)
        words = {"look": look, "profile_seconds": profile_seconds, "call_sites": int(call_sites)}
        if sampling is not None:
            words = {"at_ns": sampling.at_ns}
        asked = [(rank.pid, rank.start_ticks) for rank in targets]
        self._looking = side.start(self._kind.name, ranks=asked, **words)
        try:
            with self._looking.channel as channel, memory_file(json_of(spec)) as file:
                lends = (channel.fileno(), file.fileno())
                self._keeper = Worker(start_own([*command, *map(str, lends)], lends=lends))
                self._keeper.start()
        except OSError:
            self._looking.kill()
            raise

    def poll(self) -> CaptureState:
        """Return at once with what is known so far; have the look ended when it is past `capture.seconds`."""
        if self._ended:
            return self._state
        self._read()
        code = self._looking.poll()  # told when no rank can be left stopped by it
        now = time.monotonic()
        if code is not None:
            self._keep_until = self._keep_until or now + self._keep_seconds
            if self._keeper.has_ended or now > self._keep_until:
                kept = self._end_keeper()
                self._end("" if self._is_whole and not code and not kept else self._early(code, kept))
        elif now > self._deadline + _END_SECONDS:
            self._looking.kill()
            self._deadline = now  # once in a while; it is heard of when ranks go on
        elif now > self._deadline and not self._told_to_end:
            self._told_to_end = True
            self._looking.terminate()
        return self._state

    def cancel(self) -> None:
        """Stop now and leave no rank stopped; what was written stays. Waits for that, some seconds at most; for a
        sample, which stops none, not at all."""
        if self._ended:
            return
        if not self._kind.pauses:
            self._looking.kill()
            self._keeper.end(0.0)
            self._end("cancelled")
            return
        self._looking.terminate()
        try:
            self._looking.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._looking.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._looking.wait(_END_SECONDS)
        until = time.monotonic() + _KEEP_SECONDS
        self._read()
        while not self._keeper.has_ended and self._keeper.wait(until):
            self._read()
        self._end_keeper()
        self._end("cancelled")

    def _end_keeper(self) -> int | None:
        """Return its exit code; None of one that has not ended: it is killed, and nobody waits for it."""
        if self._keeper.has_ended:
            return self._keeper.end()
        self._keeper.end(0.0)
        return None

    def _end(self, problem: str) -> None:
        self._ended = True
        if problem:
            late = f"the capture did not end within {self._seconds:.0f} s ({self._kind.deadline})"
            self._state = msgspec.structs.replace(self._state, problem=late if self._told_to_end else problem)
        self._state = msgspec.structs.replace(self._state, done=True)

    def _early(self, code: int, kept: int | None) -> str:
        if code:
            return f"the capture ended early (exit code {code})"
        if kept is None:
            return f"what was captured could not be written within {self._keep_seconds:.0f} s"
        return f"who writes down what is captured ended early (exit code {kept})"

    def _read(self) -> None:
        try:
            for message in self._keeper.messages():
                state = _STATE.decode(message)
                self._is_whole |= state.done
                self._state = msgspec.structs.replace(state, done=False)  # until both have ended
        except ValueError:  # nonsense, which a keeper says that was made to by what it reads
            self._keeper.kill()
