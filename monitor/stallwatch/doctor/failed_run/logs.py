"""`doctor --log FILE…`: the first cause, and the other failures as its consequences."""

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.diagnosis.logs import LogReading, read_logs
from stallwatch.diagnosis.logs.consequence import ENDED_NOTHING
from stallwatch.diagnosis.logs.failure_line import headline
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_origin import launcher_of, log_per_rank, words_in
from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings

_MOST_CONSEQUENCES, _MOST_ATTEMPTS = 12, 4
_OF_NODES = ("node_memory",)  # what a node says of itself, and of no rank


class FailedRun:
    """Reads what `--log` names as `analyze` does; Inapplicable without it, nothing to tell of a run that ended well."""

    name: ClassVar[str] = "first_cause"
    area: ClassVar[Area] = "failed run"
    looks_for: ClassVar[str] = (
        "in the logs of a run that failed: the first cause, the other failures as its consequences"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        evidence = surroundings.question.evidence
        if evidence is None:
            raise Inapplicable("no --log FILE")
        logs = read_logs(evidence.ranks, evidence.log_events, evidence.nodes, evidence.log_nodes)
        if logs.ended_well:
            return ()
        report = surroundings.question.report
        verdict = report.verdicts[0] if report is not None and report.verdicts else None
        decided = verdict is not None and verdict.cause != "undecided"
        if not logs.told:
            return (self._told_by_all(),) if decided else (self._nothing(logs),)
        earlier = self._earlier((*logs.earlier, logs.told))
        first = logs.told[0]
        other = verdict is not None and first.rank is not None and first.rank not in verdict.culprits
        found = self._not_it(first) if other and not first.consequence else self._first(logs)
        return (found, *earlier, *self._consequences(logs.told), *self._hints(logs))

    @staticmethod
    def first_seen(logs: LogReading) -> str:
        """Who and what came first, in the words that the verdict's facts have."""
        return headline(logs.told[0]) if logs.told else ""

    def _nothing(self, logs: LogReading) -> FindingRecord:
        """Nothing in the logs is known: that is not "nothing wrong"."""
        last = logs.unrecognised[-3:]
        shown = "; ".join(f"line {event.line}: {event.text.strip()[:160]}" for event in last)
        where = f"{last[-1].source}:{last[-1].line}" if last else "the logs"
        what = "The last lines that look like errors" if any(e.kind == "error_like" for e in last) else "It ends with"
        return finding(
            self, "warning", where,
            seen=f"No line of these logs tells a failure that we know. {what}: {shown}" if shown
            else "No line of these logs tells anything.",
            why="That is no proof that nothing failed: the rank that failed may have written elsewhere.",
            remedy="read these lines; give the logs of all ranks and of the launcher "
            f"({log_per_rank(logs.events)}), and flight recorder dumps to `stallwatch analyze`",
        )  # fmt: skip

    def _first(self, logs: LogReading) -> FindingRecord:
        told = logs.told
        first = told[0]
        if first.consequence:
            return finding(
                self, "warning", first.place,
                seen=f"Only consequences stand in these logs; the earliest is: {headline(first)}",
                why="The rank that failed first wrote elsewhere, or nowhere.",
                remedy=f"give the logs of all ranks ({log_per_rank(logs.events)})",
            )  # fmt: skip
        words = words_in(first, logs.events)
        if logs.only_warned:
            return finding(
                self, "warning", first.place,
                seen=f"Only a warning stands in these logs: {headline(first)}",
                why=f"{words.why} It was tried again after that, and may have gone well.",
                remedy=words.remedy,
            )  # fmt: skip
        if first.kind in _OF_NODES:
            return finding(
                self, "warning", first.place,
                seen=f"No rank's failure stands in these logs, but a sign of the node's: {headline(first)}",
                why=words.why,
                remedy=words.remedy,
            )  # fmt: skip
        ranks = sorted({one.rank for one in told if one.kind == first.kind and one.rank is not None})
        why = words.why
        if first.kind == "out_of_memory" and len(ranks) == 1:
            why += f" Only rank {ranks[0]} did: its GPU or its data differ from the others'."
        return finding(
            self, "error", first.place,
            seen=f"First cause: {headline(first)}",
            why=why,
            remedy=words.remedy,
        )  # fmt: skip

    def _not_it(self, first: LoggedFailure) -> FindingRecord:
        """The verdict knows more than which failure stands first: who waits in vain is no cause."""
        return finding(
            self, "warning", first.place,
            seen=f"The first failure that these logs tell: {headline(first)}",
            why="The verdict, which weighs all that was read, does not put it down to this rank.",
            remedy="begin with the verdict",
        )  # fmt: skip

    def _told_by_all(self) -> FindingRecord:
        return finding(
            self, "warning", "the logs",
            seen="No one line tells the failure; what was read together does.",
            why="The verdict says what is known, and by which evidence.",
            remedy="begin with the verdict",
        )  # fmt: skip

    def _earlier(self, told_of: tuple[tuple[LoggedFailure, ...], ...]) -> Iterator[FindingRecord]:
        """Attempts before the last one: the run was restarted, and what ended them may be another thing."""
        last, of = told_of[-1][0], len(told_of)
        for number, told in enumerate(told_of[:-1][-_MOST_ATTEMPTS:], max(1, of - _MOST_ATTEMPTS)):
            first = told[0]
            same = (first.kind, first.event.exception) == (last.kind, last.event.exception)
            yield finding(
                self, "info", first.place,
                seen=f"Attempt {number} of {of} ended by: {headline(first)}",
                why="The last attempt ended the same way: a restart does not cure it."
                if same
                else "It ended by another cause than the last attempt.",
                remedy="mend it as well" if not same else "mend the first cause",
            )  # fmt: skip

    def _consequences(self, told: tuple[LoggedFailure, ...]) -> Iterator[FindingRecord]:
        """One record for each kind and log: sixty ranks that lost their peer are one fact."""
        counts = Counter((one.event.source, one.kind) for one in told[1:])
        seen: set[tuple[str, str]] = set()
        for one in told[1:]:
            key = (one.event.source, one.kind)
            if key in seen or one.kind == "recorder_disabled" or len(seen) >= _MOST_CONSEQUENCES:
                continue
            seen.add(key)
            more = f" (and {counts[key] - 1} more of its kind)" if counts[key] > 1 else ""
            ended_nothing = one.consequence in ENDED_NOTHING
            yield finding(
                self, "info", one.place,
                seen=f"{'No cause' if ended_nothing else 'Consequence'}: {headline(one)}{more}",
                why=f"It ended nothing: {one.consequence}." if ended_nothing
                else f"It follows from the first cause{': ' + one.consequence if one.consequence else ''}. To mend it "
                "mends nothing.",
                remedy="mend the first cause",
            )  # fmt: skip

    def _hints(self, logs: LogReading) -> Iterator[FindingRecord]:
        told = logs.told
        disabled = next((one for one in told if one.kind == "recorder_disabled"), None)
        if disabled is not None:
            words = words_in(disabled, logs.events)
            yield finding(
                self, "warning", disabled.place,
                seen="The flight recorder was off in this run.", why=words.why, remedy=words.remedy,
            )  # fmt: skip
        failures = [one for one in told if one.kind == "launcher_failure"]
        if failures and launcher_of(logs.events) == "torchrun" and not any(one.event.exception for one in told):
            yield finding(
                self, "info", failures[0].place,
                seen="torchrun shows no traceback of the failed rank.",
                why="Without @record a rank's exception reaches no file that torchrun prints.",
                remedy="from torch.distributed.elastic.multiprocessing.errors import record; put @record on main()",
                source="PyTorch documentation, Error Propagation",
            )  # fmt: skip
