"""Phrases that sentences are made of: ranks, places in code, groups."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.frames.code_origin import code_origin, function, job_frame_index
from stallwatch.diagnosis.logs.consequence import is_passed_on
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import CulpritProcess, Frame, GroupRef, Verdict, Where

_PATH_LIMIT = 48
_SOURCE_LIMIT = 70
_BEFORE_COMMENT = re.compile(r"""((?:[^#'"]|'[^']*'|"[^"]*")+) #""")

# What a rank does, where only `where` is known.
DOING: dict[Where, str] = {
    "user_code": "is in the job's own code",
    "busy_loop": "computes on the CPU",
    "lock": "waits for a lock",
    "gil": "holds the GIL in a call that does not give it back",
    "dataloader": "waits for its data loader",
    "checkpoint": "reads or writes a checkpoint",
    "filesystem": "waits for the file system",
    "store": "waits for the store",
    "socket": "waits for the network",
    "init": "creates a process group, which other ranks must join",
    "compile": "compiles its model",
    "gpu_sync": "waits for its GPU",
    "collective": "waits in another collective",
    "teardown": "is ending",
    "unknown": "",
}


def shorten(text: str | None, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def format_location(frame: Frame | None) -> str:
    """ "train.py:92 in train_step (`x = next(it)`)", or "" for no frame."""
    if frame is None:
        return ""
    file = frame.file if len(frame.file) <= _PATH_LIMIT else "…/" + "/".join(frame.file.split("/")[-2:])
    function = frame.function.rpartition("<locals>.")[2]
    inside = "" if function in ("<module>", "") else f" in {function}"
    code = _without_comment(" ".join((frame.source or "").split()))
    source = f" (`{shorten(code, _SOURCE_LIMIT)}`)" if code else ""
    return f"{file}:{frame.line}{inside}{source}"


def _without_comment(line: str) -> str:
    """A sentence has room for the code; what is said beside it stands in the file."""
    match = _BEFORE_COMMENT.match(line)
    return match[1] if match else line


def frame_of(site: str) -> Frame | None:
    """The frame that a recorder's call site ("file:line function") names, if it names one."""
    file, _, rest = site.rpartition(":")
    line, _, function = rest.partition(" ")
    return Frame(file, int(line), function) if line.isdecimal() else None


_PARALLEL = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("torch.distributed.fsdp", "FSDP"),
    ("torch.distributed._composable.fsdp", "FSDP"),
    ("deepspeed.runtime", "DeepSpeed"),
    ("megatron.core.distributed", "Megatron DDP"),
)
# What these call their own phases; what they name otherwise are the wrappers and hooks around them.
_PHASES = ("forward", "backward", "unshard", "reshard", "sync", "step", "reduce", "gather")


def parallel_call(frames: tuple[CodeFrame, ...]) -> str:
    """Given a stack, innermost first, return the call of DDP, FSDP or the like through which the job's own code came
    into a collective, "FSDP's pre_forward"; "" where it made that itself."""
    found = []
    for frame in frames[: job_frame_index(frames)]:
        module = code_origin(frame.filename).module
        who = next((who for name, who in _PARALLEL if module == name or module.startswith(f"{name}.")), None)
        if who is not None:
            found.append(f"{who}'s {function(frame.name).lstrip('_')}")
    telling = [call for call in found if any(phase in call.rpartition(" ")[2] for phase in _PHASES)]
    return (telling or found or [""])[-1]


def waiters(ranges: str, verb: str = "wait") -> str:
    """ "ranks 0-1,3 wait", "rank 0 waits"; without a verb only the ranks."""
    one = ranges.isdecimal()
    said = f" {verb}{'s' if one else ''}" if verb else ""
    return f"{'rank' if one else 'ranks'} {shorten(ranges, 60)}{said}"


def of_group(group: GroupRef | None) -> str:
    """ " of group dp", or "" for the default group, which every rank is in."""
    if group is None or group.description in ("", "default_pg", "0", "undefined"):
        return ""
    return f" of process group {shorten(group.description, 40)}"


class SentenceExtras(NamedTuple):
    """What a sentence says and a verdict has no field for."""

    site: str = ""  # "file:line function" where the culprits called what is wrong, if all of them called it there
    direct: str = ""  # rank ranges: those that wait in the operation that the verdict names
    also: str = ""  # those that wait for the culprits in another operation
    behind: str = ""  # and those that wait for these in turn, elsewhere
    steps_past: int | None = None  # steps that the culprits counted beyond those that wait for them
    apart: str = ""  # where the culprits meet, and where the others
    parts: tuple[tuple[str, str, str], ...] = ()  # who called what, where: ranks, call, place
    race: bool = False
    callers: tuple[tuple[int, str], ...] = ()  # of culprits that stand in a helper which the others are in: from where
    others_at: str = ""  # "called at …" or "standing at …": the line of those that wait in the operation of the verdict
    told: str = ""  # what a log says of the culprits
    paired: str = ""  # what did not fit has completed, and the waits are in later calls: in words
    unnamed: str = ""  # what is known of a culprit whose rank is not


NOTHING_ASIDE = SentenceExtras()
UNNAMED = "a rank that is not named"


class Culprits:
    """Who a verdict names, in words. Predicates are in the singular: many ranks become "each of ranks 4-5 …"."""

    def __init__(
        self, verdict: Verdict, activities: Mapping[int, RankActivity], aside: SentenceExtras = NOTHING_ASIDE
    ) -> None:
        self.aside = aside
        self.ranks = verdict.culprits
        self.single = len(self.ranks) <= 1
        self._verdict = verdict
        self._processes = {process.rank: process for process in verdict.culprit_processes}
        self._activities = activities
        self._callers = dict(aside.callers)

    @property
    def first(self) -> RankActivity | None:
        """What the first culprit does of whom anything is known."""
        return next((self._activities[rank] for rank in self.ranks if rank in self._activities), None)

    def short(self) -> str:
        """The culprits in two words: "rank 3", "ranks 0-2", or whom a log tells of without a rank."""
        if not self.ranks:
            return self.aside.unnamed or UNNAMED
        return f"{'rank' if self.single else 'ranks'} {rank_ranges(self.ranks)}"

    def who(self) -> str:
        """ "rank 2 (pid 11483 on node0)"; of many only the hosts."""
        if not self.ranks:
            return self.aside.unnamed or UNNAMED
        process = self._process(self.ranks[0])
        if self.single:
            parts = [
                f"pid {process.pid}" if process.pid is not None else "",
                f"on {process.host}" if process.host else "",
            ]
            told = " ".join(part for part in parts if part)
            if process.gpu_uuid:
                told = f"{told}, {process.gpu_uuid[:12]}" if told else process.gpu_uuid[:12]
        else:
            hosts = sorted({host for rank in self.ranks if (host := self._process(rank).host)})
            told = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} nodes" if hosts else ""
        return f"{self.short()} ({told})" if told else self.short()

    def doing(self, *, again: bool = False) -> str:
        """ "rank 2 (…) waits for a lock at train.py:141 in load", for each place; "" if unknown.

        `again`: the culprits were just named, so "it waits …".
        """
        places: dict[str, list[int]] = {}
        for rank in self.ranks:
            places.setdefault(self._predicate(rank), []).append(rank)
        places.pop("", None)
        if not places:
            return ""
        groups = sorted(places.items(), key=lambda item: (len(item[1]), item[1]))
        if len(groups) == 1 and len(groups[0][1]) == len(self.ranks):
            if self.single:
                return f"{'it' if again else self.who()} {groups[0][0]}"
            return f"each {'of them' if again else 'of ' + self.who()} {groups[0][0]}"
        said = [
            f"{'rank' if len(r) == 1 else 'each of ranks'} {rank_ranges(r)} {predicate}" for predicate, r in groups[:2]
        ]
        more = f", {len(groups) - 2} more elsewhere" if len(groups) > 2 else ""
        between = "; " if any(", while " in predicate for predicate, _ in groups[:2]) else " and "
        return between.join(said) + more

    def at(self, lead: str = " ") -> str:
        """ " at train.py:133 in step" of the first culprit whose line is known."""
        at = next((self._at(rank) for rank in self.ranks if self._frame(rank)), "")
        return f"{lead}at {at}" if at else ""

    def call_site(self, lead: str = " at ") -> str:
        """ " at train.py:133 in step" by the recorder, "" where it kept no call site."""
        frame = frame_of(self.aside.site)
        return f"{lead}{format_location(frame)}" if frame else ""

    def called(self) -> tuple[str, str]:
        """Where the first culprit called the operation, and where it stands now, if that is elsewhere.

        A rank under NCCL goes on after it launched, and one whose call paired with another one's went on to the next:
        the line where it stands is then not the line of the call.
        """
        rank = next((rank for rank in self.ranks if self._frame(rank)), None)
        if rank is None:
            return self.call_site(), ""
        frame, activity = self._frame(rank), self._activities.get(rank)
        recorded = frame_of(self.aside.site)
        is_there = recorded is None or frame is None or (recorded.file, recorded.line) == (frame.file, frame.line)
        stands_in_it = activity is not None and activity.call.in_collective and is_there and not self.aside.paired
        if activity is None or stands_in_it or frame != activity.place.frame:
            return f" at {self._at(rank)}", ""
        return self.call_site(), f"; {'it' if self.single else f'rank {rank}'} now {self._predicate(rank)}"

    def raised_at(self) -> str:
        """ " at file:line" where the exception was raised, "" where it is not known."""
        raised = self.first.exceptions.raised if self.first else None
        return f" at {format_location(raised.frame)}" if raised and raised.frame else ""

    def all_at_rendezvous(self) -> bool:
        """Whether everybody who was seen waits in init_process_group or for the store, and somebody was. Who makes a
        group in mid-training has found the others long ago."""
        seen = [activity for activity in self._activities.values() if activity.known]
        makes = any(function(frame.name) == "new_group" for activity in seen for frame in activity.place.stack)
        at_start = all(activity.place.in_store_or_init for activity in seen) and not makes
        return bool(seen and self._verdict.waiting) and at_start

    def followers_gone(self) -> str:
        """Ranks that ended with an exception which only tells that a peer was gone, or passes on a peer's."""
        gone = {
            rank: is_passed_on(activity.exceptions.text or "")
            for rank, activity in self._activities.items()
            if rank not in self.ranks and activity.end.gone and activity.exceptions.tell_of_a_peer
        }
        how = "were told of it" if all(gone.values()) else "lost the connection"
        return f"{waiters(rank_ranges(gone), verb='')} then {how} and ended too" if gone else ""

    def has(self) -> str:
        """The verb that agrees with them."""
        return "has" if self.single else "have"

    def it(self) -> str:
        """The pronoun as a subject."""
        return "it" if self.single else "they"

    def its(self) -> str:
        """The pronoun that possesses."""
        return "its" if self.single else "their"

    def them(self) -> str:
        """The pronoun as an object."""
        return "it" if self.single else "them"

    def _process(self, rank: int) -> CulpritProcess:
        process = self._processes.get(rank) or CulpritProcess(rank)
        activity = self._activities.get(rank)
        if activity is None:
            return process
        return CulpritProcess(
            rank,
            process.host or activity.host,
            process.pid if process.pid is not None else activity.pid,
            process.gpu_uuid,
            process.where or activity.place.where,
            process.frame or activity.place.frame,
        )

    def _frame(self, rank: int) -> Frame | None:
        return self._process(rank).frame

    def _at(self, rank: int) -> str:
        """Where it stands, and how it came there or went on where the others stand at that line, too."""
        at, caller = format_location(self._frame(rank)), self._callers.get(rank)
        return f"{at}, {caller}" if at and caller else at

    def _predicate(self, rank: int) -> str:
        process, activity = self._process(rank), self._activities.get(rank)
        same = activity is not None and activity.place.where == process.where
        doing = (activity.place.detail if activity and same else "") or DOING[process.where or "unknown"]
        at = self._at(rank)
        if not doing:
            return f"stands at {at}" if at else ""
        text = f"{doing} at {at}" if at else doing
        if activity and same and activity.place.polls:
            text += f", again and again in `{shorten(activity.place.polls, _SOURCE_LIMIT)}`"
        return text + (_helpers(activity) if activity else "")


def _helpers(activity: RankActivity) -> str:
    """Where its own threads and children stand on which its wait depends: ", while …"; "" where nothing shows."""
    said, helpers = [], activity.helpers
    if helpers.awaited and helpers.awaited.frame:
        doing, at = _at_work(helpers.awaited.detail), format_location(helpers.awaited.frame)
        which = "its executor's thread" if activity.place.where == "socket" else "that thread"
        said.append(f"{which} {doing} at {at}")
    if helpers.beside and helpers.beside.frame:
        doing, at = _at_work(helpers.beside.detail), format_location(helpers.beside.frame)
        said.append(f"its only other thread in the job's code {doing} at {at}")
    if helpers.stopped_child is not None:
        said.append(f"its child process {helpers.stopped_child} is stopped")
    elif helpers.child and helpers.child.frame:
        doing, at = _at_work(helpers.child.detail), format_location(helpers.child.frame)
        said.append(f"its child process {helpers.child.pid} {doing} at {at}")
    return f", while {' and '.join(said)}" if said else ""


def _at_work(detail: str) -> str:
    """What a helper does; of its own code the line that follows tells more."""
    return "is" if detail in ("", DOING["user_code"]) else detail
