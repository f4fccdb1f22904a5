"""What there is below the given paths: which files, of which kind, rank, node and look. Opens no file.

A bundle is known by its ranks/ or bundle.json; anything else is taken as torch, torchrun and people leave it, and the
kind of a file is then asked of its content ("guess").
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stallwatch.formats.outside_text import name_of

_MAXIMUM_FILES: Final = 200_000
_MAXIMUM_DEPTH: Final = 6
_LOOK: Final = r"(?:-(?P<look>[0-9]{1,3}))?"
# First match wins; below ranks/<rank>/.
_BUNDLE_FILES: Final = (
    ("description", "bundle.json"),
    ("incident", "incident.json"),
    ("timeline", "timeline.jsonl"),
)
_RANK_FILES: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("recorder", rf"flight_recorder.*?{_LOOK}\.(?:pickle|pkl|json)"),
        ("stacks", rf"stacks(?:\.child-[0-9]+)?{_LOOK}(?:\.error)?{_LOOK.replace('look', 'later')}\.json"),
        ("process", rf"process{_LOOK}\.json"),
        ("profile", rf"profile(?:\.child-[0-9]+)?{_LOOK}\.txt"),
        ("usage", rf"usage{_LOOK}\.json"),
        ("heartbeat", rf"heartbeat{_LOOK}\.json"),
        ("scene", rf"scene{_LOOK}\.json"),
        ("attempts", r"attempts\.json"),
        ("sources", rf"sources{_LOOK}\.json"),
        ("log", rf"(?:log|stdout|stderr){_LOOK}\.(?:txt|log)"),
    )
)
_NODE_FILES: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("gpus", rf"gpus{_LOOK}\.json"),
        ("ras", rf"nccl_ras(?:\.[0-9]+)?{_LOOK}\.(?:json|txt)"),
        ("kernel_log", rf"(?:kernel_log|dmesg|kern){_LOOK}\.(?:txt|log)"),
    )
)
# Elsewhere: names that may hold dumps or logs. A checkpoint beside them is not opened.
_SUFFIXES: Final = frozenset(("", ".pickle", ".pkl", ".json", ".log", ".txt", ".out", ".err"))
# Logs of schedulers, rotated and packed ones: slurm-7.out, stderr.log.1, job.o7 (PBS, SGE), train.log.gz.
_OF_LOGS: Final = re.compile(r"(?:\.(?:log|out|err|txt)(?:\.\d+)?|\.[eo]\d+|^std(?:out|err))(?:\.(?:gz|bz2|xz))?$")
_OF_TORCHRUN: Final = re.compile(r"attempt_\d+/\d+/std(?:out|err)\.log(?:\.(?:gz|bz2|xz))?$")
_NUMBERED_SUFFIXES: Final = frozenset((".pt2", ".h5", ".hdf5", ".bz2", ".mp3", ".mp4", ".md5", ".sha1", ".sha256"))
_PACKED: Final = frozenset((".gz", ".bz2", ".xz", ".zst", ".zip", ".tgz"))
_NAMED_RANK: Final = re.compile(r"rank[_.=-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_FINAL_NUMBER: Final = re.compile(r"([0-9]{1,6})$")


class Found(NamedTuple):
    """A file of an incident, by what it is and whose."""

    kind: str
    path: Path
    source: str  # as people see it: below the path that they gave
    bundle: str  # the bundle's folder; "" outside of every bundle
    rank: int | None
    host: str | None
    look: int
    size_bytes: int
    rank_by_number: bool = False  # the rank is only a number at the end of the name: good for a dump, not for a log


class Survey(NamedTuple):
    """The files that were found, and a sentence for each that cannot be."""

    files: tuple[Found, ...]
    problems: tuple[str, ...]


def survey(paths: Sequence[Path]) -> Survey:
    """List what is below `paths`, in an order that does not depend on theirs. Missing ones are problems."""
    found: dict[Path, Found] = {}
    problems: list[str] = []
    roots: set[Path] = set()
    for path in paths:
        try:
            roots.add(path.resolve(strict=True))
        except (OSError, RuntimeError) as error:
            problems.append(f"{readable(str(path))}: {_reason(error)}")
    # A folder before what is named below it: what a file is, is told by where it lies.
    for root in sorted(roots):
        walk = _Walk(root, problems)
        for file in walk.files():
            found.setdefault(file.path, file)
    return Survey(
        tuple(sorted(_told_apart(tuple(found.values())), key=lambda file: (file.source, file.path))),
        tuple(sorted(problems)),
    )


class _Walk:
    def __init__(self, root: Path, problems: list[str]) -> None:
        self._root = root
        self._problems = problems
        self._left = _MAXIMUM_FILES

    def files(self) -> Iterator[Found]:
        if os.path.isdir(self._root):
            yield from self._folder(self._root, 0)
        else:
            yield from self._loose([self._root])

    def _folder(self, folder: Path, depth: int) -> Iterator[Found]:
        entries = self._list(folder)
        names = {entry.name for entry in entries}
        if "bundle.json" in names or "ranks" in names:
            yield from self._bundle(folder)
            return
        yield from self._loose([entry for entry in entries if not os.path.isdir(entry)])
        if depth < _MAXIMUM_DEPTH:
            for entry in entries:
                if os.path.isdir(entry) and not os.path.islink(entry) and not entry.name.startswith("."):
                    yield from self._folder(entry, depth + 1)

    def _bundle(self, folder: Path) -> Iterator[Found]:
        name = str(folder)
        for kind, file_name in _BUNDLE_FILES:
            if os.path.lexists(folder / file_name):
                yield from self._found(kind, folder / file_name, name)
        for rank_folder in self._list(folder / "ranks"):
            if not rank_folder.name.isdecimal() or len(rank_folder.name) > 6:
                self._problems.append(f"{self._source(rank_folder)}: its name is not a rank")
                continue
            for file in self._list(rank_folder):
                self._say_packed(file)
                for kind, match in _matches(_RANK_FILES, file.name):
                    groups = match.groupdict()
                    look = int(groups.get("look") or groups.get("later") or 1)
                    yield from self._found(kind, file, name, rank=int(rank_folder.name), look=look)
        for node_folder in self._list(folder / "nodes"):
            for file in self._list(node_folder):
                for kind, match in _matches(_NODE_FILES, file.name):
                    yield from self._found(
                        kind, file, name, host=readable(node_folder.name), look=int(match["look"] or 1)
                    )

    def _loose(self, files: Sequence[Path]) -> Iterator[Found]:
        for file in files:
            suffix = file.suffix.lower()
            if suffix not in _SUFFIXES and _FINAL_NUMBER.search(suffix) and suffix not in _NUMBERED_SUFFIXES:
                suffix = ""  # a prefix with a dot in it, and the rank
            if of_log := _OF_LOGS.search(file.name):
                suffix = of_log[0]
            elif file != self._root:
                self._say_packed(file)
            if file.name.startswith(".") or (suffix not in _SUFFIXES and not of_log and file != self._root):
                continue
            stem = file.name.removesuffix(suffix) if suffix else file.name
            named, final = _NAMED_RANK.search(stem), _FINAL_NUMBER.search(stem)
            folder = file.parent.name  # torchrun's logs: <run>/attempt_0/<rank>/stdout.log
            if named or final:
                match = named or final
                assert match is not None
                yield from self._found("guess", file, "", rank=int(match[1]), rank_by_number=named is None)
            else:
                rank = int(folder) if folder.isdecimal() and len(folder) <= 6 and file != self._root else None
                yield from self._found("guess", file, "", rank=rank)

    def _found(
        self,
        kind: str,
        path: Path,
        bundle: str,
        rank: int | None = None,
        host: str | None = None,
        look: int = 1,
        rank_by_number: bool = False,
    ) -> Iterator[Found]:
        try:
            status = path.lstat()
        except OSError as error:
            self._problems.append(f"{self._source(path)}: {_reason(error)}")
            return
        if not stat.S_ISREG(status.st_mode):
            what = "a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "not a regular file"
            self._problems.append(f"{self._source(path)}: it is {what}")
            return
        if self._left == 0:
            self._problems.append(f"{self._source(path)} and what follows: only {_MAXIMUM_FILES} files are read")
        self._left -= 1
        if self._left >= 0:
            yield Found(kind, path, self._source(path), bundle, rank, host, look, status.st_size, rank_by_number)

    def _say_packed(self, file: Path) -> None:
        if file.suffix.lower() in _PACKED:
            self._problems.append(f"{self._source(file)}: it is compressed, and not read: unpack it first")

    def _list(self, folder: Path) -> list[Path]:
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._problems.append(f"{self._source(folder)}: {_reason(error)}")
            return []

    def _source(self, path: Path) -> str:
        if path != self._root:
            return readable(str(path.relative_to(self._root)))
        # torchrun's folders tell attempt and local rank.
        return readable("/".join(path.parts[-3:]) if _OF_TORCHRUN.search(str(path)) else path.name)


def _told_apart(files: Sequence[Found]) -> list[Found]:
    """Files of one name in different folders get as much of their path as tells them apart."""
    named: dict[str, list[Found]] = {}
    for file in files:
        named.setdefault(file.source, []).append(file)
    apart: list[Found] = []
    for same in named.values():
        depth = len(Path(same[0].source).parts)
        while len(same) > 1 and len({file.path.parts[-depth:] for file in same}) < len(same):
            depth += 1
        apart += (
            same if len(same) == 1 else [f._replace(source=readable("/".join(f.path.parts[-depth:]))) for f in same]
        )
    return apart


def readable(name: str) -> str:
    """A file's name as text that can be printed and written: names are bytes, and need not be UTF-8."""
    return name_of(os.fsencode(name))


def _matches(table: Sequence[tuple[str, re.Pattern[str]]], name: str) -> Iterator[tuple[str, re.Match[str]]]:
    for kind, pattern in table:
        if match := pattern.fullmatch(name):
            yield kind, match
            return


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
