"""The names of records in a rank directory, which everybody may fill: listed a part at a time, kept by owner, and
looked at in turn within what each user may cost."""

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, zip_longest

from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat

# Of a look: real nodes have tens of names. A directory with more takes several looks to list.
MOST_ENTRIES = 16_384
# Records of one user that are kept in mind; a node has tens of ranks, and each may have spawned some that attach too.
MOST_KEPT_OF_USER = 4_096
# Of those the ones that are looked at in one look, beside the records of ranks that are followed: 3 µs each, and 150 µs
# where they have changed since. Part of it is for records that were never good: one of them may be a new rank's.
MOST_OF_USER = 256
MOST_IN_ALL = 1_024  # one user may have many uids (subuid(5)); 150 ms where all have changed
_FOR_NEW = 4
_STRIDE = 977  # a prime: whose turn is first
_MOST_EXCESS = 1 << 16
_MOST_FACTS = 4  # files of one process; it has one, and for a moment two
_FACTS = layout.facts_ends(0, 0)[1]
_CROWD_EVERY = 16  # looks: by then all that are kept have had their turn
# A file may change twice within one tick of its file system's clock: what is younger than this is read again.
SETTLED_NS = 2_000_000_000


class Record:
    """What is known of one name: whose it is, and what the last read of the file behind it brought."""

    __slots__ = ("complaint", "descriptor", "identity", "last", "rejected", "settled", "stamp", "torn", "uid")

    def __init__(self, status: os.stat_result) -> None:
        self.uid = status.st_uid
        self.identity = (status.st_dev, status.st_ino)
        self.stamp: tuple[int, ...] = ()  # of the file when it was read last
        self.settled = False  # it was old then: with the same stamp it is the same file still
        self.descriptor: int | None = None  # of a followed rank's, which is read all the time
        self.rejected = False
        self.last: Heartbeat | None = None
        self.torn = 0  # looks in a row that met a writer in mid-write
        self.complaint = ""  # how the last of them was

    @property
    def is_good(self) -> bool:
        """Whether it was read and nothing is wrong with it."""
        return self.last is not None and not self.rejected

    def is_unchanged(self, status: os.stat_result) -> bool:
        """Return whether the file is what was read last time; then there is no need to read it again."""
        stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        unchanged = self.settled and stamp == self.stamp
        self.stamp = stamp
        self.settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS
        return unchanged

    def close(self) -> None:
        """Close its file."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class RecordNames:
    """The records of one directory."""

    def __init__(self, directory: str, user: int | None = None) -> None:
        """`user`: whose records alone count; None: everybody's."""
        self._directory = directory
        self._user = user
        self._records: dict[str, Record] = {}
        self._of_user: dict[int, dict[str, Record]] = {}
        self._entries: os._ScandirIterator[str] | None = None
        self._identity: tuple[int, int] | None = None
        self._listed_at: tuple[int, int] = (0, 0)  # the directory's stamp when a whole listing began
        self._pass: Counter[int] = Counter()  # names in this listing by owner
        self._seen: set[str] = set()
        self._facts: dict[str, int] = {}  # names of facts files and their owners
        self._facts_seen: dict[str, int] = {}
        self._facts_pass: Counter[int] = Counter()
        self._facts_of: dict[tuple[str, int], dict[str, None]] = {}  # by record and owner
        self._excess: dict[str, int] = {}  # names that are not kept, and their owners
        self._share: dict[int, float] = {}  # of a user with too many names: how many of them are kept
        self._looks_since_turned = 0
        self._turn = 0
        self._chance = random.Random(0)  # noqa: S311 - a fair turn, no secret

    def list(self, descriptor: int) -> None:
        """Take in what the directory holds by now, or the next part of it. Raise OSError."""
        status = os.fstat(descriptor)
        if self._identity != (status.st_dev, status.st_ino):
            self.close()
            self._identity, self._listed_at = (status.st_dev, status.st_ino), (0, 0)
        if self._entries is None:
            stamp = (status.st_mtime_ns, status.st_ctime_ns)
            self._looks_since_turned += 1
            # Of a crowd others are kept now and then, though nothing has changed.
            turns = bool(self._share) and self._looks_since_turned >= _CROWD_EVERY
            if not turns and stamp == self._listed_at and time.time_ns() - max(stamp) > SETTLED_NS:
                return
            self._listed_at = stamp
            self._begin_listing(turns)
            self._entries = os.scandir(descriptor)
        for _ in range(MOST_ENTRIES):
            entry = next(self._entries, None)
            if entry is None:
                self.close()
                self._end_listing()
                return
            # Hooks write no other names; whatever else lies there is nobody's record, and not opened.
            if entry.name.endswith(".beat") and layout.parse_record_name(entry.name) is not None:
                self._take(descriptor, entry.name)
            elif entry.name.endswith(_FACTS) and (key := layout.parse_own_name(entry.name)) is not None:
                self._take_facts(descriptor, entry.name, layout.record_name(*key))

    def chosen(self, speaking: Collection[str]) -> Iterator[tuple[str, Record]]:
        """Yield the records to look at now: those of ranks that are followed, and of each user some others in turn."""
        self._turn += 1
        few = len(self._records) <= MOST_OF_USER
        others = []
        for records in list(self._of_user.values()):
            if few:
                yield from list(records.items())
                continue
            rest = []
            for name, record in records.items():
                if f"{self._directory}/{name}" in speaking:
                    yield name, record
                else:
                    rest.append((name, record))
            if len(rest) <= MOST_OF_USER:
                others.append(rest)
                continue
            good = [one for one in rest if one[1].is_good]
            new = [one for one in rest if not one[1].is_good]
            for_new = max(MOST_OF_USER // _FOR_NEW, MOST_OF_USER - len(good))
            others.append([*self._in_turn(good, MOST_OF_USER - for_new), *self._in_turn(new, for_new)])
        start = self._turn * _STRIDE % max(1, len(others))
        turns = zip_longest(*others[start:], *others[:start])
        yield from islice((one for turn in turns for one in turn if one is not None), MOST_IN_ALL)

    def crowds(self) -> Iterator[str]:
        """Yield a sentence for each user who has more records than are looked at."""
        for uid, records in self._of_user.items():
            if len(records) > MOST_OF_USER:
                count = max(len(records), self._pass[uid])
                who = f"{self._directory} holds {count} records of uid {uid}"
                yield f"{who}, of which {MOST_OF_USER} are read at a time"

    def renew(self, name: str, status: os.stat_result) -> Record:
        """The name is another file's by now: forget what was known of it."""
        self.forget(name)
        return self._keep(name, status)

    def forget(self, name: str) -> None:
        """Forget a record that is gone."""
        record = self._records.pop(name)
        record.close()
        del self._of_user[record.uid][name]
        if not self._of_user[record.uid]:
            del self._of_user[record.uid]

    def close(self) -> None:
        """End a listing that is under way."""
        if self._entries is not None:
            self._entries.close()
            self._entries = None

    def facts_of(self, name: str, uid: int) -> tuple[str, ...]:
        """Return the names of files that may be the facts of a record's process: called so, and of its user."""
        return tuple(self._facts_of.get((name, uid), ()))

    def find(self, name: str) -> Record | None:
        """The record of that name; None."""
        return self._records.get(name)

    def _take(self, descriptor: int, name: str) -> None:
        record = self._records.get(name)
        if record is not None:
            self._pass[record.uid] += 1
            self._seen.add(name)
            return
        if (uid := self._excess.get(name)) is not None:
            self._pass[uid] += 1
            return
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            uid = status.st_uid
            if self._user not in (None, uid):
                return
            self._pass[uid] += 1
            full = len(self._of_user.get(uid, ())) >= MOST_KEPT_OF_USER
            if not full and self._chance.random() < self._share.get(uid, 1.0):
                self._keep(name, status)
                self._seen.add(name)
            elif len(self._excess) < _MOST_EXCESS:
                self._excess[name] = uid

    def _take_facts(self, descriptor: int, name: str, record: str) -> None:
        uid = self._facts.get(name)
        with contextlib.suppress(OSError):
            uid = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid if uid is None else uid
        if uid is None or self._facts_pass[uid] >= MOST_KEPT_OF_USER:
            return
        self._facts_pass[uid] += 1
        self._facts_seen[name] = uid
        known = self._facts_of.setdefault((record, uid), {})
        if len(known) < _MOST_FACTS:
            known[name] = None

    def _keep(self, name: str, status: os.stat_result) -> Record:
        record = self._records[name] = self._of_user.setdefault(status.st_uid, {})[name] = Record(status)
        return record

    def _begin_listing(self, turns: bool) -> None:
        """If it is their turn, keep other names than before of a user with too many, so that each has its day."""
        self._seen, self._pass = set(), Counter()
        self._facts_seen, self._facts_pass = {}, Counter()
        if not turns:
            return
        self._looks_since_turned = 0
        self._excess.clear()
        for uid in self._share:
            for name in [name for name, record in self._of_user.get(uid, {}).items() if not record.is_good]:
                self.forget(name)

    def _end_listing(self) -> None:
        """Forget names that are gone."""
        for name in [name for name in self._records if name not in self._seen]:
            self.forget(name)
        self._facts = self._facts_seen
        for key, names in list(self._facts_of.items()):
            for name in [name for name in names if name not in self._facts]:
                del names[name]
            if not names:
                del self._facts_of[key]
        self._share = {uid: MOST_KEPT_OF_USER / count for uid, count in self._pass.items() if count > MOST_KEPT_OF_USER}

    def _in_turn(self, records: Sequence[tuple[str, Record]], count: int) -> Iterator[tuple[str, Record]]:
        if count > 0 and records:
            start = self._turn * count % len(records)
            yield from (*records[start:], *records[:start])[:count]
