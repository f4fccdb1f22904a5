"""The daemon's per-stage guard: a stage that raises is logged and counted, and the loop goes on."""

import logging
from collections.abc import Callable
from typing import TypeVar

from stallwatch.errors import StallwatchError
from stallwatch.model.incident import StageErrors

T = TypeVar("T")
log = logging.getLogger(__name__)


class StageGuard:
    """Keeps an error of one part from the rest of the loop, and counts it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def run(self, stage: str, name: str, work: Callable[[], T]) -> T | None:
        """Return what `work` returns, None when it raised."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001  one of the three named guards
            self.count(stage, name, f"{type(error).__name__}: {error}", error)
            return None

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
