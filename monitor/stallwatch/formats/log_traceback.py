"""Python tracebacks in a log: the exception, and the innermost line of the job's own code."""

import re
from collections.abc import Sequence
from typing import Final

from stallwatch.model.evidence import CodeFrame
from stallwatch.model.torch_tree import TORCH_TREE

_START: Final = re.compile(
    r" ?(?:  \+ Exception Group )?Traceback \(most recent call last\):(?: \(RANK (?P<rank>\d{1,6})\)\s*$)?"
    r"|╭─+ (?:\S+ )?Traceback \(most recent call last\) ─"
)
# Exception groups and rich's boxes draw lines before theirs.
_DRAWN: Final = re.compile(r"\s+(?:\|(?: |$)|\+[-+]|\+ (?=Exception Group))")
_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+?))?\s*$')
_BOX_FRAME: Final = re.compile(r"│ (?P<file>\S+\.py):(?P<line>\d+) in (?P<name>\S+)")
# A syntax error of the script itself has neither a first line nor a function.
BODY: Final = re.compile(r'  File "[^"]+", line \d+(?:, in \S|$)')
CHAINED: Final = re.compile(
    r"During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception"
)
IGNORED: Final = re.compile(r"Exception ignored in|Error in atexit\._run")
_EXCEPTION: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:\([A-Z]\w*\))?)(?:: (?P<message>.*))?$")
# "torch.cuda.OutOfMemoryError: CUDA out of memory…": a class by its name, and something said.
_ALONE: Final = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:_[A-Z]\w*)?(?:\([A-Z]\w*\))?): (?P<message>\S.*)$"
)
_NAMED: Final = re.compile(r"(?:Error|Exception|Interrupt|Exit|Fault)$")
# Code that a job installs but did not write. Everything else is its own.
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen |^<string>")
# A cut traceback that begins there may be one of those that each rank passes on.
_PASSES_ON: Final = re.compile(r"torch/distributed/checkpoint/\w+\.py$")
# Where a launcher's own code stands: what it raises there ends no rank by itself.
_LAUNCHERS_CODE: Final = re.compile(
    r"/(?:deepspeed/launcher|accelerate/commands)/|/torch/distributed/(?:launch|run)\.py$"
)
_CLASS: Final = re.compile(r"[A-Z]|^(?:\w+\.)*(?:error|timeout|herror|gaierror)$")
UNKNOWN: Final = -1
_LENGTH: Final = re.compile(r"[1-9]\d{0,2}")  # of a mangled name's next part, before it
_MAXIMUM_LINES: Final = 2_000


def starts(text: str) -> bool:
    """Whether a line begins a traceback."""
    return _START.match(text) is not None


def raised_by(text: str) -> int | None:
    """Whose traceback a line begins that another process passes on, as torch's distributed checkpoint does in each rank
    with those of all that failed: by the rank in its group. None of a process' own."""
    match = _START.match(text)
    return int(match["rank"]) if match and match["rank"] else None


def demangled(name: str) -> str:
    """Given a C++ type as the compiler names it, "N3c1016DistBackendErrorE", return "c10::DistBackendError"; what it
    holds between <> is left out, and another name is returned as it is."""
    parts, at = [], 1 if name.startswith("N") else 0
    while match := _LENGTH.match(name, at):
        at = match.end() + int(match[0])
        parts.append(name[match.end() : at])
    return "::".join(parts) if parts and at <= len(name) else name


def undrawn(text: str) -> str:
    """A line of an exception group without what is drawn before it."""
    match = _DRAWN.match(text)
    return text[match.end() :] if match else text


class Traceback:
    """Fed with the lines after START (`headless` where that line is lost); `done` once the exception's line has come or
    the block broke off."""

    def __init__(
        self, *, headless: bool = False, ignored: bool = False, chained: bool = False, of_rank: int | None = None
    ) -> None:
        self._headless = headless
        self.of_rank = of_rank  # another one's, which this process passes on; UNKNOWN: whose it is is lost
        self.chained = chained  # to the traceback before it
        self.ignored = ignored  # Python went on: it came from a finaliser, or from the interpreter's end
        self.done = False
        self.exception: str | None = None
        self.message: str | None = None
        self.frames: list[CodeFrame] = []  # outermost first
        self._lines = 0

    def feed(self, text: str) -> None:
        """Given the next line of this traceback, take its frame, or the exception that ends it."""
        self._lines += 1
        if match := _FRAME.match(text.removeprefix(">")) or _BOX_FRAME.match(text):
            self.frames.append(CodeFrame(match["name"] or "", match["file"], int(match["line"])))
            if self._headless and self._lines == 1 and _PASSES_ON.search(match["file"]):
                self.of_rank = UNKNOWN
        elif text[:1] not in (" ", "\t", "", "│", "╰"):
            self.done = True
            match = _EXCEPTION.match(text)
            bare = match is not None and not match["message"] and not _CLASS.search(match["type"])  # half a word
            if match and not bare and (not self._headless or _NAMED.search(match["type"])):
                self.exception, self.message = match["type"], match["message"]
        elif self._lines > _MAXIMUM_LINES:
            self.done = True

    def reopened(self) -> "Traceback":
        """It goes on behind another process' lines; what ends it must look like an exception then."""
        self.done, self._headless = False, True
        return self

    @property
    def frame(self) -> CodeFrame | None:
        """The innermost frame of the job's own code, else the innermost of all: a launcher's script is no code of the
        job's."""
        return self.frames[-1] if self.of_launcher else innermost_own(self.frames)

    @property
    def of_launcher(self) -> bool:
        """Whether a launcher's own code raised it, or what that called of others': not a program that it ran within
        itself, as torchrun does with --run-path."""
        of_launcher = [place for place, frame in enumerate(self.frames) if _LAUNCHERS_CODE.search(frame.filename)]
        return bool(of_launcher) and not any(map(_is_own, self.frames[of_launcher[-1] + 1 :]))


def _is_own(frame: CodeFrame) -> bool:
    return not (_INSTALLED.search(frame.filename) or TORCH_TREE.search(frame.filename))


def innermost_own(frames: Sequence[CodeFrame]) -> CodeFrame | None:
    """Given frames, outermost first, return the innermost of the job's own code, else the innermost of all."""
    own = [frame for frame in frames if _is_own(frame)]
    chosen = own or frames
    return chosen[-1] if chosen else None


def lone_exception(text: str) -> tuple[str, str] | None:
    """Type and message of an exception's last line that stands without its traceback."""
    match = _ALONE.match(text)
    return (match["type"], match["message"]) if match else None
