"""Keeps the bundle of each told incident beyond the node: once its evidence is complete, and as it was at its end."""

from collections.abc import Callable

from stallwatch.config import Config
from stallwatch.encoding import json_of
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.node.children import module_of_ours
from stallwatch.node.run_once import RunOnce
from stallwatch.outputs.archive_child import ArchiveOrder
from stallwatch.outputs.latest_only_worker import LatestOnlyWorker

_SECONDS = 300.0  # of one bundle
_ATTEMPTS = 5
_MOST_KNOWN = 512  # incidents; older ones are on no report any more

Run = Callable[[ArchiveOrder, float], str]
"""Carries it out within some seconds; returns what is wrong, "" when nothing is."""


class Archive:
    """Copies the bundles of incidents that are over to the archive."""

    name = "archive"

    def __init__(self, section_archive: str, options_file: str, keep_days: int, run: Run | None = None) -> None:
        self._archive, self._options_file, self._keep_days = section_archive, options_file, keep_days
        self._child: RunOnce | None = None
        self._run = run or self._in_child
        self._done: dict[tuple[str, bool], int] = {}  # attempts, or -1 once it is there
        self._problem: str | None = None
        self._due = LatestOnlyWorker(self.name, self._keep)

    def start(self) -> None:
        """Begin the thread that copies."""
        self._due.start()

    def publish(self, report: NodeReport) -> None:
        """Hand over the oldest incident that is due; the others come with the next reports."""
        due = [one for one in report.incidents if _is_due(one) and self._is_wanted(one)]
        if due:
            self._due.hand(due[-1])  # the oldest; the others come at the next ticks

    def problem(self) -> str | None:
        """Why the last bundle was not copied; None when it was."""
        return self._problem

    def close(self, seconds: float) -> None:
        """Wait at most so many seconds for a copy under way, then cancel it."""
        self._due.close(seconds, self._cancel)

    def _is_wanted(self, incident: Incident) -> bool:
        return 0 <= self._done.get((incident.incident_id, incident.is_over), 0) < _ATTEMPTS

    def _keep(self, incident: Incident) -> None:
        key = (incident.incident_id, incident.is_over)
        if not self._is_wanted(incident):
            return  # handed over twice while it was under way
        order = ArchiveOrder(
            self._archive, self._options_file, self._keep_days, incident.shared_id, incident.node, incident.bundle
        )
        problem = self._run(order, _SECONDS)
        if self._due.closing:
            return
        self._problem = f"{incident.incident_id} is not archived: {problem}" if problem else None
        self._done[key] = self._done.pop(key, 0) + 1 if problem else -1
        while len(self._done) > _MOST_KNOWN:
            del self._done[next(iter(self._done))]

    def _in_child(self, order: ArchiveOrder, seconds: float) -> str:
        try:
            command = module_of_ours("stallwatch.outputs.archive_child")
            self._child = RunOnce(command, json_of(order), limit_bytes=8 << 30)
        except OSError as error:
            return f"no process can be started: {error.strerror}"
        ended = self._child.finish(seconds)
        if ended is None:
            return f"no answer within {seconds:.0f} s"
        return "" if ended.code == 0 else ended.last_words or f"exit code {ended.code}"

    def _cancel(self) -> None:
        if self._child is not None:
            self._child.kill()


def _is_due(incident: Incident) -> bool:
    """People were told, or would have been but for a silence, and all that will come is there."""
    told = incident.severity != "none" or incident.withheld != "none"
    complete = incident.report is not None and incident.report.evidence_complete
    return told and bool(incident.bundle) and (complete or incident.is_over)


def archive(config: Config) -> Archive | None:
    """The output, or None where nothing is archived."""
    section = config.incidents
    if not section.archive:
        return None
    return Archive(section.archive, section.archive_options_file, section.archive_keep_days)
