"""What the text of a source line says, when the stack ends at a call into C that shows no frame of its own."""

import re
from typing import Literal

from stallwatch.diagnosis.frames.code_origin import job_frame_index
from stallwatch.model.evidence import CodeFrame, SourceLine
from stallwatch.model.verdict import Frame

Hint = Literal[
    "sleep", "gpu_sync", "store", "lock", "queue", "join", "collective", "socket", "child", "filesystem", "database",
    "input", "print",
]  # fmt: skip

# Order matters: the more specific call first.
_HINTS: tuple[tuple[Hint, re.Pattern[str]], ...] = (
    ("sleep", re.compile(r"\bsleep\s*\(")),
    ("store", re.compile(
        r"store\w*(?:\(\))?\.(?:get|wait|set|add|check|compare_set|multi_get)\s*\(|TCPStore\s*\(", re.IGNORECASE)),
    ("lock", re.compile(r"\bwith\b.*(?:lock|mutex|semaphore|\bcond)|\.acquire\s*\(|\.lock\s*\(|\bf?lockf?\s*\(",
                        re.I)),
    # A context manager that blocks in C is a lock, whatever it is called.
    ("lock", re.compile(r"^(?:async\s+)?with\b(?!.*\bopen\s*\()")),
    ("join", re.compile(r"\.(?:result|join)\s*\(\s*(?:timeout\b.*)?\)")),
    ("child", re.compile(r"\bos\.(?:system|wait\w*|popen)\s*\(|\bsubprocess\.|\.communicate\s*\(")),
    ("collective", re.compile(
        r"\.wait\s*\(|wait_tensor|all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier|batch_isend_irecv")),
    ("queue", re.compile(r"\b\w*(?:queue|_q|\bq)\w*\.(?:get|put)\s*\(", re.IGNORECASE)),
    ("gpu_sync", re.compile(
        r"\.item\s*\(|\.cpu\s*\(|\.tolist\s*\(|\.numpy\s*\(|synchronize\s*\(|\.to\s*\(|\.nonzero\s*\(")),
    ("database", re.compile(r"\.(?:execute(?:many|script)?|commit|rollback)\s*\(")),
    ("socket", re.compile(r"\.(?:recv\w*|accept|connect|sendall|urlopen)\s*\(|\brequests\.|\bselect\.")),
    ("input", re.compile(r"\binput\s*\(|\bstdin\b|\bgetpass\w*\s*\(")),
    ("print", re.compile(r"\bprint\s*\(|\bstd(?:out|err)\b")),
    ("filesystem", re.compile(
        r"\bopen\s*\(|\.(?:read\w*|write\w*|flush|stat|exists|mkdir|unlink|rename|iterdir|glob)\s*\("
        r"|\bos\.(?:read|write|open|stat|fsync|listdir|scandir|rename|replace|remove|makedirs|path\.\w+)\s*\(|\bshutil\.")),
)  # fmt: skip


# How Python's own library takes a lock with a time-out, and calls that are given one.
_BOUNDED = re.compile(
    r"\.acquire\(True, timeout\)"
    r"|\.(?:get|put|wait|wait_for|acquire|result|join|exception)\s*\(.*\btimeout\s*=\s*(?!None\b)"
    r"|\.(?:wait|result|join)\s*\(\s*[\d.]+\s*\)"
)


def is_bounded(text: str | None) -> bool:
    """Whether the wait that the line makes has a time-out, as far as it says."""
    return bool(text and _BOUNDED.search(text))


def source_text(sources: tuple[SourceLine, ...], frame: CodeFrame) -> str | None:
    """The text of the frame's line, stripped, where it was captured."""
    found = [line.text.strip() for line in sources if line.file == frame.filename and line.line == frame.line]
    return min(found) if found else None


def hint(text: str | None) -> Hint | None:
    """Which call the line makes, or None when it does not say."""
    if not text:
        return None
    code = re.sub(r"(?:^|\s)#.*$", "", text.strip())
    return next((kind for kind, pattern in _HINTS if pattern.search(code)), None)


def job_frame(frames: tuple[CodeFrame, ...], sources: tuple[SourceLine, ...]) -> Frame | None:
    """The innermost line of the job's own code, with its text where it was captured."""
    index = job_frame_index(frames)
    if index is None:
        return None
    frame = frames[index]
    return Frame(frame.filename, frame.line, frame.name, source_text(sources, frame))
