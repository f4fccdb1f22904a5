"""One sample of a moving job: asked by the privileged side, judged by a child of ours that the loop is willing to
lose."""

from collections.abc import Sequence

import msgspec

from stallwatch.captures.sample_spec import SampleResult, SampleSpec
from stallwatch.clock import Clock
from stallwatch.diagnosis.drifted import Memory
from stallwatch.model.snapshot import RankSample
from stallwatch.node.children import module_of_ours
from stallwatch.node.privileged_client import Privileged
from stallwatch.node.run_once import RunOnce

_RESULT = msgspec.json.Decoder(SampleResult)
_COMMAND = module_of_ours("stallwatch.captures.sample_child")


class SampleRun:
    """Starts at construction. Raise OSError when no process can be started."""

    def __init__(
        self,
        targets: Sequence[RankSample],
        at_ns: int,
        before: Memory,
        seconds: float,
        clock: Clock,
        side: Privileged,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        """Have the `targets`, of one job, dump at `at_ns` (CLOCK_MONOTONIC), and compare; given up after `seconds`.
        `command` replaces our child in tests."""
        self._before = before
        self._clock = clock
        self._seconds = seconds
        self._deadline_ns = clock.monotonic_ns() + int(seconds * 1e9)
        spec = SampleSpec(tuple(rank.rank for rank in targets), targets[0].world_size, before)
        self._asking = side.start("sample", at_ns=at_ns, ranks=[(rank.pid, rank.start_ticks) for rank in targets])
        try:
            with self._asking.channel as channel:
                number = channel.fileno()
                self._run = RunOnce([*command, str(number)], msgspec.json.encode(spec), lends=[number])
        except OSError:
            self._asking.kill()
            raise

    def poll(self) -> SampleResult | None:
        """Return the result, None while there is none; a child past its deadline is ended."""
        ended = self._run.poll()
        if ended is None:
            if self._clock.monotonic_ns() < self._deadline_ns:
                return None
            self.cancel()
            return SampleResult(0, (), self._before, f"no sample within {self._seconds:.0f} s (drift.seconds)")
        self._asking.kill()
        try:
            return _RESULT.decode(ended.output)
        except msgspec.MsgspecError:
            return SampleResult(0, (), self._before, f"the sample's process failed (exit code {ended.code})")

    def cancel(self) -> None:
        """End both; what was asked of ranks is answered into nowhere."""
        self._asking.kill()
        self._run.end()
