"""Logs and source lines of ranks into their folders, each as its own user may read them; of ranks that are gone, the
log that was noted while they lived."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from stallwatch.captures.as_user import UserFilesRequest, Wanted, read_as_user
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.model.evidence import SHARED_LOG
from stallwatch.model.snapshot import Outputs, RankSample
from stallwatch.node.procfs import ProcessDirectory

User = tuple[int, int, tuple[int, ...]]  # uid, gid, groups


class Subject(NamedTuple):
    """A rank of whose files something is asked."""

    sample: RankSample
    gone: bool
    folder: Folder
    lines: list[tuple[str, int]]  # source lines that its stacks name


def readers(subjects: Iterable[Subject], seconds: float, look: Sequence[RankSample] = ()) -> list[Callable[[], None]]:
    """Return one function a user, each of which reads and writes for all ranks of that user. `look`: all ranks that are
    looked at, of whose files others may be read at another time."""
    by_user: dict[User, list[Subject]] = {}
    for subject in subjects:
        user = _user_of(subject)
        if user is not None:
            by_user.setdefault(user, []).append(subject)
    return [partial(_read, user, of_user, seconds, look) for user, of_user in by_user.items()]


def _user_of(subject: Subject) -> User | None:
    if subject.gone:
        outputs = subject.sample.outputs  # noted by the privileged side while the process lived
        return None if outputs is None else (outputs.uid, outputs.gid, outputs.groups)
    try:
        with ProcessDirectory(subject.sample.pid) as directory:
            status = directory.status()
    except (OSError, ValueError):
        return None
    return status.uids[0], status.gids[0], status.groups


def _read(user: User, subjects: Sequence[Subject], seconds: float, look: Sequence[RankSample]) -> None:
    asked_ns = time.monotonic_ns()
    wanted = tuple(
        Wanted(
            subject.sample.rank,
            subject.sample.pid,
            subject.sample.start_ticks,
            tuple(subject.lines),
            subject.sample.outputs.paths if subject.gone and subject.sample.outputs else None,
            subject.sample.outputs.mount_namespace if subject.sample.outputs else "",
        )
        for subject in subjects
    )
    living = tuple(subject.sample.pid for subject in subjects if not subject.gone)
    try:
        found = read_as_user(UserFilesRequest(*user, ranks=wanted, living=living), seconds)
    except (NotCaptured, OSError) as error:
        for subject in subjects:
            subject.folder.note("log", asked_ns, False, str(error))
        return
    folders = {subject.sample.rank: subject.folder for subject in subjects}
    writers = Counter(file for one in found for file in one.log_files)
    outputs = {sample.rank: sample.outputs for sample in (*look, *(subject.sample for subject in subjects))}
    unread = outputs.keys() - {one.rank for one in found if one.log_files}
    for one in found:
        folder = folders[one.rank]
        if one.log is not None:
            folder.write("log.txt", "".join(f"{line}\n" for line in one.log).encode(), of_look=False)
        several = any(writers[file] > 1 for file in one.log_files)
        beside = several or _writes_with(outputs[one.rank], [outputs[rank] for rank in unread - {one.rank}])
        shared = SHARED_LOG if beside else ""
        folder.note("log", asked_ns, one.log is not None, one.log_problem or shared)
        if one.sources:
            folder.write_json("sources.json", one.sources)
        folder.note("sources", asked_ns, not one.sources_problem, one.sources_problem)


def _writes_with(own: Outputs | None, others: Iterable[Outputs | None]) -> bool:
    """Whether a rank wrote, as was noted while it lived, where others did whose files could not be read or asked for
    beside its own: of those that die as they are looked at nothing is open any more. The lines of all would be this
    one's, and who was killed first would have written that a peer had gone."""
    return own is not None and any(
        other is not None and other.mount_namespace == own.mount_namespace and set(other.paths) & set(own.paths)
        for other in others
    )
