"""A shared directory as meeting place, for sites that have nothing else: O_EXCL and rename are what it rests on.

    .home
    .nodes/<key>/<node>
    <key>/<job>/<ordinal>/opened  closed  members/<node>  summaries/<node>  claim.<generation>  beat.<generation>
    <key>/<job>/<ordinal>/told  report
    <key>/.orders/<name>

No node's clock is compared with another's: that a claim's counter stands, a watcher sees by its own clock; how old a
file is, by a file that it has just written there itself.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from stallwatch.fleet.directory_guests import greet_in
from stallwatch.fleet.directory_home import HOME, SharedRoot, found_home, same_home
from stallwatch.fleet.place import (
    CLAIM_SECONDS,
    DESERTED_SECONDS,
    KEPT_SECONDS,
    LEFT_SECONDS,
    MOST_ORDERS,
    Board,
    Dated,
    Guest,
    Key,
    Kind,
    Life,
    PlaceProblem,
    Published,
    Standing,
    Turn,
    Turned,
    is_of_another,
    step_by_step,
)
from stallwatch.fleet.shared_files import (
    changes_in,
    changes_of,
    create_file,
    modified_seconds,
    names_in,
    read_dated,
    read_file,
    read_or_nothing,
    replace_file,
    server_seconds,
)
from stallwatch.formats.outside_text import file_name_of

# What is no file of ours, and no fault of the file system.
_NO_FILE: Final = (errno.ENOENT, errno.EINVAL, errno.EISDIR, errno.ELOOP)
_ORDERS: Final = ".orders"  # no job's name begins with a dot
_OPENED: Final = "opened"
_NODES: Final = ".nodes"
_NO_KEY: Final = "none"
_TOUCH_SECONDS: Final = 5.0  # a part of LEFT_SECONDS
_MOST_TOUCHED: Final = 256
_UNNAMED: Final = "a node that has not said its name"
_ATTEMPTS: Final = 20  # to open the next incident while others do


class DirectoryPlace:
    """A meeting place in a shared directory."""

    def __init__(
        self,
        root: Path,
        monotonic: Callable[[], float] = time.monotonic,
        key: str = "",
        homes: dict[Path, SharedRoot] | None = None,
    ) -> None:
        """`key`: by which the key that is signed with is known; `homes`: which directory was found at each path before,
        to which this one is added when it is checked."""
        self._top = root
        self._homes = {} if homes is None else homes
        self._key = key
        self._root = root / key
        self._monotonic = monotonic
        self._beats: dict[tuple[Key, int], tuple[bytes, float]] = {}  # what a claim's counter was, since when
        self._counters: dict[tuple[Key, int], int] = {}
        self._touched: dict[tuple[Key, str], float] = {}  # when a node's file was made younger last
        self._claimed: dict[tuple[Key, int], str] = {}  # whose claim it is

    def check(self) -> None:
        """See that the folder is its user's alone, that a file cannot be created twice, and that it can be replaced.
        Raise PlaceProblem with what to do."""
        with self._problems():
            self._homes[self._top] = found_home(self._top, self._homes.get(self._top))
            self._root.mkdir(mode=0o700, exist_ok=True)
            probe = self._top / f".probe-{secrets.token_hex(8)}"
            try:
                create_file(probe, b"1")
                with contextlib.suppress(FileExistsError):
                    create_file(probe, b"2")
                    raise PlaceProblem(
                        f"{self._top}: a file that exists could be created again (O_EXCL)",
                        "This file system cannot keep two nodes from claiming one thing: take NFS 4, Lustre, or Redis.",
                    )
                replace_file(probe, b"3")
            finally:
                probe.unlink(missing_ok=True)

    def join(self, job: str, node: str, past: int = 0, life: Life | None = None) -> int:
        """The ordinal is a folder that is made with mkdir, which one node alone can do."""
        with self._problems():
            home = self._root / job
            home.mkdir(mode=0o700, exist_ok=True)
            for _ in range(_ATTEMPTS):
                ordinals = sorted(int(name) for name in os.listdir(home) if name.isdecimal() and int(name) > 0)
                if ordinals and self._is_open(home / str(ordinals[-1]), life):
                    key = Key(job, ordinals[-1])
                    self._touch(key, node)
                    return key.ordinal
                key = Key(job, max(past, *ordinals[-1:], 0) + 1)
                with contextlib.suppress(FileExistsError):  # another was faster: join that
                    self._folder(key).mkdir(mode=0o700)
                    create_file(self._folder(key) / _OPENED, b"")
                    self._tidy(home, key.ordinal)
                    self._touch(key, node)
                    return key.ordinal
        raise PlaceProblem(
            f"{self._root}: no incident of {job} could be opened", "Is it the same directory on all nodes?"
        )

    def put(self, key: Key, node: str, summary: bytes) -> None:
        """Replace this node's file by a rename: who reads sees the old or the new one whole."""
        with self._problems():
            folder = self._folder(key) / "summaries"
            for one in (folder.parent.parent, folder.parent, folder):
                one.mkdir(mode=0o700, exist_ok=True)
            replace_file(folder / _file_of(node), summary)

    def summaries(self, key: Key) -> dict[str, bytes]:
        """By file name, which is the node's name as far as a file may be called so; who it is its seal says."""
        with self._problems():
            return {name: data for name, (data, _) in self._put_there(key).items()}

    def dated_summaries(self, key: Key) -> Dated:
        """By the file server's clock. A file is asked for its age as it is read, and never again: of what a verdict
        over thousands of nodes takes, questions to a file server are what lasts."""
        with self._problems():
            found = self._put_there(key)
            now = server_seconds(self._root) if found else 0.0
            ages = {name: max(now - modified, 0.0) for name, (_, modified) in found.items()}
            return Dated({name: data for name, (data, _) in found.items()}, ages)

    def _put_there(self, key: Key) -> dict[str, tuple[bytes, float]]:
        """By file name what stands there, and when it was put. A node may leave meanwhile, and what is no file is
        nobody's word."""
        folder = self._folder(key) / "summaries"
        found = {}
        for name in names_in(folder):
            try:
                if not name.startswith("."):
                    found[name] = read_dated(folder / name)
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
        return found

    def look(self, key: Key, node: str, *, whole: bool) -> Board:
        """Touch this node's file and read what stands in the incident's folder."""
        with self._problems():
            folder = self._folder(key)
            if not folder.is_dir():
                return Board(member=False)
            self._touch(key, node)
            names = names_in(folder)
            generation = _last_claim(names)
            return Board(
                puts=changes_in(folder / "summaries") if whole else 0,
                holder=self._holder(key, generation) if generation else "",
                generation=generation,
                told=read_file(folder / "told") if "told" in names else b"",
                report_revision=changes_of(folder / "report") if "report" in names else 0,
                closed="closed" in names,
            )

    def turn(self, key: Key, node: str, turn: Turn) -> Turned:
        """Call by call: files have no scripts."""
        return step_by_step(self, key, node, turn)

    def claim(self, key: Key, node: str) -> int:
        """A claim is a file of the next generation, created with O_EXCL: of two nodes one succeeds."""
        with self._problems():
            generation = _last_claim(names_in(self._folder(key)))
            if generation and self._holder(key, generation):
                return 0
            try:
                create_file(self._folder(key) / f"claim.{generation + 1}", node.encode())
            except FileExistsError:
                return 0
            return generation + 1

    def renew(self, key: Key, node: str, generation: int) -> bool:
        """Change the counter in the claim's beat, unless a later claim was made: others see that it changes, whatever
        their clocks."""
        with self._problems():
            if _last_claim(names_in(self._folder(key))) != generation:
                return False
            counter = self._counters[key, generation] = self._counters.get((key, generation), 0) + 1
            replace_file(self._folder(key) / f"beat.{generation}", f"{secrets.token_hex(4)} {counter}".encode())
            return True

    def mark(self, key: Key, generation: int, kind: Kind, data: bytes) -> bool:
        """Replace the file of that kind unless a later claim was made; generation 0 only where there is none."""
        with self._problems():
            folder = self._folder(key)
            names = names_in(folder)
            if kind in names if generation == 0 else _last_claim(names) != generation:
                return False
            replace_file(folder / kind, data)
            return True

    def report(self, key: Key) -> Published:
        """Read the verdict, with how often it changed as its revision."""
        with self._problems():
            path = self._folder(key) / "report"
            if not path.exists():
                return Published()
            data, modified = read_dated(path)
            return Published(changes_of(path), data, max(server_seconds(self._root) - modified, 0.0))

    def close(self, key: Key) -> None:
        """Create the file that says so; nobody joins this ordinal again."""
        with self._problems(), contextlib.suppress(FileExistsError):
            create_file(self._folder(key) / "closed", b"")

    def leave(self, key: Key, node: str) -> None:
        """Remove this node's files; the last one closes it. Nothing of it is remembered here, whether the place answers
        or not."""
        self._touched.pop((key, node), None)
        claims: tuple[dict[tuple[Key, int], Any], ...] = (self._beats, self._counters, self._claimed)
        for of_claim in claims:
            for claim in [one for one in of_claim if one[0] == key]:
                del of_claim[claim]
        with self._problems():
            for folder in ("members", "summaries"):
                (self._folder(key) / folder / _file_of(node)).unlink(missing_ok=True)
            if not self._is_looked_at(self._folder(key), LEFT_SECONDS):
                self.close(key)

    def post(self, name: str, data: bytes, seconds: float, *, anew: bool) -> None:
        """Write it under its name with its seconds, by which readers leave it out once they are over. Raise
        PlaceProblem."""
        with self._problems():
            folder = self._root / _ORDERS
            folder.mkdir(mode=0o700, exist_ok=True)
            standing = {one.name for one in self._standing(folder)}
            if name in standing and not anew:
                return
            if name not in standing and len(standing) >= MOST_ORDERS:
                raise PlaceProblem(f"{folder}: {MOST_ORDERS} mutes and the like stand there", "Some must end first.")
            replace_file(folder / _file_of(name), f"{seconds:.0f}\n".encode() + data)

    def posted(self, known: str) -> tuple[str, list[Standing] | None]:
        """By how often the folder has changed; what has run out, by the file server's clock, is left out."""
        with self._problems():
            folder = self._root / _ORDERS
            changes = changes_in(folder)
            revision = f"directory{self._key}:{changes}" if changes else ""
            return (known, None) if revision == known and known else (revision, self._standing(folder))

    def greet(self, node: str, word: bytes, about: str = "") -> list[Guest]:
        """A file for each node, in the folder of its key."""
        file, asked = (_file_of(name) if name else "" for name in (node, about or node))
        with self._problems():
            guests = greet_in(self._top / _NODES, self._key or _NO_KEY, file, word, asked)
        return [one._replace(node=about or node) if one.node == asked else one for one in guests]

    def hang_up(self) -> None:
        """Nothing is held open."""

    def _standing(self, folder: Path) -> list[Standing]:
        """What has not run out, by the file server's clock; what has goes."""
        names = [name for name in names_in(folder) if not name.startswith(".")]
        found = []
        now = server_seconds(self._root) if names else 0.0
        for name in names:
            seconds, _, data = read_or_nothing(folder / name).partition(b"\n")
            left = modified_seconds(folder / name) + float(seconds) - now if seconds.isdigit() else 0.0
            if left > 0:
                found.append(Standing(name, data, left))
            else:
                (folder / name).unlink(missing_ok=True)
        return found

    def _folder(self, key: Key) -> Path:
        return self._root / key.job / str(key.ordinal)

    def _touch(self, key: Key, node: str) -> None:
        """That a node looks on, others see by the age of its file. Not at each look: of what a look asks a file server
        for, with thousands of nodes, changes are what costs."""
        now, path = self._monotonic(), self._folder(key) / "members" / _file_of(node)
        if now - self._touched.get((key, node), -_TOUCH_SECONDS) < _TOUCH_SECONDS:
            return
        try:
            os.utime(path)  # by the file server's clock
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(path, b"")
        while len(self._touched) >= _MOST_TOUCHED:
            del self._touched[next(iter(self._touched))]
        self._touched[key, node] = now

    def _holder(self, key: Key, generation: int) -> str:
        """Whose claim it is while its counter moves; "" once it has stood for as long as a claim is in force."""
        folder = self._folder(key)
        beat = read_or_nothing(folder / f"beat.{generation}")
        now = self._monotonic()
        before = self._beats.get((key, generation))
        if before is None or before[0] != beat:
            before = self._beats[key, generation] = (beat, now)
        if now - before[1] > CLAIM_SECONDS:
            return ""
        if not self._claimed.get((key, generation)):
            claim = read_or_nothing(folder / f"claim.{generation}")
            self._claimed[key, generation] = claim.decode("utf-8", "replace")
        # It is created first and written then, which a full disk does not allow: whose it is shows later, or never.
        return self._claimed[key, generation] or _UNNAMED

    def _is_open(self, folder: Path, life: Life | None) -> bool:
        if (folder / "closed").exists() or not self._is_looked_at(folder, DESERTED_SECONDS, folder.stat().st_mtime):
            return False
        # Who makes the folder makes this file next: where it is not there yet, it is a moment old.
        opened = modified_seconds(folder / _OPENED) if life is not None else 0.0
        age = server_seconds(self._root) - opened if opened else None
        return not is_of_another(life, age, attended=age is not None and self._is_looked_at(folder, LEFT_SECONDS))

    def _is_looked_at(self, folder: Path, seconds: float, since: float = 0.0) -> bool:
        """Whether a node has looked within this time, by the file server's clock. The first that has is enough: each
        node that joins asks this, and asked for the age of each other."""
        members, oldest = folder / "members", server_seconds(self._root) - seconds
        return since > oldest or any(modified_seconds(members / name) > oldest for name in names_in(members))

    def _tidy(self, home: Path, ordinal: int) -> None:
        """Remove what nobody reads any more: incidents before the last of this job, and jobs of yesterday."""
        now = server_seconds(self._root)
        for name in names_in(home):
            is_past = name.isdecimal() and int(name) < ordinal - 1
            if is_past and modified_seconds(home / name) < now - KEPT_SECONDS:
                shutil.rmtree(home / name, ignore_errors=True)
        # Of keys that are no longer signed with, and of jobs; what is in use is written to all the time.
        for folder in dict.fromkeys((self._top, self._root)):
            for name in names_in(folder):
                is_old = modified_seconds(folder / name) < now - 24 * KEPT_SECONDS
                if is_old and folder / name not in (home, self._root) and name not in (_ORDERS, _NODES, HOME):
                    shutil.rmtree(folder / name, ignore_errors=True)

    @contextlib.contextmanager
    def _problems(self) -> Iterator[None]:
        try:
            if (home := self._homes.get(self._top)) is not None:
                self._homes[self._top] = same_home(self._top, home)
            yield
        except OSError as error:
            what = f"{error.filename or self._root}: {error.strerror}"
            advice = (
                "It is full." if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Is it mounted, and ours to write?"
            )
            raise PlaceProblem(what, advice) from error


def _last_claim(names: list[str]) -> int:
    return max((int(name[6:]) for name in names if name.startswith("claim.") and name[6:].isdecimal()), default=0)


def _file_of(node: str) -> str:
    safe = file_name_of(node, 100)
    return safe if safe == node else f"{safe}-{hashlib.sha256(node.encode('utf-8', 'replace')).hexdigest()[:12]}"
