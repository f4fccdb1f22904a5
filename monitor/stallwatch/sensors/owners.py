"""Whose a job is: names are free to everybody on a shared node."""

from collections.abc import Iterable

from stallwatch.sensors.environ import RankNames


class Owners:
    """A job belongs to whose ranks came first: what another user calls by its names is another job."""

    def __init__(self) -> None:
        self._uids: dict[tuple[str, str], int] = {}  # by job and epoch

    def names_for(self, names: RankNames, uid: int) -> RankNames:
        """Return the names by which a rank of this user is known."""
        owner = self._uids.setdefault((names.training_job, names.epoch), uid)
        return names if owner == uid else names._replace(epoch=f"{names.epoch} of uid {uid}")

    def keep(self, used: Iterable[RankNames]) -> None:
        """Forget who owned the jobs that are gone."""
        jobs = {(names.training_job, names.epoch) for names in used}
        self._uids = {job: uid for job, uid in self._uids.items() if job in jobs}
