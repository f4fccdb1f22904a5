"""The record of one process, byte by byte: the only definition, used by the writer in training (publication.py) and by
every reader (node/heartbeat_file.py).

A record is RECORD_BYTES long, little-endian, and always written whole:

    words     128 × 8 bytes, named in WORDS, append only; -1 is "unknown"
    ring       64 × 8 bytes, CLOCK_MONOTONIC of step n at n % 64
    groups    128 × 4 words: recorder, pg_id, enqueued, completed
    strings   UTF-8, NUL padded, named in STRINGS, append only
    looks       8 × 7 words, named in CounterLook: look n at n % 8; number 0 is "none yet"

A word added in version v carries `since` v: a reader takes VERSION and the one before, and gives a default to what the
older writer did not know. A reader may meet a writer in mid-write; the checksum tells, and it reads again (TornRecord).
Standard library only, Python 3.9+: the daemon imports this module and nothing else of the hook.
"""

import os
import re
import struct
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
HEAD_BYTES = 64  # of the beginning, which say whose it is
_MAGIC = MAGIC.to_bytes(8, "little")
_WRITER = slice(WORD["pid"] * 8, WORD["pid_namespace"] * 8 + 8)
LOOK_OFFSET = RECORD_BYTES - LOOK_SLOTS * 56  # at the end: strings may be appended

ALL_WORDS = struct.Struct(f"<{len(WORDS)}q")
ALL_SLOTS = struct.Struct(f"<{RING_SLOTS}q")
ONE_GROUP = struct.Struct("<4q")
ONE_LOOK = struct.Struct("<7q")


class CounterLook(NamedTuple):
    """What one rank had enqueued and completed at a moment that the processes of a node have in common."""

    number: int  # of the moment: looks of one number belong together
    at_ns: int  # CLOCK_MONOTONIC
    step: int  # -1: nobody counts steps
    nccl_enqueued: int  # over all groups of that recorder
    nccl_completed: int
    gloo_enqueued: int
    gloo_completed: int


def writer_of(head: bytes) -> Optional[bytes]:
    """Given the first HEAD_BYTES of a record, return its words that name its writer (writer_words), whatever its
    checksum says; None when these bytes begin no record."""
    return head[_WRITER] if len(head) == HEAD_BYTES and head.startswith(_MAGIC) else None


def writer_words(pid: int, start_ticks: int, pid_namespace: int) -> bytes:
    """Return these three words as a record has them."""
    return struct.pack("<3q", pid, start_ticks, pid_namespace)


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
