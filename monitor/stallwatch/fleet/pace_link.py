"""The pace of this node's jobs at the meeting place: what is asked, and the children that judge. No call waits."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.fleet.judge_handle import JudgeHandle
from stallwatch.fleet.pace_seat import ORDINAL, JobPace, PaceSeat, PaceSeen, PaceWish
from stallwatch.fleet.pace_verdict import PaceVerdict
from stallwatch.fleet.place import Key
from stallwatch.fleet.place_settings import Settings

_JUDGE_SECONDS: Final = 180.0  # 2,048 nodes of 8 ranks take 4 to 11 s of CPU, and nobody waits for it
_VERDICT = msgspec.json.Decoder(PaceVerdict)


class PaceLink:
    """The daemon's side of pace records."""

    def __init__(
        self, settings: Settings, node: str, minimum_share: float, judge: Callable[[JudgeQuestion], JudgeHandle]
    ) -> None:
        self._settings = settings
        self._node = node
        self._minimum_share = minimum_share
        self._judge = judge
        self._jobs: dict[str, JobPace] = {}
        self._seats: dict[str, PaceSeat] = {}
        self._judging: dict[str, tuple[JudgeHandle, int]] = {}  # by job, with the time at which it is given up
        self.problem = ""

    @property
    def busy(self) -> bool:
        """Whether anything is being judged."""
        return bool(self._judging)

    def step(self, now_ns: int, jobs: Sequence[JobPace]) -> None:
        """Given what this node says of its jobs now, have judged what is this node's to judge."""
        self._jobs = {one.job: one for one in jobs}
        for name in [name for name in self._seats if name not in self._jobs]:
            del self._seats[name]
            self._end(name)
        for name, job in self._jobs.items():
            seat = self._seats.setdefault(name, PaceSeat(self._node))
            if name in self._judging:
                self._take(name, seat, now_ns)
            elif seat.wants_verdict(now_ns):
                self._begin(job, seat, now_ns)

    def wish(self, now_ns: int) -> PaceWish | None:
        """What to ask next; None: nothing is due."""
        for name, job in self._jobs.items():
            if (wish := self._seats[name].wish(now_ns, job)) is not None:
                return wish
        return None

    def heard(self, wish: PaceWish, seen: PaceSeen, now_ns: int) -> None:
        """Take what the meeting place showed."""
        self.problem = seen.caveat
        if wish.job in self._seats:
            self._seats[wish.job].heard(wish, seen, now_ns)

    def found(self, now_ns: int) -> dict[str, PaceVerdict]:
        """Return who holds which job back, by the jobs' names."""
        each = {name: seat.found(now_ns) for name, seat in self._seats.items()}
        return {name: verdict for name, verdict in each.items() if verdict is not None}

    def close(self) -> None:
        """End the judges that are under way."""
        for name in list(self._judging):
            self._end(name)

    def _begin(self, job: JobPace, seat: PaceSeat, now_ns: int) -> None:
        seat.judging(now_ns)
        key = Key(job.job, ORDINAL)
        question = JudgeQuestion(
            self._settings, key, job.world_size, "", job.began_ns, self._minimum_share, seat.verdict
        )
        try:
            self._judging[job.job] = self._judge(question), now_ns + int(_JUDGE_SECONDS * SECOND_NS)
        except OSError as error:
            self.problem = f"the process that compares paces cannot be started: {error.strerror}"

    def _take(self, name: str, seat: PaceSeat, now_ns: int) -> None:
        judging, until_ns = self._judging[name]
        ended = judging.poll()
        if ended is None and now_ns < until_ns:
            return
        if ended is None:
            self._end(name)
            seat.judged(None, now_ns)
            return
        del self._judging[name]
        try:
            if ended.code != 0:
                raise ValueError(ended.last_words)
            seat.judged(_VERDICT.decode(ended.output), now_ns)
        except (ValueError, msgspec.MsgspecError) as error:
            seat.judged(None, now_ns)
            self.problem = f"the nodes' paces could not be compared: {error}"

    def _end(self, name: str) -> None:
        if name in self._judging:
            self._judging.pop(name)[0].end()
