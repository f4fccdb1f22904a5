"""The record of one process, byte by byte: the only definition, used by the writer in training and by every reader.

A record is RECORD_BYTES long, little-endian, and always written whole:

    words     128 × 8 bytes, named in WORDS, append only; -1 is "unknown"
    ring       64 × 8 bytes, CLOCK_MONOTONIC of step n at n % 64
    groups    128 × 4 words: recorder, pg_id, enqueued, completed
    strings   UTF-8, NUL padded, named in STRINGS, append only
    looks       8 × 7 words, named in Look: look n at n % 8; number 0 is "none yet"

A word added in version v carries `since` v: a reader takes VERSION and the one before, and gives a default to what the
older writer did not know. A reader may meet a writer in mid-write; the checksum tells, and it reads again (TornRecord).
Standard library only, Python 3.9+: the daemon imports this module and nothing else of the hook.
"""

import os
import re
import struct
from binascii import crc32
from typing import NamedTuple, Optional, Union

MAGIC = int.from_bytes(b"STALLWCH", "little")
VERSION = 2
READABLE_VERSIONS = tuple(range(max(1, VERSION - 1), VERSION + 1))

WORD_CAPACITY = 128
RING_SLOTS = 64  # a power of two: the step's slot is a mask
GROUP_CAPACITY = 128
LOOK_SLOTS = 8
# How often a record is published, and how old a reader's view may be; no usual step is a part or a multiple of it.
PUBLISH_NS = 257_750_000
UNKNOWN = -1
REQUESTS = ".daemon"  # the daemon's own folder in a rank directory
RECORDERS = ("nccl", "gloo")  # the word "recorder" of a group is an index into this; append only

# (name, version that brought it). A word's place is its place in this table: append, never insert.
WORDS = (
    ("magic", 1),
    ("version", 1),
    ("checksum", 1),  # CRC-32 of the whole record with this word 0
    ("pid", 1),  # in the writer's own PID namespace
    ("start_ticks", 1),  # field 22 of /proc/<pid>/stat
    ("pid_namespace", 1),  # inode of /proc/<pid>/ns/pid
    ("rank", 1),
    ("local_rank", 1),
    ("world_size", 1),
    ("restart_count", 1),
    ("is_child", 1),
    ("notify", 1),
    ("step", 1),  # -1: nobody counts steps
    ("phase_since_ns", 1),
    ("pulse_count", 1),
    ("pulse_ns", 1),
    ("dump_started_ns", 1),  # 0: no dump in progress
    ("answered_request", 1),
    ("ended", 1),
    ("exit_code", 1),
    ("ended_ns", 1),
    ("group_count", 1),
    ("groups_dropped", 1),  # groups for which there was no room
    ("attached_ns", 1),
    ("errors", 1),  # what the hook swallowed
    # The thread that steps; where nobody counts steps, the main thread.
    ("training_ident", 2),  # Python's: recorders and stacks carry the same number
    ("training_tid", 2),  # the kernel's, in the writer's own PID namespace
    ("frame_changes", 2),  # how often the pulse saw its Python frames changed
    ("refused_errno", 2),  # why the last answer could not be left; 0: it could
)

# (name, bytes, version that brought it).
STRINGS = (
    ("phase", 96, 1),
    ("node", 128, 1),
    ("training_job", 256, 1),
    ("epoch", 256, 1),
    ("exception", 96, 1),
)

WORD = {name: index for index, (name, _) in enumerate(WORDS)}
RING_OFFSET = WORD_CAPACITY * 8
GROUP_OFFSET = RING_OFFSET + RING_SLOTS * 8
STRING_OFFSET = GROUP_OFFSET + GROUP_CAPACITY * 32
RECORD_BYTES = 8192
LOOK_OFFSET = RECORD_BYTES - LOOK_SLOTS * 56  # at the end: strings may be appended

_ALL_WORDS = struct.Struct(f"<{len(WORDS)}q")
_ALL_SLOTS = struct.Struct(f"<{RING_SLOTS}q")
_LOOK = struct.Struct("<7q")


class LayoutError(ValueError):
    """These bytes are no record that this reader understands; the text says why and what to do."""


class TornRecord(LayoutError):
    """The record was read while it was written: read it again."""


class Look(NamedTuple):
    """What one rank had enqueued and completed at a moment that the processes of a node have in common."""

    number: int  # of the moment: looks of one number belong together
    at_ns: int  # CLOCK_MONOTONIC
    step: int  # -1: nobody counts steps
    nccl_enqueued: int  # over all groups of that recorder
    nccl_completed: int
    gloo_enqueued: int
    gloo_completed: int


class Record(NamedTuple):
    """A decoded record. Times are CLOCK_MONOTONIC nanoseconds of the node, None is "never" or "not known"."""

    pid: int
    start_ticks: int
    pid_namespace: int
    rank: int
    local_rank: int
    world_size: int
    node: str
    training_job: str
    epoch: str
    restart_count: int
    is_child: bool
    notify: bool
    step: Optional[int]
    last_step_ns: Optional[int]
    step_durations_ns: tuple[int, ...]  # newest last
    phase: str
    phase_since_ns: int
    pulse_count: int
    pulse_ns: int
    dump_started_ns: Optional[int]
    answered_request: int
    ended: bool
    exit_code: Optional[int]
    ended_ns: Optional[int]
    groups: tuple[tuple[str, int, int, int], ...]  # recorder, pg_id, enqueued, completed
    groups_dropped: int
    attached_ns: int
    exception: str  # type of the uncaught exception that is ending the process
    errors: int
    looks: tuple[Look, ...]  # oldest first
    training_ident: Optional[int]  # None: a hook of version 1, or no such thread
    training_tid: Optional[int]
    frame_changes: Optional[int]
    refused_errno: int = 0  # of the answer to the last request: the directory is full, or closed to its process


def encode(
    words: "dict[str, int]",
    ring: "tuple[int, ...]",
    groups: "tuple[tuple[str, int, int, int], ...]",
    strings: "dict[str, str]",
    looks: "tuple[Look, ...]" = (),
) -> bytes:
    """Given the words by name (magic, version, checksum and group counts are filled in here), return a whole record."""
    kept = groups[:GROUP_CAPACITY]
    filled = {
        "refused_errno": 0,
        **words,
        "magic": MAGIC,
        "version": VERSION,
        "checksum": 0,
        "group_count": len(kept),
        "groups_dropped": len(groups) - len(kept),
    }
    image = bytearray(RECORD_BYTES)
    _ALL_WORDS.pack_into(image, 0, *(filled.get(name, UNKNOWN) for name, _ in WORDS))
    _ALL_SLOTS.pack_into(image, RING_OFFSET, *ring)
    for index, (recorder, pg_id, enqueued, completed) in enumerate(kept):
        struct.pack_into("<4q", image, GROUP_OFFSET + index * 32, RECORDERS.index(recorder), pg_id, enqueued, completed)
    offset = STRING_OFFSET
    for name, size, _ in STRINGS:
        text = fitting(strings.get(name, ""), size)
        image[offset : offset + len(text)] = text
        offset += size
    for look in looks:
        _LOOK.pack_into(image, LOOK_OFFSET + look.number % LOOK_SLOTS * _LOOK.size, *look)
    struct.pack_into("<q", image, WORD["checksum"] * 8, crc32(image))
    return bytes(image)


def decode(data: bytes) -> Record:
    """Given the bytes of a record, return its values. Raise LayoutError with a sentence, TornRecord when a second
    read will do."""
    if len(data) < RECORD_BYTES:
        raise LayoutError(f"{len(data)} bytes are no record of {RECORD_BYTES}: it was truncated, or is none")
    data = data[:RECORD_BYTES]
    magic, version, checksum = struct.unpack_from("<3q", data)
    if magic == 0:
        raise TornRecord("the record is still empty: its process has not written it yet")
    if magic != MAGIC:
        raise LayoutError("not a record of stallwatch: its first bytes are foreign")
    if version not in READABLE_VERSIONS:
        raise LayoutError(
            f"the record has version {version}, this reader takes {READABLE_VERSIONS[0]} to {VERSION}: "
            "bring stallwatch in training and on the node to neighbouring versions"
        )
    place = WORD["checksum"] * 8
    if crc32(data[:place] + bytes(8) + data[place + 8 :]) != checksum:
        raise TornRecord("the record's checksum is wrong: it is being written, or was damaged")
    return _values(data, version)


def writer_of(head: bytes) -> "Optional[tuple[int, int, int]]":
    """Given the first 64 bytes of a record, return pid, start ticks and pid namespace of its writer, whatever its
    checksum says; None when these bytes begin no record."""
    if len(head) < 64 or struct.unpack_from("<q", head)[0] != MAGIC:
        return None
    pid, start_ticks, pid_namespace = struct.unpack_from("<3q", head, WORD["pid"] * 8)
    return pid, start_ticks, pid_namespace


def _values(data: bytes, version: int) -> Record:
    values = _ALL_WORDS.unpack_from(data)
    word = {name: value if since <= version else UNKNOWN for (name, since), value in zip(WORDS, values)}
    text = _texts(data, version)
    count = word["group_count"]
    if not 0 <= count <= GROUP_CAPACITY:
        raise LayoutError(f"the record counts {count} process groups and has room for {GROUP_CAPACITY}: damaged")
    ended = word["ended"] == 1
    step = word["step"]
    times = _step_times(_ALL_SLOTS.unpack_from(data, RING_OFFSET), step)
    return Record(
        pid=word["pid"],
        start_ticks=word["start_ticks"],
        pid_namespace=word["pid_namespace"],
        rank=word["rank"],
        local_rank=word["local_rank"],
        world_size=word["world_size"],
        node=text["node"],
        training_job=text["training_job"],
        epoch=text["epoch"],
        restart_count=word["restart_count"],
        is_child=word["is_child"] == 1,
        notify=word["notify"] != 0,
        step=step if step >= 0 else None,
        last_step_ns=times[-1] if times else None,
        step_durations_ns=tuple(after - before for before, after in zip(times, times[1:])),
        phase=text["phase"],
        phase_since_ns=word["phase_since_ns"],
        pulse_count=word["pulse_count"],
        pulse_ns=word["pulse_ns"],
        dump_started_ns=word["dump_started_ns"] if word["dump_started_ns"] > 0 else None,
        answered_request=word["answered_request"],
        ended=ended,
        exit_code=word["exit_code"] if ended and word["exit_code"] >= 0 else None,
        ended_ns=word["ended_ns"] if ended else None,
        groups=tuple(_group(data, index) for index in range(count)),
        groups_dropped=max(0, word["groups_dropped"]),
        attached_ns=word["attached_ns"],
        exception=text["exception"],
        errors=max(0, word["errors"]),
        looks=_looks(data),
        training_ident=_known(word["training_ident"]),
        training_tid=_known(word["training_tid"]),
        frame_changes=_known(word["frame_changes"]),
        refused_errno=max(0, word["refused_errno"]),
    )


def _known(word: int) -> Optional[int]:
    return word if word >= 0 else None


def _step_times(ring: "tuple[int, ...]", step: int) -> "list[int]":
    """Times of the recent steps, oldest first. One slot less than the ring has: the writer may be filling the next."""
    first = max(1, step - (RING_SLOTS - 2))
    times = [ring[number % RING_SLOTS] for number in range(first, step + 1)]
    newest_run = len(times)
    while newest_run > 1 and 0 < times[newest_run - 2] <= times[newest_run - 1]:
        newest_run -= 1
    return times[max(0, newest_run - 1) :]


def _group(data: bytes, index: int) -> "tuple[str, int, int, int]":
    recorder, pg_id, enqueued, completed = struct.unpack_from("<4q", data, GROUP_OFFSET + index * 32)
    if not 0 <= recorder < len(RECORDERS):
        raise LayoutError(f"the record names recorder {recorder}, which this reader does not know: damaged or newer")
    return RECORDERS[recorder], pg_id, enqueued, completed


def _looks(data: bytes) -> "tuple[Look, ...]":
    # A record of a writer that knew of no looks has zeros there.
    area = data[LOOK_OFFSET : LOOK_OFFSET + LOOK_SLOTS * _LOOK.size]
    return tuple(sorted(Look(*values) for values in _LOOK.iter_unpack(area) if values[0] > 0))


def _texts(data: bytes, version: int) -> "dict[str, str]":
    texts = {}
    offset = STRING_OFFSET
    for name, size, since in STRINGS:
        raw = data[offset : offset + size].split(b"\0", 1)[0]
        texts[name] = raw.decode("utf-8", "replace") if since <= version else ""
        offset += size
    return texts


def fitting(text: str, size: int) -> bytes:
    """UTF-8 of `text` in at most `size` bytes. What is too long ends in its checksum, so that two long names that
    begin alike stay two names."""
    raw = text.replace("\0", "?").encode("utf-8", "replace")
    if len(raw) <= size:
        return raw
    mark = b"~%08x" % crc32(raw)
    return raw[: size - len(mark)].decode("utf-8", "ignore").encode("utf-8") + mark


# The directory is open to all, and rank and pid can be foreseen: 64 random bits cannot, so that nobody can hold a name
# before its process makes the file. Hooks of before have names without.
_MARK = "[0-9a-f]{16}"
_KEY = "[0-9]{1,20}(?:-" + _MARK + ")?"
_RECORD = re.compile("rank-([0-9]{1,10})-(" + _KEY + r")\.beat", re.ASCII)
_OWN = re.compile("rank-([0-9]{1,10})-(" + _KEY + r")\.(?:[0-9a-z_]{1,40}\.){0,4}(?:beat|json|dump|tmp)", re.ASCII)
_MARKED = re.compile(r"(?:" + _MARK + r"\.)?", re.ASCII)


def new_mark() -> str:
    """What nobody can foresee of a file's name."""
    return os.urandom(8).hex()


def record_name(rank: int, key: "Union[int, str]") -> str:
    """Return the file name of a rank's record, as parse_record_name reads it."""
    return f"rank-{rank}-{key}.beat"


def parse_record_name(name: str) -> "Optional[tuple[int, str]]":
    """Rank and key of a record's file name; None for every other name. The key is that of the process' other files
    too. It begins with the pid, for people: the pid to trust is in the record."""
    match = _RECORD.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def parse_own_name(name: str) -> "Optional[tuple[int, str]]":
    """The same of the name of any file that a hook makes."""
    match = _OWN.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def facts_name(rank: int, key: "Union[int, str]", mark: str = "") -> str:
    """Return the file name of a rank's facts; `mark` stands before its last part, for a name of its own."""
    return _with_mark(facts_ends(rank, key), mark)


def facts_ends(rank: int, key: "Union[int, str]") -> "tuple[str, str]":
    """How the name of a facts file begins and ends; a mark is between (is_between)."""
    return f"rank-{rank}-{key}.", "facts.json"


def temporary_name(name: str, mark: str) -> str:
    """What a file is called while it is written; `name` is the one that it gets."""
    return f"{name.partition('.')[0]}.{mark}.tmp"


def answer_name(rank: int, key: "Union[int, str]", request_id: int, recorder: str, mark: str = "") -> str:
    """Return the file name of one recorder's answer to a request; `mark` as of facts_name."""
    return _with_mark(answer_ends(rank, key, request_id, recorder), mark)


def answer_ends(rank: int, key: "Union[int, str]", request_id: int, recorder: str) -> "tuple[str, str]":
    """As facts_ends, of an answer."""
    return f"rank-{rank}-{key}.{request_id}.", f"{recorder}.dump"


def is_between(name: str, ends: "tuple[str, str]") -> bool:
    """Whether a name begins and ends so, with a mark or nothing between."""
    begin, end = ends
    if len(name) < len(begin) + len(end) or not (name.startswith(begin) and name.endswith(end)):
        return False
    return _MARKED.fullmatch(name, len(begin), len(name) - len(end)) is not None


def _with_mark(ends: "tuple[str, str]", mark: str) -> str:
    return ends[0] + (mark + "." if mark else "") + ends[1]


def request_path(directory: str, rank: int, key: "Union[int, str]") -> str:
    """Where the daemon leaves a dump request: in a folder of its own, where only it can write."""
    return f"{directory}/{REQUESTS}/{request_name(rank, key)}"


def request_name(rank: int, key: "Union[int, str]") -> str:
    """Return the file name under which the daemon asks this rank for a dump."""
    return f"{rank}-{key}.request"
