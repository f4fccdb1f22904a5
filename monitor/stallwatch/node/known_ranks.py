"""What the privileged side knows of ranks by its own looks: a file in memory, written by its reader of ranks and read
by its captures. The daemon names ranks; which those are, where their records lie and who owned what they wrote, it
cannot say. It outlives a reader that had to be started again."""

import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from stallwatch.encoding import msgpack_of
from stallwatch.model.snapshot import RankSample

RankId = tuple[int, int]  # pid and start ticks
_HEADER = struct.Struct("<IQI")  # which half holds the last one, its length and its CRC-32
_HALF_BYTES = 32 << 20  # sparse: only what is written takes memory
_KEEP_SECONDS = 600.0  # after it was last seen; the daemon asks for who was there a moment ago
_MOST_OF_USER = 1024
_USER_BYTES = 4 << 20
_MARGIN_BYTES = 64
_TRIES = 5


class _Known(msgspec.Struct, frozen=True):
    seen_ns: int
    sample: RankSample


_KNOWN = msgspec.msgpack.Decoder(tuple[_Known, ...])


class KnownRanks:
    """The writer; there is one at a time."""

    def __init__(self, descriptor: int, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Begin with what an earlier writer knew."""
        self._descriptor = descriptor
        self._now_ns = monotonic_ns
        self._known = _read(descriptor)
        self._half = 0

    def note(self, ranks: Iterable[RankSample]) -> None:
        """Given the ranks that are seen now, keep them and those that were seen lately."""
        now_ns = self._now_ns()
        seen = {(rank.pid, rank.start_ticks): _Known(now_ns, rank) for rank in ranks}
        if not seen and not self._known:
            return
        oldest_ns = now_ns - int(_KEEP_SECONDS * 1e9)
        before = {key: one for key, one in self._known.items() if key not in seen and one.seen_ns > oldest_ns}
        last_first = sorted(before.items(), key=lambda item: -item[1].seen_ns)
        self._known, data = _fitting({**seen, **dict(last_first)})
        self._half ^= 1
        os.pwrite(self._descriptor, data, _HEADER.size + self._half * _HALF_BYTES)
        os.pwrite(self._descriptor, _HEADER.pack(self._half, len(data), zlib.crc32(data)), 0)


def _fitting(known: Mapping[RankId, _Known]) -> tuple[dict[RankId, _Known], bytes]:
    """Given ranks, those first that matter most, return those that there is room for, and what is written of them.
    Each user has a share: who has more loses of his own."""
    kept: dict[RankId, _Known] = {}
    parts: list[msgspec.Raw] = []
    counts, sizes, whole = Counter[str](), Counter[str](), 0
    for key, one in known.items():
        owner = one.sample.job.owner
        if counts[owner] >= _MOST_OF_USER:
            continue
        part = msgspec.Raw(msgpack_of(one))
        size = len(bytes(part))
        if sizes[owner] + size > _USER_BYTES or whole + size > _HALF_BYTES - _MARGIN_BYTES:
            continue
        kept[key] = one
        parts.append(part)
        counts[owner] += 1
        sizes[owner] += size
        whole += size
    return kept, msgpack_of(parts)


def read_known(descriptor: int) -> dict[RankId, RankSample]:
    """Return each rank as it was when it was last seen; none when nothing was noted."""
    return {key: one.sample for key, one in _read(descriptor).items()}


def known_file(ranks: Iterable[RankSample]) -> int:
    """Return the descriptor of a file that holds `ranks`: for who starts a privileged side of his own."""
    descriptor = os.memfd_create("stallwatch-known", os.MFD_CLOEXEC)
    KnownRanks(descriptor).note(ranks)
    return descriptor


def _read(descriptor: int) -> dict[RankId, _Known]:
    for _ in range(_TRIES):
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return {}
        half, length, checksum = _HEADER.unpack(header)
        data = os.pread(descriptor, length, _HEADER.size + half * _HALF_BYTES)
        if zlib.crc32(data) == checksum:  # else it was met while it was written anew, twice
            return {(one.sample.pid, one.sample.start_ticks): one for one in _KNOWN.decode(data)}
    return {}
