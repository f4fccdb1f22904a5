"""A bundle that may be shown to others: numbers, states and everybody's words stay, what is somebody's own goes.

Somebody's own is every word that nothing here knows: names of hosts, users, jobs, files and functions, arguments,
tokens, what an exception says. Each becomes a name that is the same wherever it stood, so that what was equal is still
equal, and the verdict with it. Lines of source code go, but for words by which a loop's header is judged ("loader",
"epoch"). What is known is what stallwatch itself looks for in dumps, stacks and logs: the words of its own readers, and
so of torch, NCCL and the kernel.
"""

import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from stallwatch.diagnosis.job.leaving import told_by
from stallwatch.formats.log_prefix import read_line, shape_of
from stallwatch.formats.pickle_subset import Machine
from stallwatch.formats.unreadable import Unreadable

# Those that read evidence. What they look for they name.
_READERS: Final = (
    "formats", "diagnosis", "model", "progress", "bundle", "captures", "sensors", "detectors", "incidents", "node",
)  # fmt: skip
# Fields that hold a line of somebody's program, or what it was called with.
_SOURCE_FIELDS: Final = frozenset({"text", "source_line", "locals", "argv", "cmdline", "arguments", "source_text"})
# By which its maker knows a device. Nothing is judged by it, and it may be digits alone, which stay elsewhere.
_SERIAL_FIELDS: Final = frozenset({"serial"})
# A function of the kernel, whatever this kernel calls it ("futex_do_wait" since 6.7): nobody's own.
_KERNEL_FIELDS: Final = frozenset({"wchan"})
# A type of file system, and a server's name and folder, whatever they are called: "nfs4 storage01:/homes".
_MOUNT_FIELDS: Final = frozenset({"waits_on"})
_IDENTIFIER = re.compile(r"[^\W\d][\w.<>]*")
_SYMBOL = re.compile(r"[a-z_]\w*(?:\.\w+)*")
# Written by a daemon of what is in the other files; a reader makes it anew.
LEFT_OUT: Final = frozenset({"verdict.json", "incident.json", "config.json", "truth.json"})

_PATH = re.compile(r"(?<![\w/.~-])~?(?:/|(?:[\w.@+-]+/)+)[\w.@+%=,:~/-]*[\w@+%=~/-]|(?<![\w/.~-])~?/[\w.@+-]+")
# The first of these that a path has: beneath site-packages is a library, whatever the folders before are called.
_PUBLIC = tuple(
    re.compile(rf"(?P<own>(?:.*/)?)(?P<marker>{marker})/(?=[\w.])")
    for marker in ("site-packages|dist-packages", r"lib/python3(?:\.\d+)?t?", "torch|stallwatch")
)
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?![\w:])"
)
_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])")
# Letters among digits, as tokens, hashes and identities have them: of such a word no piece is everybody's. No address
# in memory.
_MIXED = re.compile(r"(?<![A-Za-z0-9])(?!0x)(?=\d*[A-Za-z])(?=(?:[A-Za-z]*\d){4})[A-Za-z0-9]{12,}(?![A-Za-z0-9])")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[\W\d_]+|\w")
_URL = re.compile(r"[a-zA-Z][\w+.-]*://\S+")
_FILE = re.compile(r"(?<![\w/.-])[\w@+-][\w.@+-]*\.(?:py|pyx|so|cpp|cc|cu|h|c|json|txt|log|pt|ckpt|sh|toml|yaml|yml)\b")
_WORD = re.compile(r"[^\W\d_](?:\w|(?<=\w)-(?=\w))*|_+\w+|\d+\w*[^\W\d]\w*")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:ms|us|ns|s|[kKMGT]i?B|[bB]|th|st|nd|rd|x)?\Z")
_STAMP = re.compile(r"[EWIFCD]\d{4}\Z")  # what glog, and torch with it, puts before a line: level, month and day
_COUNT = re.compile(r"_?\d+\Z")
_MOST_SHAPES = 8  # of what launchers write before lines
_FRAME = re.compile(r'\s*File "')
_CARETS = re.compile(r"[\s~^]*\^[\s~^]*\Z")


class Scrubber:
    """Of one bundle: what was called alike is called alike."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """`secrets`: names of its hosts, users and jobs, which go even where they are everybody's words."""
        self._names: dict[tuple[str, str], str] = {}
        self._kinds: dict[str, int] = {}
        self._secret = frozenset(secrets) - {""}
        words = sorted(map(re.escape, self._secret), key=len, reverse=True)
        self._secrets = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)") if words else None
        self.removed: set[str] = set(self._secret)  # every name that must not be found any more
        self.stayed: set[str] = set()  # names of the job's own functions that are made of everybody's words

    def json(self, value: Any, field: str = "") -> Any:
        """Given what a JSON file or a dump holds, return it with every string scrubbed."""
        if isinstance(value, str):
            if field in _KERNEL_FIELDS and _SYMBOL.fullmatch(value) and value not in self._secret:
                return value
            if field in _MOUNT_FIELDS and value:
                kind, _, own = value.partition(" ")
                return f"{self.text(kind)} {self._name('place', own)}" if own else self.text(kind)
            return "" if field in _SOURCE_FIELDS | _SERIAL_FIELDS else self.text(value)
        if isinstance(value, Mapping):
            made = {self.text(key) if isinstance(key, str) else key: self.json(one, key) for key, one in value.items()}
            if field == "blocks" and isinstance(value.get("text"), str):
                made["text"] = told_by(value["text"])  # by which it is told what a loop runs over
            self._note_function(value, made)
            if isinstance(value.get("short_filename"), str) and isinstance(made.get("filename"), str):
                made["short_filename"] = made["filename"].rpartition("/")[2]  # py-spy's: "train.py" is of a path, too
            return made
        if isinstance(value, list | tuple):
            return type(value)(self.json(one, field) for one in value)
        return value

    def _note_function(self, frame: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        """Keep in mind what of a frame of the job's own code stays, whoever wrote it: it is told to who shows it."""
        file = frame.get("filename") or frame.get("file")
        for field in ("name", "function"):
            own = frame.get(field)
            if not (isinstance(file, str) and isinstance(own, str) and own == made.get(field)):
                continue
            if file.startswith("<"):
                continue  # "<frozen runpy>"
            if not any(marker.match(file) for marker in _PUBLIC) and _IDENTIFIER.fullmatch(own):
                self.stayed.add(own)

    def text(self, text: str) -> str:
        """Given any text, return it with everybody's words and numbers alone."""
        if self._secrets is not None:
            text = self._secrets.sub(lambda match: self._name("name", match[0]), text)
        text = _URL.sub(lambda match: self._name("url", match[0]), text)
        text = _ADDRESS.sub(lambda match: self._name("address", match[0]), text)
        parts, end = [], 0
        for match in _PATH.finditer(text):
            parts += [self._words(text[end : match.start()]), self._path(match[0])]
            end = match.end()
        return "".join([*parts, self._words(text[end:])])

    def log(self, text: str) -> str:
        """As `text`, line by line; of a traceback's frames the place stays and the line of code goes."""
        return "\n".join(self._log_lines(text.split("\n")))

    def _log_lines(self, lines: list[str]) -> Iterator[str]:
        frames: dict[tuple[str, int | None], int] = {}  # how far the frame that a process wrote last is indented
        shapes: list[re.Pattern[str]] = []
        for line in lines:
            own = read_line(line, shapes)  # without what a launcher put before it
            if len(shapes) < _MOST_SHAPES and (shape := shape_of(own.text)):
                shapes.append(shape)
                own = read_line(line, shapes)
            writer = own.writer, own.rank
            if _CARETS.match(own.text):
                continue
            if match := _FRAME.search(own.text):
                frames[writer] = len(match[0]) - len(match[0].lstrip())
            elif len(own.text) - len(own.text.lstrip()) > frames.get(writer, len(own.text)):
                continue  # lines of code below a frame; Python 3.13 writes several
            else:
                frames.pop(writer, None)
            yield self.text(line)

    def _words(self, text: str) -> str:
        text = _UUID.sub(lambda match: self._name("id", match[0]), text)
        text = _MIXED.sub(lambda match: match[0] if match[0] in _known() else self._name("id", match[0]), text)
        text = _FILE.sub(self._file, text)
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def _file(self, match: re.Match[str]) -> str:
        stem, _, ending = match[0].rpartition(".")
        return match[0] if stem in _known() and stem not in self._secret else f"{self._name('file', stem)}.{ending}"

    def _word(self, word: str) -> str:
        if _OURS.fullmatch(word) or _NUMBER.fullmatch(word) or _STAMP.match(word):
            return word
        if "-" in word and any(map(_OURS.fullmatch, word.split("-"))):  # of an incident's id the job's name is gone
            return "-".join(map(self._word, word.split("-")))
        if word in _known() or _COUNT.sub("", word) in _known():  # "pt_autograd_1": torch's threads are numbered
            return word
        if "_" in word and any(map(_OURS.fullmatch, word.split("_"))):
            return "_".join(map(self._word, word.split("_")))
        # What a function does is read in its name's parts: "save_acme_weights" is "save_wordx3_weights".
        return "".join(part if _is_everybodys(part) else self._name("word", part) for part in _PARTS.findall(word))

    def _path(self, path: str) -> str:
        named = self._named_path(path)
        if named != path:
            self.removed.add(path)
        return named

    def _named_path(self, path: str) -> str:
        public = next((match for marker in _PUBLIC if (match := marker.match(path))), None)
        if public is None:
            return "/".join(map(self._component, path.split("/")))
        kept = "/".join(part if _is_public(part) else self._component(part) for part in path[public.end() :].split("/"))
        own, marker = public["own"].rstrip("/"), public["marker"]
        return f"/{self._name('place', own)}/{marker}/{kept}" if own else f"{public['own']}{marker}/{kept}"

    def _component(self, part: str) -> str:
        if not part or _OURS.fullmatch(part) or part in (".", "..", "~"):
            return part
        stem, dot, ending = part.partition(".")
        line = re.search(r":\d+\Z", ending if dot else stem)
        named = self._name("file", stem if dot or line is None else stem[: line.start()])
        return f"{named}{dot}{ending}" if dot and _is_ending(ending) else f"{named}{line[0] if line else ''}"

    def _name(self, kind: str, own: str) -> str:
        if _OURS.fullmatch(own):
            return own  # stands for a secret already: a job may be called as its script is
        if own in self._secret or (len(own) > 3 and not all(map(_is_everybodys, _PARTS.findall(own)))):
            self.removed.add(own)  # in a path everybody's word goes, too, and stands elsewhere
        if (kind, own) not in self._names:
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            self._names[kind, own] = f"{kind}x{self._kinds[kind]}"
        return self._names[kind, own]


_OURS = re.compile(r"(?:name|url|address|id|word|file|place)x\d+(?:\.\w+)?")
_ENDING = re.compile(r"(?:py|pyx|so(?:\.\d+)*|cpp|cc|cu|cuh|hpp|h|c|json|txt|log|pt|ckpt|sh)(?::\d+)?")


def _is_ending(text: str) -> bool:
    return _ENDING.fullmatch(text) is not None


def _is_everybodys(part: str) -> bool:
    return not part[:1].isalpha() or (len(part) > 2 and (part in _known() or part.lower() in _known()))


def _is_public(part: str) -> bool:
    """Whether everybody's libraries have files of this name, as far as anything here asks for them."""
    stem = part.partition(".")[0].partition(":")[0]
    return stem in _known() or stem.lstrip("_") in _known()


@cache
def _known() -> frozenset[str]:
    """Every word of the readers' own text."""
    found: set[str] = set()

    def walk(folder: Traversable) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry)
            elif entry.name.endswith((".py", ".toml")):
                found.update(re.findall(r"[^\W\d]\w*", entry.read_text(encoding="utf-8")))

    for package in _READERS:
        walk(resources.files("stallwatch") / package)
    return frozenset(found)


def scrubbed(name: str, data: bytes, scrubber: Scrubber) -> bytes | None:
    """Given a file of a bundle by its name, return it scrubbed; None for one that is left out, or cannot be read."""
    if name in LEFT_OUT:
        return None
    try:
        if name.endswith(".pickle"):
            machine = Machine(data)
            machine.run()
            return pickle.dumps(scrubber.json(machine.value()), protocol=2)
        if name.endswith(".jsonl"):
            return b"".join(json.dumps(scrubber.json(json.loads(line))).encode() + b"\n" for line in data.splitlines())
        if name.endswith(".json"):
            return json.dumps(scrubber.json(json.loads(data)), indent=1).encode() + b"\n"
    except (Unreadable, ValueError, RecursionError):
        return None
    return scrubber.log(data.decode("utf-8", "replace")).encode()
