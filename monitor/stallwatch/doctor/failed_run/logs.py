"""`doctor --log FILE…`: the first cause, and the other failures as its consequences."""

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.failed_run.attempts import attempts
from stallwatch.doctor.failed_run.meaning import was_tried_again
from stallwatch.doctor.failed_run.story import Told, ranks_with, tell
from stallwatch.doctor.failed_run.words import headline, words_for
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings

_MOST_CONSEQUENCES, _MOST_ATTEMPTS = 12, 4


class FailedRun:
    name: ClassVar[str] = "first_cause"
    area: ClassVar[Area] = "failed run"
    looks_for: ClassVar[str] = (
        "in the logs of a run that failed: the first cause, the other failures as its consequences"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if not surroundings.question.logs:
            raise Inapplicable("no --log FILE")
        told_of = [told for one in attempts(list(surroundings.question.log_events)) if (told := tell(one))]
        if not told_of:
            raise Undetermined("no line of these logs tells a failure that we know")
        told = told_of[-1]
        earlier = self._earlier(told_of)
        return (self._first(told), *earlier, *self._consequences(told), *self._hints(told))

    def _first(self, told: tuple[Told, ...]) -> FindingRecord:
        first = told[0]
        if first.is_consequence:
            return finding(
                self, "warning", f"{first.log}:{first.event.line}",
                seen=f"Only consequences stand in these logs; the earliest is: {headline(first)}",
                why="The rank that failed first wrote elsewhere, or nowhere.",
                remedy="give the logs of all ranks (torchrun --log-dir DIR --redirects 3 keeps one per rank)",
            )  # fmt: skip
        words = words_for(first)
        if was_tried_again(first.event, first.kind):
            return finding(
                self, "warning", f"{first.log}:{first.event.line}",
                seen=f"Only a warning stands in these logs: {headline(first)}",
                why=f"{words.why} It was tried again after that, and may have gone well.",
                remedy=words.remedy,
            )  # fmt: skip
        ranks = ranks_with(told, first.kind)
        why = words.why
        if first.kind == "out_of_memory" and len(ranks) == 1:
            why += f" Only rank {ranks[0]} did: its GPU or its data differ from the others'."
        return finding(
            self, "error", f"{first.log}:{first.event.line}",
            seen=f"First cause: {headline(first)}",
            why=why,
            remedy=words.remedy,
        )  # fmt: skip

    def _earlier(self, told_of: list[tuple[Told, ...]]) -> Iterator[FindingRecord]:
        """Attempts before the last one: the run was restarted, and what ended them may be another thing."""
        last, of = told_of[-1][0], len(told_of)
        for number, told in enumerate(told_of[:-1][-_MOST_ATTEMPTS:], max(1, of - _MOST_ATTEMPTS)):
            first = told[0]
            same = (first.kind, first.event.exception) == (last.kind, last.event.exception)
            yield finding(
                self, "info", f"{first.log}:{first.event.line}",
                seen=f"Attempt {number} of {of} ended by: {headline(first)}",
                why="The last attempt ended the same way: a restart does not cure it."
                if same
                else "It ended by another cause than the last attempt.",
                remedy="mend it as well" if not same else "mend the first cause",
            )  # fmt: skip

    def _consequences(self, told: tuple[Told, ...]) -> Iterator[FindingRecord]:
        """One record for each kind and log: sixty ranks that lost their peer are one fact."""
        counts = Counter((one.log, one.kind) for one in told[1:])
        seen: set[tuple[str, str]] = set()
        for one in told[1:]:
            key = (one.log, one.kind)
            if key in seen or one.kind == "recorder_disabled" or len(seen) >= _MOST_CONSEQUENCES:
                continue
            seen.add(key)
            more = f" (and {counts[key] - 1} more of its kind)" if counts[key] > 1 else ""
            yield finding(
                self, "info", f"{one.log}:{one.event.line}",
                seen=f"Consequence: {headline(one)}{more}",
                why="It follows from the first cause; to mend it mends nothing.",
                remedy="mend the first cause",
            )  # fmt: skip

    def _hints(self, told: tuple[Told, ...]) -> Iterator[FindingRecord]:
        disabled = next((one for one in told if one.kind == "recorder_disabled"), None)
        if disabled is not None:
            words = words_for(disabled)
            yield finding(
                self, "warning", f"{disabled.log}:{disabled.event.line}",
                seen="The flight recorder was off in this run.", why=words.why, remedy=words.remedy,
            )  # fmt: skip
        failures = [one for one in told if one.kind == "launcher_failure"]
        if failures and not any(one.event.exception for one in told):
            yield finding(
                self, "info", f"{failures[0].log}:{failures[0].event.line}",
                seen="torchrun shows no traceback of the failed rank.",
                why="Without @record a rank's exception reaches no file that torchrun prints.",
                remedy="from torch.distributed.elastic.multiprocessing.errors import record; put @record on main()",
                source="PyTorch documentation, Error Propagation",
            )  # fmt: skip
