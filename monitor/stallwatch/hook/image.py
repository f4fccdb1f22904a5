"""The bytes of a record, filled in place: four times a second, by a thread whose caches are cold, so that what has not
changed since the last time is not touched, and what Python need not do it does not do."""

from binascii import crc32
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

from stallwatch.hook import layout

Groups = tuple[tuple[str, int, int, int], ...]  # recorder, pg_id, enqueued, completed

# Words of the record, counted from its beginning.
_CHECKSUM = layout.WORD["checksum"]
_RING, _GROUPS, _LOOKS = layout.RING_OFFSET // 8, layout.GROUP_OFFSET // 8, layout.LOOK_OFFSET // 8


class Image:
    """One record. Its parts may be filled in any order; `sealed` gives the bytes."""

    def __init__(self) -> None:
        self.steps = 0  # up to which the ring is filled
        self._bytes = bytearray(layout.RECORD_BYTES)
        # A store of each takes half of what struct.pack_into does where caches are cold (12 and 25 µs a look). They are
        # this machine's words: attach() refuses one that is not little-endian.
        self._words = memoryview(self._bytes).cast("q")
        self._groups: Groups = ()

    def fill_words(self, place: int, words: Sequence[int]) -> None:
        """From this one of the record's words on: the first are those of layout.WORDS, in their order."""
        filled = self._words
        for word in words:
            filled[place] = word
            place += 1

    def fill_ring(self, steps: int, times: Sequence[int]) -> None:
        """With the times of the last steps, oldest first, when so many had been counted."""
        place = (steps - len(times) + 1) % layout.RING_SLOTS
        before_end = layout.RING_SLOTS - place
        if len(times) > before_end:
            self.fill_words(_RING + place, times[:before_end])
            place, times = 0, times[before_end:]
        self.fill_words(_RING + place, times)
        self.steps = steps

    def fill_groups(self, groups: Groups) -> None:
        """Those for which there is room; `kept` says how many they are."""
        place = _GROUPS
        for recorder, pg_id, enqueued, completed in groups[: layout.GROUP_CAPACITY]:
            self.fill_words(place, (layout.RECORDERS.index(recorder), pg_id, enqueued, completed))
            place += 4
        # Some may have been more: their words are no longer counted, but a record says nothing of what is gone.
        if len(groups) < len(self._groups):
            end, old_end = (layout.GROUP_OFFSET + kept(of) * layout.ONE_GROUP.size for of in (groups, self._groups))
            self._bytes[end:old_end] = bytes(old_end - end)
        self._groups = groups

    def fill_texts(self, texts: "tuple[str, ...]") -> None:
        """In the order of layout.STRINGS."""
        offset = layout.STRING_OFFSET
        for text, (_, size, _) in zip(texts, layout.STRINGS):
            fitted = fitting(text, size)
            self._bytes[offset : offset + size] = fitted + bytes(size - len(fitted))
            offset += size

    def fill_look(self, look: "tuple[int, ...]") -> None:
        """With the words of a layout.CounterLook, in the place of the one LOOK_SLOTS before."""
        self.fill_words(_LOOKS + look[0] % layout.LOOK_SLOTS * len(look), look)

    def sealed(self) -> bytearray:
        """Return the bytes with their checksum. They are the image's own: write them before it is filled again."""
        self._words[_CHECKSUM] = 0
        self._words[_CHECKSUM] = crc32(self._bytes)
        return self._bytes


def kept(groups: Groups) -> int:
    """Return for how many there is room."""
    return min(len(groups), layout.GROUP_CAPACITY)


# What nobody named; the names in their order.
_BLANK = {**dict.fromkeys((name for name, _ in layout.WORDS), layout.UNKNOWN), "refused_errno": 0}
_IN_ORDER = itemgetter(*(name for name, _ in layout.WORDS))


def encode(
    words: "dict[str, int]",
    ring: "tuple[int, ...]",
    groups: Groups,
    strings: "dict[str, str]",
    looks: "tuple[layout.CounterLook, ...]" = (),
) -> bytes:
    """Given the words by name (magic, version, checksum and group counts are filled in here) and a whole ring, return a
    record."""
    image = Image()
    counts = {"group_count": kept(groups), "groups_dropped": len(groups) - kept(groups)}
    known = {"magic": layout.MAGIC, "version": layout.VERSION, "checksum": 0}
    image.fill_words(0, _IN_ORDER({**_BLANK, **words, **known, **counts}))
    image.fill_ring(layout.RING_SLOTS - 1, ring[1:])
    image.fill_ring(layout.RING_SLOTS, ring[:1])
    image.fill_groups(groups)
    image.fill_texts(tuple(strings.get(name, "") for name, _, _ in layout.STRINGS))
    for look in looks:
        image.fill_look(look)
    return bytes(image.sealed())


@lru_cache(maxsize=64)
def fitting(text: str, size: int) -> bytes:
    """UTF-8 of `text` in at most `size` bytes. What is too long ends in its checksum, so that two long names that
    begin alike stay two names."""
    raw = text.replace("\0", "?").encode("utf-8", "replace")
    if len(raw) <= size:
        return raw
    mark = b"~%08x" % crc32(raw)
    return raw[: size - len(mark)].decode("utf-8", "ignore").encode("utf-8") + mark
