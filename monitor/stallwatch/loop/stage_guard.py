"""The daemon's per-stage guard: a stage that raises is logged and counted, and the loop goes on."""

import logging
from types import TracebackType

from stallwatch.errors import StallwatchError
from stallwatch.loop.reserve import Reserve
from stallwatch.model.incident import StageErrors

log = logging.getLogger(__name__)


class StageGuard:
    """Keeps an error of one part from the rest of the loop, and counts it."""

    def __init__(self, reserve: Reserve | None = None) -> None:
        """`reserve`: given away by the first MemoryError, so that it can be counted and said."""
        self.reserve = reserve or Reserve()
        self._counts: dict[tuple[str, str], int] = {}

    def stage(self, stage: str, name: str) -> "_Stage":
        """`with guard.stage("sensors", "panel"): …`: what raises within ends there, and is counted. What a failed stage
        would have made is as it was before."""
        return _Stage(self, stage, name)

    def count(self, stage: str, name: str, what: str, error: Exception | None = None) -> None:
        """Count an error; its traceback is logged the first time, its line at growing distances."""
        total = self._counts.get((stage, name), 0) + 1
        self._counts[(stage, name)] = total
        if total & (total - 1) == 0:  # 1, 2, 4, 8, …: an error at every tick must not fill the disk
            # What we raise ourselves says what is wrong, and what to do.
            unexpected = error if total == 1 and not isinstance(error, StallwatchError) else None
            log.error("stage=%s name=%s errors=%d | %s", stage, name, total, what, exc_info=unexpected)

    def errors(self) -> tuple[StageErrors, ...]:
        """How many errors each part had since the start."""
        return tuple(StageErrors(stage, name, total) for (stage, name), total in sorted(self._counts.items()))


class _Stage:
    def __init__(self, guard: StageGuard, stage: str, name: str) -> None:
        self._guard = guard
        self._stage = stage
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):  # nothing was raised, or somebody asks us to end
            return False
        if isinstance(error, MemoryError):
            self._guard.reserve.give()
        self._guard.count(self._stage, self._name, f"{type(error).__name__}: {error}", error)
        return True
