"""The daemon's side of the meeting place: asks through a child that may be lost, has others' summaries judged in
another, and says where this node stands. No call waits."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.company_seat import Companies, CompanyWish
from stallwatch.fleet.exchange import Seen, Wish
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.fleet.judge_handle import JudgeHandle, start_judge
from stallwatch.fleet.member import Member
from stallwatch.fleet.orders import Book, News, OrdersWish
from stallwatch.fleet.pace_link import PaceLink
from stallwatch.fleet.pace_seat import JobPace, PaceWish
from stallwatch.fleet.pace_verdict import PaceVerdict
from stallwatch.fleet.place import Key
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.position import Local, Position
from stallwatch.fleet.roster import RosterSeat, this_daemon
from stallwatch.fleet.verdict import JobVerdict, published
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.node.children import Start, module_of_ours, start_own
from stallwatch.node.worker import Worker

_LATE_SECONDS: Final = 5.0  # an answer that takes longer is said to be late; it counts when it comes
_CHECK_SECONDS: Final = 30.0  # between trials while there is nothing else to ask
_AGAIN_SECONDS: Final = 1.0  # after a child that ended
_JUDGE_SECONDS: Final = 60.0
_TIMED_OUT_TRIALS: Final = 3  # that a judge counts for which took all its time
_BETWEEN_VERDICTS_SECONDS: Final = 1.0
_OF_ALL: Final = ":orders"  # whose wish it is that is no incident's
_OF_PACE: Final = ":pace"
_OF_ROSTER: Final = ":roster"
_OF_PAST: Final = ":past"
_OF_COMPANY: Final = ":company"
_MOST_PAST: Final = 64
_MOST_PRESSED_SECONDS: Final = 20.0  # for which what presses keeps all else from being asked

_SEEN = msgspec.msgpack.Decoder(Seen)
_VERDICT = msgspec.json.Decoder(JobVerdict)


class _Seat:
    """One incident: what is wanted of the meeting place about it, and its verdict under way."""

    def __init__(self, member: Member, job: str) -> None:
        self.member = member
        self.job = job
        self.judging: JudgeHandle | None = None
        self.judged_puts = 0
        self.judge_until_ns = 0
        self.judge_from_ns = 0  # not before
        self.wished: tuple[int, Wish, int] | None = None  # when, what, and of which local judgement


class Link:
    """The daemon's side of the meeting place."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        start: Start | None = None,
        judge: Callable[[JudgeQuestion], JudgeHandle] = start_judge,
        monotonic: Callable[[], float] | None = None,
        slow_share: float = 0.0,
    ) -> None:
        """Start nothing yet. `slow_share`: by how much peers must wait more than who holds them back; 0: that is not
        asked."""
        self._paces = PaceLink(settings, node, slow_share, judge) if slow_share else None
        self._pace: PaceWish | None = None  # on its way
        self._settings = settings
        self._node = node
        own = start or start_own(module_of_ours("stallwatch.fleet.child"))
        self._worker = Worker(own) if monotonic is None else Worker(own, monotonic)
        self._judge = judge
        self._seats: dict[str, _Seat] = {}
        self.book = Book(node)
        self.companies = Companies(node)
        self.roster = RosterSeat(node, this_daemon())
        self._company: CompanyWish | None = None  # on its way
        self._orders: OrdersWish | None = None  # on its way
        self._news: list[News] = []
        self._past: dict[str, int] = {}  # by job: the incident that was over last
        self._leaving: list[Wish] = []
        self._asked: str | None = None  # whose wish is on its way; "": a check
        self._asked_ns = 0
        self._turn = 0
        self._other_ns = 0  # when something was asked last that is no incident's
        self._checked_ns: int | None = None
        self._again_ns = 0
        self._problem = "not tried yet"
        self._advice = ""
        self._is_silent = True  # the problem is that no answer came: the next one mends it
        self._orders_problem = ("", "")

    @property
    def problem(self) -> str:
        """Why the meeting place cannot be used, a sentence; "" while it can."""
        said = (self._problem, self._advice) if self._problem else self._orders_problem
        if not self._problem and (strange := self.roster.problem()) != ("", ""):
            said = strange
        if not said[0] and self._paces is not None:
            said = (self._paces.problem, "")
        return ". ".join(part.rstrip(" .") for part in said if part)

    @property
    def busy(self) -> bool:
        """An answer, or a verdict, is on its way: come again soon."""
        judging = any(seat.judging is not None for seat in self._seats.values())
        return judging or self._asked is not None or (self._paces is not None and self._paces.busy)

    def step(self, now_ns: int, locals_: Sequence[Local], paces: Sequence[JobPace] = ()) -> dict[str, Position]:
        """Given the incidents that are shared with other nodes, and the pace of its jobs, return where this node is in
        each incident."""
        for local in locals_:
            if local.incident_id not in self._seats:
                past = self._past.get(local.job, 0)
                self._seats[local.incident_id] = _Seat(Member(self._node, now_ns, local.ordinal, past), local.job)
        present = {local.incident_id for local in locals_}
        for incident_id in [one for one in self._seats if one not in present]:
            self._drop(incident_id)
        self._listen(now_ns)
        if self._paces is not None:
            self._paces.step(now_ns, paces)
        for local in locals_:
            self._judge_if_wanted(self._seats[local.incident_id], local, now_ns)
        self._ask(now_ns, locals_)
        return {local.incident_id: self._seats[local.incident_id].member.position(now_ns, local) for local in locals_}

    def news(self) -> list[News]:
        """Return what was said to all nodes since the last call."""
        news, self._news = self._news, []
        return news

    def slow(self, now_ns: int) -> dict[str, PaceVerdict]:
        """Return who holds which job back, by all of its nodes; by the jobs' names."""
        return self._paces.found(now_ns) if self._paces is not None else {}

    def close(self) -> None:
        """Give up all incidents and judges, and end the child that talks to the meeting place."""
        if self._paces is not None:
            self._paces.close()
        for incident_id in list(self._seats):
            self._drop(incident_id)
        self._worker.end()

    def _drop(self, incident_id: str) -> None:
        seat = self._seats.pop(incident_id)
        ordinal = seat.member.ordinal
        if ordinal:
            self._past.pop(seat.job, None)
            self._past[seat.job] = ordinal
            while len(self._past) > _MOST_PAST:
                del self._past[next(iter(self._past))]
        if ordinal and not seat.member.left:  # nothing came of it here: what was said of it must not be heard later
            self._leaving = [*self._leaving, Wish(seat.job, self._node, ordinal, leaves=True)][-_MOST_PAST:]
        if seat.judging is not None:
            seat.judging.end()

    def _ask(self, now_ns: int, locals_: Sequence[Local]) -> None:
        if self._asked is not None or now_ns < self._again_ns:
            return
        # Where an answer takes seconds all of them are always due. None may wait for ever behind another; incidents,
        # whose claims expire, wait for one request of another kind at most.
        incident = self._ask_incident
        others = (self._ask_orders, self._ask_roster, self._ask_past, self._ask_pace, self._ask_company)
        turns = tuple(turn for other in others for turn in (other, incident))
        presses = any(self._seats[local.incident_id].member.presses(now_ns, local) for local in locals_)
        first = 1 if presses and now_ns - self._other_ns < _MOST_PRESSED_SECONDS * SECOND_NS else self._turn
        for turn in (*range(first, len(turns)), *range(first)):
            if turns[turn](now_ns, locals_):
                self._turn = turn + 1
                self._other_ns = self._other_ns if turn % 2 else now_ns
                return
        if self._checked_ns is None or now_ns - self._checked_ns >= _CHECK_SECONDS * SECOND_NS:
            self._checked_ns = now_ns
            self._send("", PlaceRequest(self._settings, "check"), now_ns)

    def _ask_orders(self, now_ns: int, _: Sequence[Local]) -> bool:
        if (orders := self.book.wish(now_ns)) is None:
            return False
        self._orders = orders
        self._send(_OF_ALL, PlaceRequest(self._settings, "orders", orders=orders), now_ns)
        return True

    def _ask_roster(self, now_ns: int, _: Sequence[Local]) -> bool:
        if (greeting := self.roster.wish(now_ns)) is None:
            return False
        self._send(_OF_ROSTER, PlaceRequest(self._settings, "greet", greeting=greeting), now_ns)
        return True

    def _ask_past(self, now_ns: int, _: Sequence[Local]) -> bool:
        if not self._leaving:
            return False
        self._send(_OF_PAST, PlaceRequest(self._settings, "exchange", self._leaving.pop(0)), now_ns)
        return True

    def _ask_incident(self, now_ns: int, locals_: Sequence[Local]) -> bool:
        # Whose last exchange is longest ago comes first: none waits for ever behind others.
        for local in sorted(locals_, key=lambda local: self._age_of(local.incident_id)):
            seat = self._seats[local.incident_id]
            wish = seat.member.wish(now_ns, local)
            if wish is not None:
                seat.wished = (now_ns, wish, local.judged)
                self._send(local.incident_id, PlaceRequest(self._settings, "exchange", wish), now_ns)
                return True
        return False

    def _ask_pace(self, now_ns: int, _: Sequence[Local]) -> bool:
        if self._paces is None or (pace := self._paces.wish(now_ns)) is None:
            return False
        self._pace = pace
        self._send(_OF_PACE, PlaceRequest(self._settings, "pace", pace=pace), now_ns)
        return True

    def _ask_company(self, now_ns: int, _: Sequence[Local]) -> bool:
        if (wish := self.companies.wish(now_ns)) is None:
            return False
        self._company = wish
        self._send(_OF_COMPANY, PlaceRequest(self._settings, "company", company=wish), now_ns)
        return True

    def _age_of(self, incident_id: str) -> int:
        wished = self._seats[incident_id].wished
        return 0 if wished is None else wished[0]

    def _send(self, whose: str, request: PlaceRequest, now_ns: int) -> None:
        try:
            if self._worker.pid is None:
                self._worker.start()
            sent = self._worker.ask(msgpack_of(request))
        except OSError as error:
            self._lost(f"the process that asks it cannot be started: {error.strerror}", whose, now_ns)
            return
        if not sent:
            self._lost("the process that asks it takes no request", whose, now_ns)
            return
        self._asked, self._asked_ns = whose, now_ns

    def _listen(self, now_ns: int) -> None:
        if self._asked is None:
            return
        try:
            for message in self._worker.messages():
                self._worker.asked = None
                self._answered(_SEEN.decode(message), now_ns)
                return
        except (ValueError, *NOT_JSON) as error:
            self._lost(f"the process that asks it said nonsense: {error}", self._asked, now_ns)
            return
        if self._worker.has_ended:
            self._lost("the process that asks it has ended", self._asked, now_ns)
        elif self._worker.is_given_up:
            self._worker.kill()  # one in the kernel's hands does not die of it, and no second one joins it there
        elif now_ns - self._asked_ns > _LATE_SECONDS * SECOND_NS:
            self._problem, self._advice = f"it has not answered for {(now_ns - self._asked_ns) / SECOND_NS:.0f} s", ""
            self._is_silent = True

    def _answered(self, seen: Seen, now_ns: int) -> None:
        whose, self._asked = self._asked, None
        if whose == _OF_PACE and not seen.problem:
            if seen.pace is not None and self._pace is not None and self._paces is not None:
                self._paces.heard(self._pace, seen.pace, now_ns)
            return
        if whose == _OF_COMPANY and seen.company is not None and self._company is not None:
            self.companies.heard(self._company, seen.company, now_ns)
            return
        if whose == _OF_ALL:
            self._orders_problem = (seen.problem or (seen.orders.caveat if seen.orders else ""), seen.advice)
            if self._is_silent:
                self._problem, self._advice, self._is_silent = "", "", False
            if seen.orders is not None and self._orders is not None:
                self._news += self.book.heard(self._orders, seen.orders, now_ns)
            return
        self._problem, self._advice, self._is_silent = seen.problem or seen.caveat, seen.advice, False
        self._checked_ns = now_ns
        if whose == _OF_ROSTER and seen.roster is not None:
            if self.roster.seen is not None and self.roster.seen.key != seen.roster.key:
                for one in self._seats.values():
                    one.member.moved(now_ns)
            self.roster.heard(seen.roster, now_ns, time.time_ns())
        seat = self._seats.get(whose or "")
        if seat is None or seat.wished is None:
            return
        asked_ns, wish, judged = seat.wished
        found = published(seen.report) if seen.report else None
        seat.member.heard(asked_ns, now_ns, wish, seen, found[0] if found else None, judged)
        if found is not None:
            seat.member.with_nodes(found[1])

    def _lost(self, problem: str, whose: str, now_ns: int) -> None:
        self._worker.end(patience_seconds=0.0)
        self._asked = None
        self._problem, self._advice, self._is_silent = problem, "", True
        self._again_ns = now_ns + int(_AGAIN_SECONDS * SECOND_NS)
        seat = self._seats.get(whose)
        if seat is not None:
            seat.member.failed(problem, now_ns)

    def _judge_if_wanted(self, seat: _Seat, local: Local, now_ns: int) -> None:
        if seat.judging is not None:
            self._take_verdict(seat, seat.judging, now_ns)
            return
        if now_ns < seat.judge_from_ns or not seat.member.wants_verdict(now_ns):
            return
        signs = self.roster.seen.key if self.roster.seen is not None else ""
        key = Key(local.job, seat.member.ordinal)
        question = JudgeQuestion(self._settings, key, local.world_size, signs, local.began_ns)
        try:
            seat.judging = self._judge(question)
        except OSError as error:
            self._problem = f"the process that judges what nodes say cannot be started: {error.strerror}"
            seat.member.unjudged(self._problem, now_ns)
            seat.judge_from_ns = now_ns + int(_BETWEEN_VERDICTS_SECONDS * SECOND_NS)
            return
        seat.judged_puts = seat.member.puts
        seat.judge_until_ns = now_ns + int(_JUDGE_SECONDS * SECOND_NS)

    def _take_verdict(self, seat: _Seat, judging: JudgeHandle, now_ns: int) -> None:
        ended = judging.poll()
        if ended is None and now_ns < seat.judge_until_ns:
            return
        seat.judging = None
        seat.judge_from_ns = now_ns + int(_BETWEEN_VERDICTS_SECONDS * SECOND_NS)
        if ended is None:
            judging.end()
            self._problem = f"what nodes say could not be judged within {_JUDGE_SECONDS:.0f} s"
            seat.member.unjudged(self._problem, now_ns, trials=_TIMED_OUT_TRIALS)
            return
        try:
            if ended.code != 0:
                raise ValueError(ended.last_words)
            verdict = _VERDICT.decode(ended.output)
        except (ValueError, *NOT_JSON) as error:
            self._problem = f"what nodes say could not be judged: {error}"
            seat.member.unjudged(self._problem, now_ns)
            return
        seat.member.merged(msgspec.structs.replace(verdict, puts=seat.judged_puts), now_ns)
