"""The steps of a self-test in their order, the same on every rank: what is agreed on is agreed on at the store."""

import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, Optional

from stallwatch.selftest.worker.collectives import COLLECTIVES, Collective, TrialGroup, all_reduce, barrier
from stallwatch.selftest.worker.rank_store import Meeting, first_line
from stallwatch.selftest.worker.step_lines import StepReport, Wrong
from stallwatch.selftest.worker.transfers import (
    OBJECT_COLLECTIVES,
    distances,
    exchange,
    repeat_exchange,
    send_and_receive,
)

_SMALLEST, _FACTOR = 8, 8
_UNASKED_BYTES = 1 << 20  # up to here a size is tried without asking for time
# "ProcessGroupGloo does not support reduce_scatter", "Backend gloo does not support allgather_into_tensor_coalesced". A
# driver's "operation not supported" is another thing: that is this node. Objects come out of tensors by way of NumPy.
_REFUSED = re.compile(r"(ProcessGroup\w*|[Bb]ackend \w+):? does not support|Numpy is not available")
_REPEAT_SECONDS, _MOST_REPEATS = 0.4, 20


class GroupBroken(Exception):
    """An operation failed with an exception: the group can no longer be used."""


def sizes(most_bytes: int) -> "list[int]":
    """8 B, 64 B, … and `most_bytes` itself: NCCL chooses its protocols by size."""
    found = []
    size = _SMALLEST
    while size < most_bytes:
        found.append(size)
        size *= _FACTOR
    return [*found, max(_SMALLEST, most_bytes)]


class Walk:
    """One rank's way through all steps, the same on every rank: barrier, collectives by size, transfers, objects,
    sub-groups."""

    def __init__(
        self,
        group: TrialGroup,
        meeting: Meeting,
        report: StepReport,
        *,
        most_bytes: int,
        ladder_seconds: float,
        on_step: "Callable[[], None]",
        only: "tuple[str, ...]" = (),
    ) -> None:
        """`ladder_seconds` bounds the sizes of one operation; `only` keeps to steps of these names."""
        self._group, self._meeting, self._report = group, meeting, report
        self._sizes = sizes(most_bytes)
        self._ladder_seconds = ladder_seconds
        self._on_step = on_step
        self._only = only

    def everything(self) -> None:
        """Raise GroupBroken when the group cannot go on."""
        self._do("barrier", None, partial(barrier, self._group, 0))
        for collective in COLLECTIVES:
            if self._wanted(collective.name):
                self._ladder(collective)
        if self._group.size > 1:
            self._transfers()
        self._objects()
        if self._group.size > 1:
            self._sub_groups()
        self._do("last barrier", None, partial(barrier, self._group, 0))

    def _wanted(self, name: str) -> bool:
        return not self._only or name in self._only

    def _ladder(self, collective: Collective) -> None:
        reached = None
        for size in self._within_time(collective.name, self._sizes):
            reached = size if self._do(collective.name, size, partial(collective.run, self._group, size)) else None
            if reached is None:
                return
        if reached and collective.repeat and collective.bus_share and self._group.size > 1:
            self._bandwidth(collective.name, reached, collective.repeat, collective.bus_share(self._group.size))

    def _within_time(self, name: str, ladder: "list[int]") -> "Iterator[int]":
        """Rank 0 decides for all whether there is time for a larger size: a slow link must not look like a dead one."""
        began = before = time.monotonic()
        for size in ladder:
            if size > _UNASKED_BYTES:
                last, now = time.monotonic() - before, time.monotonic()
                go_on = now - began + _FACTOR * last < self._ladder_seconds
                if self._meeting.decide(f"go/{name}/{size}", "yes" if go_on else "no") == "no":
                    return
            before = time.monotonic()
            yield size

    def _bandwidth(
        self, name: str, size: int, prepare: "Callable[[TrialGroup, int], Callable[[], None]]", share: float
    ) -> None:
        def measure() -> "dict[str, Any]":
            once = prepare(self._group, size)
            once()
            self._synchronize()
            began = time.monotonic()
            once()
            self._synchronize()
            guess = max(1e-6, time.monotonic() - began)
            repeats = max(1, min(_MOST_REPEATS, int(_REPEAT_SECONDS / guess)))
            repeats = int(self._meeting.decide(f"repeats/{name}", str(repeats)))
            began = time.monotonic()
            for _ in range(repeats):
                once()
            self._synchronize()
            seconds = (time.monotonic() - began) / repeats
            return {"bus_bytes_per_second": round(size / seconds * share)}

        self._do(f"{name} bandwidth", size, measure)

    def _transfers(self) -> None:
        if self._wanted("send/recv"):
            for size in self._within_time("send/recv", self._sizes):
                self._do("send/recv", size, partial(send_and_receive, self._group, size))
        reached = None
        for distance in distances(self._group.size):
            name = f"exchange +{distance}"
            if not self._wanted(name):
                continue
            ladder = self._sizes if distance == 1 else [_SMALLEST, min(_UNASKED_BYTES, self._sizes[-1])]
            for size in self._within_time(name, ladder):
                done = self._do(name, size, partial(exchange, self._group, size, distance))
                reached = size if done and distance == 1 else reached
        if reached:
            self._bandwidth("exchange", reached, repeat_exchange, 1.0)

    def _objects(self) -> None:
        for name, run in OBJECT_COLLECTIVES:
            if self._wanted(name):
                self._do(name, None, partial(run, self._group, 0))

    def _sub_groups(self) -> None:
        """All ranks make every group, each works in its own, all groups at the same time."""
        members, rank = self._group.members, self._group.rank
        half = len(members) // 2
        layouts = {"halves": (members[:half], members[half:]), "odd and even": (members[::2], members[1::2])}
        for name, parts in layouts.items():
            step = f"sub-groups {name}"
            if not self._wanted(step):
                continue
            handles: list[Any] = []
            self._do(f"new_group {name}", None, partial(self._make_groups, parts, handles))
            mine = 0 if members[rank] in parts[0] else 1
            own = self._group._replace(
                members=tuple(parts[mine]), rank=parts[mine].index(members[rank]), handle=handles[mine]
            )
            for size in (_SMALLEST, min(_UNASKED_BYTES, self._sizes[-1])):
                self._do(step, size, partial(all_reduce, own, size))

    def _make_groups(self, parts: "tuple[tuple[int, ...], ...]", handles: "list[Any]") -> None:
        handles.extend(self._group.torch.distributed.new_group(list(members)) for members in parts)

    def _do(self, name: str, size: Optional[int], run: "Callable[[], Optional[dict[str, Any]]]") -> bool:
        """Run one step to its end on the device. Return whether it may be followed by its kind."""
        self._meeting.say("at", f"{self._report.index + 1} {name}" + ("" if size is None else f" {size} B"))
        self._report.begin(name, size)
        try:
            facts = run()
            self._synchronize()
        except Wrong as error:  # the operation ended: the group is whole, and the other sizes tell more
            self._report.end("wrong", str(error))
        except Exception as error:
            if _is_unsupported(error):
                self._report.end("unsupported", first_line(error))
                return False  # on every rank alike
            self._report.end("error", first_line(error))
            raise GroupBroken(f"{self._report.where}: {first_line(error)}") from error
        else:
            self._report.end("ok", "", **(facts or {}))
        self._on_step()
        return True

    def _synchronize(self) -> None:
        if self._group.device.type == "cuda":
            self._group.torch.cuda.synchronize()


def _is_unsupported(error: Exception) -> bool:
    """What this installation cannot do, on every rank alike and outside communication."""
    return isinstance(error, NotImplementedError) or _REFUSED.search(str(error)) is not None
