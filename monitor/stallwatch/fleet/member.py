"""What this node wants of the meeting place about one incident, and whether it speaks for the job. Pure: time is given.

Nodes whose own evidence proves a culprit claim first, then those of the lowest ranks. Who holds the claim merges,
judges and tells; others watch that it is renewed. Where the meeting place does not answer, who held the claim goes on
with what it had merged; else a node that finds a rank of its own at fault, and that of rank 0, speak for themselves.
"""

from typing import Final

from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import json_of
from stallwatch.fleet.exchange import Seen, Wish
from stallwatch.fleet.place import CLAIM_SECONDS, Board
from stallwatch.fleet.position import NOT_AGREED, Local, Position
from stallwatch.fleet.verdict import JobVerdict, PublishedVerdict
from stallwatch.model.incident import NO_RANKS, OutputTold, Told, is_last
from stallwatch.model.verdict import Report

# Nodes see the same standstill within seconds of each other: after this, who has put nothing is not waited for.
GATHER_SECONDS: Final = 10.0
# A meeting place that has not answered for this long is away: after a request that failed; while one is on its way.
AWAY_SECONDS: Final = 10.0
_SLOW_SECONDS: Final = 20.0
_STOOD_SECONDS: Final = 5.0  # between two steps of ours: we stood, and did not ask
_POLL_SECONDS: Final = 1.0
_CALM_SECONDS: Final = 3.0  # between looks once the incident is old
_OLD_SECONDS: Final = 120.0
_RENEW_SECONDS: Final = 3.0
_RENEW_LATE_SECONDS: Final = 4.5
# While the meeting place is away, who had claimed tells; should it have died at the same time, others do after this.
_HOLDER_SECONDS: Final = 60.0
# When the meeting place is back, who told of it alone notes that first: a request may still be on its way for seconds.
_BACK_SECONDS: Final = 9.0
_JUDGE_AGAIN_SECONDS: Final = 15.0  # while a node is missing
# Who holds the claim and cannot judge what others say gives it up after so many trials, to who can; where nobody can,
# it claims again after this, and tells what it sees itself.
_TRIALS: Final = 3
_YIELD_SECONDS: Final = 30.0
_MARGIN_SECONDS: Final = 1.0  # our clock may run a little slower than the claim's
_FIRST_CLAIM_SECONDS: Final = 2.0  # so that who has a proof comes first
_STEP_SECONDS: Final = 0.5  # between candidates
_MOST_STEPS: Final = 10
_LINGER_SECONDS: Final = 60.0  # after the end, until the last word is said
# Where all ranks of a node are gone, those of others may stand: they have this long to take over who tells of the end.
_HAND_OVER_SECONDS: Final = 25.0


class Member:
    """A node's part in one incident of a job."""

    def __init__(self, node: str, now_ns: int, ordinal: int = 0, past: int = 0) -> None:
        """`ordinal`: where a daemon before this one had joined already; `past`: of the job's incident before, which is
        over here."""
        self._node = node
        self._past = past
        self._ordinal = ordinal
        self._joined_ns: int | None = None
        self._answered_ns: int | None = None  # the last time; at first when there was something to ask
        self._has_failed = False  # a request, since then
        self._stepped_ns = now_ns
        self._back_ns: int | None = None  # when it answered again after it had been away
        self._asked_ns: int | None = None
        self._not_before_ns = now_ns
        self._problem = ""
        self._put = 0  # of the node's judgements, the last that was put
        self._board = Board()
        self._told: Told | None = None  # by whoever has told
        self._noted: Told | None = None  # of it, what the place had at the last look: one that was restarted has none
        self._unnoted: Told | None = None  # another had told already: ours is not noted over it
        self._generation = 0
        self._until_ns = 0  # our claim is in force, by our clock
        self._renewed_ns = 0
        self._vacant_ns: int | None = None  # since when nobody is seen to hold a claim
        self._verdict: JobVerdict | None = None  # of ours, as the one who merges
        self._merged_ns = 0
        self._unjudged = 0  # trials in a row, while the meeting place answers
        self._yields_until_ns: int | None = None
        self._unable = ""  # why it judges alone, though the meeting place answers
        self._published: bytes = b""
        self._report: Report | None = None  # of another who merged
        self._report_nodes = 0
        self._known_report = 0
        self._over_ns: int | None = None
        self._closed = False
        self.left = False  # nothing more is to be done

    @property
    def ordinal(self) -> int:
        """Which incident of the job it is; 0 before the place has said."""
        return self._ordinal

    def wish(self, now_ns: int, local: Local) -> Wish | None:
        """Return what is to be asked now; None while nothing is due. `heard` or `failed` must follow each."""
        if self.left or local.judged == 0 or not self._is_due(now_ns, local):
            return None
        if local.over and self._over_ns is None:
            self._over_ns = now_ns
        if local.alone:
            return None
        told = self._news(local)
        ends = self._over_ns is not None and self._ordinal > 0 and self._may_leave(now_ns, local)
        if ends and local.ended and told is None:
            # What it said stays, and so does the incident: who finds later that this life of the job stands, on a node
            # that still has ranks of it, joins there.
            self.left = True
            return None
        if self._hands_over(now_ns, local):
            self._generation, self._verdict, self._published = 0, None, b""
        self._asked_ns = now_ns
        return Wish(
            job=local.job,
            node=self._node,
            ordinal=self._ordinal,
            past=max(self._past, local.past),
            began_ns=local.began_ns,
            begun=local.begun,
            summary=b"" if self._put == local.judged or ends else local.summary,
            claims=self._may_claim(now_ns, local),
            generation=self._generation,
            told=told,
            report=self._published,
            known_report=self._known_report,
            whole=self._generation > 0,
            closes=self._said_last(local) and self._generation > 0 and not self._closed and not local.ended,
            leaves=ends and told is None,
        )

    def heard(self, asked_ns: int, now_ns: int, wish: Wish, seen: Seen, report: Report | None, judged: int) -> None:
        """Take in an answer. `report` is that of `seen`, decoded; `judged` the node's judgement that was put."""
        if seen.problem:
            self.failed(seen.problem, now_ns)
            return
        self._asked_ns, self._problem = None, seen.caveat
        if now_ns - asked_ns < (CLAIM_SECONDS - _MARGIN_SECONDS) * SECOND_NS:
            if self._away(now_ns):
                self._back_ns = now_ns
            self._answered_ns, self._has_failed = now_ns, False
        else:  # no claim is in force any more when it is heard of: of who tells, such answers settle nothing
            self._has_failed = True
        if wish.leaves:
            self.left = True
            return
        if self._ordinal != seen.ordinal:
            self._joined_ns = asked_ns
        self._joined_ns = asked_ns if self._joined_ns is None else self._joined_ns
        self._ordinal = seen.ordinal
        self._board = seen.board
        if wish.summary:
            self._put = judged
        self._noted = told = seen.told
        if told is not None:
            self._told = told
        self._unnoted = wish.told if wish.told is not None and not seen.told_noted else None
        self._closed = self._closed or wish.closes
        if seen.generation:
            if seen.generation != self._generation:
                self._verdict, self._published = None, b""
            self._generation = seen.generation
            self._renewed_ns = asked_ns
            self._until_ns = asked_ns + int((CLAIM_SECONDS - _MARGIN_SECONDS) * SECOND_NS)
        elif wish.generation or now_ns >= self._until_ns:
            self._generation, self._verdict, self._published = 0, None, b""
        if seen.report_noted:
            self._published = b""
        if seen.report:
            self._report, self._known_report = report or self._report, seen.board.report_revision
        vacant = not seen.board.holder and not self._generation
        self._vacant_ns = (self._vacant_ns or now_ns) if vacant else None
        if not seen.board.member and not seen.board.closed:
            self._join_again(self._ordinal - 1)
            self.left = self._over_ns is not None and self._told is None
        elif seen.board.closed and not self._closed and self._over_ns is None and (told is None or not is_last(told)):
            self._join_again(self._ordinal)

    def moved(self, now_ns: int) -> None:
        """This node signs with another key from now on: it meets others, who have their own incident of it."""
        self._join_again(0)
        self._noted, self._board, self._back_ns = None, Board(), now_ns

    def _join_again(self, past: int) -> None:
        """The place does not know this node any more: it was restarted with nothing, or this node was away for long.
        All who stood there join again, and meet in the same incident; what people were told is noted again. So, in the
        next, where one for whom this was over has closed it, and told is not the end: the job stands here."""
        self._past = max(self._past, past)
        self._ordinal, self._put, self._known_report = 0, 0, 0
        self._generation, self._verdict, self._published, self._vacant_ns = 0, None, b"", None

    def failed(self, problem: str, now_ns: int) -> None:
        """There was no answer, and why."""
        self._asked_ns, self._problem, self._has_failed = None, problem, True
        self._not_before_ns = now_ns + int(_POLL_SECONDS * SECOND_NS)

    def wants_verdict(self, now_ns: int) -> bool:
        """Whether the summaries that there are are to be merged now."""
        if not self._holds(now_ns) or self._over_ns is not None or self._board.puts == 0:
            return False
        if self._verdict is None or self._verdict.puts != self._board.puts:
            return True
        # From whom nothing has come may have been heard of a moment before: that it is silent shows by time alone.
        seconds = (now_ns - self._merged_ns) / SECOND_NS
        return not (self._verdict.is_whole or self._verdict.silent) and seconds >= _JUDGE_AGAIN_SECONDS

    def unjudged(self, problem: str, now_ns: int, trials: int = 1) -> None:
        """What there was could not be merged, and why; one that took all its time counts for several trials."""
        if not self._holds(now_ns) or now_ns - (self._answered_ns or 0) > 2 * _RENEW_SECONDS * SECOND_NS:
            return  # the meeting place is away: that is another matter
        self._unjudged += trials
        if self._unjudged < _TRIALS:
            return
        self._unjudged = 0
        if self._yields_until_ns is not None:
            self._unable = problem
            return
        self._yields_until_ns = now_ns + int(_YIELD_SECONDS * SECOND_NS)
        self._generation, self._verdict, self._published = 0, None, b""

    def presses(self, now_ns: int, local: Local) -> bool:
        """Whether to ask of anything else first may cost a second message: what was told is not noted yet, or a claim
        runs out before it is told."""
        ageing = now_ns - self._renewed_ns >= _RENEW_LATE_SECONDS * SECOND_NS
        return self._news(local) is not None or (self._generation > 0 and self._noted is None and ageing)

    @property
    def puts(self) -> int:
        """How many summaries the place had at the last look."""
        return self._board.puts

    def merged(self, verdict: JobVerdict, now_ns: int) -> None:
        """Take in the verdict over what there was to be merged."""
        self._verdict, self._merged_ns = verdict, now_ns
        self._unjudged, self._yields_until_ns, self._unable = 0, None, ""
        self._published = json_of(PublishedVerdict(verdict.report, verdict.nodes))

    def position(self, now_ns: int, local: Local) -> Position:
        """Return where this node stands."""
        if self._answered_ns is None and local.judged:
            self._answered_ns = now_ns
        elif self._answered_ns is not None and now_ns - self._stepped_ns > _STOOD_SECONDS * SECOND_NS:
            self._answered_ns += now_ns - self._stepped_ns - int(_POLL_SECONDS * SECOND_NS)
        self._stepped_ns = now_ns
        away = local.alone or self._away(now_ns)
        report, nodes = (None, 0) if local.alone else self._job_report()
        speaks, why = self._voice(now_ns, local, away=bool(away))
        away = away or (self._unable if speaks and report is None else "")
        silent = self._verdict.silent if self._verdict is not None else ()
        expected = self._ordinal or max(self._past, local.past) + 1
        apart = None if self._verdict is not None and self._verdict.is_whole else local.apart
        return Position(self._ordinal, speaks, why, report, nodes, self._told, away, silent, apart, expected)

    def _voice(self, now_ns: int, local: Local, *, away: bool) -> tuple[bool, str]:
        if self._waits_with_end(now_ns, local):
            return False, NO_RANKS
        if self._holds(now_ns):
            if (left := self._left_to_others(local)) is not None:
                return False, left
            if local.over or self._is_enough(now_ns, local):
                return True, ""
            ranks = self._verdict.ranks if self._verdict else 0
            return False, f"what the job's other nodes see is being gathered ({ranks} of {local.world_size} ranks)"
        if away:
            return self._voice_alone(now_ns, local)
        if self._board.holder and self._board.holder != self._node:
            return False, f"{self._board.holder} tells of it"
        return False, NOT_AGREED

    def _voice_alone(self, now_ns: int, local: Local) -> tuple[bool, str]:
        """Nobody can be asked who tells: as few as possible, and never nobody."""
        here = local.proven or local.suspects
        if self._generation and (here or self._is_enough(now_ns, local)):
            return True, ""  # nobody can have claimed after this node, unless it alone is cut off
        holder = self._board.holder if self._board.holder != self._node else ""
        if self._told is not None and not local.over:
            return False, f"it was told before the meeting place went away{f', by {holder}' if holder else ''}"
        if not here and 0 not in local.ranks:
            return False, (
                f"{local.alone or 'the meeting place does not answer'}, and no rank of this node is seen to be at "
                "fault: a node that finds one of its own at fault tells, and that of rank 0"
            )
        left = _HOLDER_SECONDS + AWAY_SECONDS - (now_ns - (self._answered_ns or now_ns)) / SECOND_NS
        if holder and left > 0:
            return False, f"{holder} was to tell of it when the meeting place went away; this node waits for it"
        return True, ""

    def _left_to_others(self, local: Local) -> str | None:
        """Why those tell of it whose word is not believed here, nor ours there: as few as possible, and never nobody.
        None: that is this side's."""
        verdict, apart = self._verdict, local.apart
        if verdict is None or verdict.is_whole or apart is None or not apart.lower:
            return None
        if self._told is not None or local.told.outputs or verdict.report.verdicts[0].traits.accuses:
            return None
        return f"{apart.why}: that side tells, which has lower ranks, as no rank here is seen to be at fault"

    def _is_enough(self, now_ns: int, local: Local) -> bool:
        if self._verdict is None:
            return bool(self._unable)
        if self._told is None and self._back_ns is not None and now_ns - self._back_ns < _BACK_SECONDS * SECOND_NS:
            return False
        if local.conclusive:
            return True
        waited = self._joined_ns is not None and now_ns - self._joined_ns >= GATHER_SECONDS * SECOND_NS
        return waited or self._verdict.ranks >= local.world_size

    def _job_report(self) -> tuple[Report | None, int]:
        if self._verdict is not None:
            return self._verdict.report, self._verdict.nodes
        return self._report, self._report_nodes

    def with_nodes(self, nodes: int) -> None:
        """How many nodes the last report of another rests on."""
        self._report_nodes = nodes

    def _away(self, now_ns: int) -> str:
        seconds = 0.0 if self._answered_ns is None else (now_ns - self._answered_ns) / SECOND_NS
        # One that is slow may have given this node the claim, or be about to say who has it.
        if seconds < (AWAY_SECONDS if self._has_failed else _SLOW_SECONDS):
            return ""
        return f"the meeting place has not answered for {seconds:.0f} s: {self._problem or 'no answer comes'}"

    def _is_due(self, now_ns: int, local: Local) -> bool:
        if self._asked_ns is not None or now_ns < self._not_before_ns:
            return False
        news = bool(local.summary) and local.judged != self._put
        if self._joined_ns is None or news or self._published or self._news(local) is not None:
            return True
        if self._over_ns is None and local.over:
            return True
        if self._generation and now_ns - self._renewed_ns >= _RENEW_SECONDS * SECOND_NS:
            return True
        old = now_ns - self._joined_ns > _OLD_SECONDS * SECOND_NS
        return now_ns - (self._answered_ns or 0) >= (_CALM_SECONDS if old else _POLL_SECONDS) * SECOND_NS

    def _holds(self, now_ns: int) -> bool:
        return self._generation > 0 and now_ns < self._until_ns

    def _may_claim(self, now_ns: int, local: Local) -> bool:
        """Where nobody holds a claim: at once for who has a proof, then by the order of the lowest ranks."""
        if self._generation or self._board.closed or (not local.summary and not local.over):
            return False
        if local.over and (self._told is None or is_last(self._told)):
            return False  # nobody was told, or the end was: there is nothing to say
        if self._waits_with_end(now_ns, local) or now_ns < (self._yields_until_ns or 0):
            return False
        if self._joined_ns is None or self._vacant_ns is None:
            return local.proven and self._joined_ns is None
        if local.proven:
            return True
        place = min(local.ranks, default=0) // max(len(local.ranks), 1)
        seconds = (0.0 if self._board.generation else _FIRST_CLAIM_SECONDS) + _STEP_SECONDS * min(place, _MOST_STEPS)
        return now_ns - self._vacant_ns >= seconds * SECOND_NS

    def _news(self, local: Local) -> Told | None:
        """What is known here to have been told and is not noted in the meeting place; None where it knows all."""
        known = self._noted.outputs if self._noted else {}
        outputs = dict(self._told.outputs) if self._told else {}
        for name, own in local.told.outputs.items():
            before = outputs.get(name, OutputTold())
            if set(own.steps) - set(before.steps) or (own.steps and own.verdict != before.verdict and self._generation):
                outputs[name] = OutputTold(
                    tuple(dict.fromkeys((*before.steps, *own.steps))), own.verdict, own.thread or before.thread
                )
        known_as = self._told or local.told
        news = Told(outputs, known_as.incident_id, known_as.waits_on, local.told.seconds or known_as.seconds)
        unnoted = replace(self._unnoted, seconds=news.seconds) if self._unnoted is not None else None
        return news if outputs != known and (news != unnoted or self._generation) else None

    def _said_last(self, local: Local) -> bool:
        """The end of what was told is told too."""
        told = self._news(local) or self._told
        return local.over and told is not None and is_last(told)

    def _waits_with_end(self, now_ns: int, local: Local) -> bool:
        """All ranks of this node are gone, and others have not had the time to say that theirs stand."""
        return local.ended and (self._over_ns is None or now_ns - self._over_ns < _HAND_OVER_SECONDS * SECOND_NS)

    def _hands_over(self, now_ns: int, local: Local) -> bool:
        """Whether another is to tell of the end: what this node told of the beginning is noted, and the verdict put."""
        noted = self._told is not None and self._news(local) is None and not self._published
        return self._waits_with_end(now_ns, local) and noted and not self._said_last(local)

    def _may_leave(self, now_ns: int, local: Local) -> bool:
        assert self._over_ns is not None
        told = self._news(local) or self._told
        if self._closed or self._board.closed or (told is None and not self._holds(now_ns)):
            return True  # told is None: nobody was told of it, and nobody needs its end; or ours is on its way
        if local.ended and self._said_last(local):
            return True
        if self._holds(now_ns):
            return False  # it is to tell the end; unless that is noted, another tells it once more
        return now_ns - self._over_ns > _LINGER_SECONDS * SECOND_NS
