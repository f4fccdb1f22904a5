"""Takes away what launchers put before a training process' own lines, and keeps the rank that some of them tell."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from stallwatch.formats.outside_text import line_of

# CSI and OSC sequences, and carriage returns of progress bars.
_ANSI: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_STAMP: Final = r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
# What follows a prefix is the line itself, whose indentation means something.
_PREFIXES: Final = (  # those with a group "writer" tell the process apart
    re.compile(r"(?P<writer>\[pod/[^\]\s]*\])\s?"),  # kubectl logs --prefix
    # SGLang's: a rank of tensor parallelism is the job's, where no other parallelism counts beside it.
    re.compile(rf"\[{_STAMP}(?P<writer> TP(?P<task>\d{{1,6}})(?: EP\d+)?)\] ?"),
    re.compile(rf"\[{_STAMP}(?P<writer>(?: [A-Z]{{2,4}}\d+)+)\] ?"),
    # With containerd's mark, or with journald's host and process.
    re.compile(rf"\[?{_STAMP}\]?\s(?:std(?:out|err)\s[FP]\s|(?P<host>[\w.-]+) [^\s:\[]+\[(?P<pid>\d+)\]: |\| )?"),
    re.compile(r"(?P<writer>[A-Za-z][\w.-]*[-_]\d+ +\|) ?"),  # docker compose
    re.compile(r" *\d{1,9}\t"),  # cat -n
    re.compile(r"(?P<writer>[\w./-]+\.(?:log|out|err|txt):)\d{1,9}:"),  # grep -Hn
    re.compile(r"(?P<writer>(?P<host>[A-Za-z][\w.-]*): )(?=\[20[\d-]+ [\d:,]+\] \[\w+\] )"),  # DeepSpeed's, by pdsh
    re.compile(  # journald, syslog
        r"(?P<stamp>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d) (?P<host>[\w.-]+) [^\s:\[]+(?:\[(?P<pid>\d+)\])?: "
    ),
    # mpirun --timestamp-output
    re.compile(r"(?P<stamp>[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4})(?=\[)"),
    re.compile("[\x00\ufeff]"),
    # vLLM's workers, likewise
    re.compile(r"(?P<writer>\((?:VllmWorker rank=|Worker_TP)(?P<task>\d{1,6})(?:_EP\d+)? pid=(?P<pid>\d+)\))\s?"),
    re.compile(r"(?P<writer>\([\w.<>-]+ pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]*))?\))\s?"),  # Ray
    re.compile(  # vLLM's logger
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[[\w./]+\.py:\d+\] "
    ),
    re.compile(r"(?P<writer>\[default(?P<local>\d+)\]):"),  # torchrun --tee: the local rank
    # torchrun with a role of the user's own: what its number means is his to know.
    re.compile(r"(?P<writer>\[(?!rank\d)[A-Za-z_][\w-]*?\d+\]):"),
    re.compile(r"(?P<writer>\s*(?P<task>\d{1,6})):(?: |$)"),  # srun --label
    # mpirun --tag-output, horovod, SageMaker; Open MPI 5 writes the job's name before the comma
    re.compile(
        r"(?P<writer>\[(?:[\w.@-]+,)?(?:mpirank:)?(?P<task>\d+)(?:,(?P<host>[A-Za-z][\w.-]*))?\])<std(?:out|err)>: ?"
    ),
)
_MOST_PREFIXES: Final = 6  # of launchers within launchers: srun --label around torchrun --tee
# Docker's json-file, and loggers that write a JSON object a line.
_JSON: Final = re.compile(r'\{"[\w@.-]+": ?(?:["\d{[]|true|false|null)')
# Loki, Cloud Logging, journald's and Elastic's exports, OpenTelemetry, GELF.
_TEXT_KEYS: Final = (
    "log", "message", "msg", "event", "text", "MESSAGE", "textPayload", "line", "body", "content", "@message",
    "short_message",
)  # fmt: skip
_RAISED_KEYS: Final = ("exception", "exc_info", "stack_trace", "stacktrace")  # beside the message: a traceback
_SEVERAL: Final = re.compile(r'\\n(?!")|"(?:exception|exc_info|stack_?trace)": ?"')
_TIME_KEYS: Final = ("time", "timestamp", "asctime", "ts", "@timestamp")
_RANK_KEYS: Final = ("world_rank", "rank", "global_rank")
_HOST_KEYS: Final = ("_HOSTNAME", "hostname", "host", "node_name")
_WRITER_KEYS: Final = (
    "pod", "pod_name", "container", "container_name", "container_id", "instance", "filename", "_PID", "pid", "process",
    *_HOST_KEYS,
)  # fmt: skip
_WITHIN: Final = ("jsonPayload", "_source", "labels", "kubernetes", "stream")  # what exports wrap it in
_SURE: Final = re.compile(
    r"(?<![\w│])(?:(?:  \+ Exception Group )?Traceback \(most recent call last\):|\[rank\d+\]:"
    r"|(?<=\S )  File \"[^\"]+\", line \d+, in \S+$"  # a traceback's frame, whose head is lost
    r"|╭─+ (?:\S+ )?Traceback \(most recent call last\) ─|torch\.distributed\.elastic\.[\w.]+\.ChildFailedError:"
    r"|\[[EWIF](?:\d{3,4} [\d:.]+)? ?(?:ProcessGroup\w+|TCPStore|socket)\.[ch]pp:\d+\]"
    # a host's name has a letter (a container's is its number, in hexadecimal), the time of day has none
    r"|(?=\d*[A-Za-z-])[\w.-]+:\d+:\d+ \[\d+\] (?:[\w/]+\.\w+:\d+ )?NCCL (?:INFO|WARN) )"
)
_MARKED: Final = re.compile(
    r"[\d\])>:\t]|\w +\||^[\w.-]+ $|^[`\"'\u201c\u2018]+$|\b[A-Z]{4,8} - $"
)  # what no word of a sentence, and no exception group, begins with
LONGEST_PREFIX: Final = 120
# The end of a progress bar ("32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]", "12it [00:03, 3.9it/s]"), which has
# no newline: what another process writes next stands behind it.
_BAR: Final = re.compile(r".*\[\d+:\d\d(?::\d\d)?(?:<|, *[\d.?]+ ?\w*/\w+)[^\[\]]*\]\s*(?=\S)")
_TIME: Final = re.compile(r"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|\d{8,}(?:\.\d+)?|\d+[-/]\d+[-/]\d+|\d+\.\d+")
# A step's daemon on its node, which writes to the output of the first task there.
_OF_A_STEP: Final = "slurmstepd: "
_PDSH: Final = re.compile(r"(?P<host>[A-Za-z][\w.-]*): ?")
_RANK: Final = re.compile(r"\s*\[rank(?P<rank>\d+)\]:\s?")
# In what a logger of the job's own puts before its lines: "ERROR | rank=3 | "; neither a local rank nor one of a group.
_TELLS_RANK: Final = re.compile(
    r"(?:^|[^\w\s]\s*|\b(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\s+)(?:global[ _]?)?rank[ =:#_-]{0,2}"
    r"(?P<rank>\d{1,6})\b",
    re.IGNORECASE,
)


class Line(NamedTuple):
    """A line without its prefixes, and what they told."""

    text: str  # what the process wrote
    rank: int | None  # global rank by "[rank3]:", which torch ≥ 2.2 writes
    local_rank: int | None
    writer: str = ""  # what a launcher put before the lines of one process
    stamp: str = ""  # the time that a launcher, a container or a logger put before the line, as printed
    task: int | None = None  # number of the task by srun or mpirun: a rank, where each task is one
    pid: int | None = None
    host: str | None = None


def strip_colours(line: str) -> str:
    """A line as a terminal would show it at last."""
    return _overwritten(decoloured(line))


def decoloured(line: str) -> str:
    """A line without escape sequences and its end."""
    return (_ANSI.sub("", line) if "\x1b" in line else line).rstrip("\r\n")


def _overwritten(text: str) -> str:
    """What stands last of a line that carriage returns overwrote, behind a progress bar."""
    text = text.rsplit("\r", 1)[-1]
    bar = _BAR.match(text) if "<" in text or "it/s" in text else None
    return text[bar.end() :] if bar else text


def shape_of(text: str) -> re.Pattern[str] | None:
    """What an unknown launcher puts before lines, learned from one whose own beginning is sure (a traceback's first
    line, or torch's mark): numbers in it may be others in the next line. None where nothing is before it."""
    match = _SURE.search(text, 0, LONGEST_PREFIX)
    return _shape(text[: match.start()]) if match else None


def shape_before_bars(raw: str) -> re.Pattern[str] | None:
    """As `shape_of`, of a line whose own beginning stands behind progress bars."""
    before, _, last = decoloured(raw).partition("\r")
    if not last or "%|" in before or not _SURE.match(_overwritten(last)):
        return None
    return _shape(read_line(before).text)


def _shape(prefix: str) -> re.Pattern[str] | None:
    if len(prefix) > LONGEST_PREFIX or not _MARKED.search(prefix) or "traceback" in prefix.lower():
        return None
    return re.compile(r"\d+".join(re.escape(part) for part in re.split(r"\d+", prefix)))


def read_line(raw: str, shapes: Sequence[re.Pattern[str]] = ()) -> Line:
    """Given a line as found in a log, return the process' own part of it. `shapes`: see shape_of."""
    text, stamp, rank, writer, host = _of_json(decoloured(raw))
    said: dict[str, str] = {}
    for _ in range(_MOST_PREFIXES):
        match = next((match for prefix in _PREFIXES if (match := prefix.match(text))), None)
        if match is not None:
            found = {name: value for name, value in match.groupdict().items() if value}
            writer += found.pop("writer", "")
            # The outermost tells it: of a time the one that all lines have. But a launcher within a task of another
            # counts the ranks.
            said = found | said | ({"task": found["task"]} if "task" in found else {})
        elif match := next((match for shape in shapes if (match := shape.match(text))), None):
            writer += _TIME.sub("", match[0])
            if told := _TELLS_RANK.search(match[0]):
                rank = int(told["rank"])
            elif node := _PDSH.fullmatch(match[0]):
                said.setdefault("host", node["host"])
        elif (last := _overwritten(text)) != text:
            text = last
            continue
        else:
            break
        text = text[match.end() :]
    text = _overwritten(text)
    while match := _RANK.match(text):  # torch marks tracebacks, a launcher's template all lines
        rank, text = int(match["rank"]), text[match.end() :]
    if text.startswith(_OF_A_STEP):
        said.pop("task", None)
        writer = ""
    numbers = {name: int(said[name]) if name in said else None for name in ("local", "task", "pid")}
    return Line(
        line_of(text),
        rank,
        numbers["local"],
        writer,
        stamp or said.get("stamp", ""),
        numbers["task"],
        numbers["pid"],
        host or said.get("host"),
    )


class _JsonLine(NamedTuple):
    text: str
    stamp: str = ""
    rank: int | None = None
    writer: str = ""
    host: str = ""


def _of_json(text: str) -> _JsonLine:
    """The line that a JSON object holds, its time and rank, and who wrote it."""
    said = _decoded(text)
    line = json_line(said) if said is not None else None
    return line or _JsonLine(text)


def _decoded(text: str) -> object:
    """The object that a line is; None where it is none."""
    if not _JSON.match(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_line(said: object) -> _JsonLine | None:
    """Given an object of a log that is JSON, return its line; None where it holds none."""
    if not isinstance(said, dict):
        return None
    parts = list(_parts(said))
    log = next((part[key] for part in parts for key in _TEXT_KEYS if isinstance(part.get(key), str)), None)
    if log is None:
        return None
    for raised in (part[key] for part in parts for key in _RAISED_KEYS if isinstance(part.get(key), str)):
        log += f"\n{raised}"

    def first(keys: Sequence[str], kind: type = str) -> Any:
        return next((part[key] for part in parts for key in keys if type(part.get(key)) is kind), None)

    rank = first(_RANK_KEYS, int)
    writer = ",".join(str(part[key]) for part in parts for key in _WRITER_KEYS if type(part.get(key)) in (str, int))
    rank = rank if rank is not None and rank >= 0 else None
    return _JsonLine(decoloured(log), first(_TIME_KEYS) or "", rank, writer, first(_HOST_KEYS) or "")


def _parts(said: dict[str, Any], depth: int = 2) -> Iterator[dict[str, Any]]:
    """An object and what it wraps: a store's wrapper may be around a collector's."""
    yield said
    for key in _WITHIN if depth else ():
        if isinstance(part := said.get(key), dict):
            yield from _parts(part, depth - 1)


def within_json(text: str) -> str:
    """The line that a JSON object holds; what is no such object as it is."""
    return _of_json(text).text


def lines_within(raw: str) -> Iterator[str]:
    """A line of a log; of an object that holds several (a message with a traceback) each as an object of its own."""
    said = _decoded(raw) if raw[:1] == "{" and _SEVERAL.search(raw) else None
    line = json_line(said) if said is not None else None
    if line is None:
        yield raw
        return
    for text in line.text.split("\n"):
        yield json.dumps({"log": text, "time": line.stamp, "rank": line.rank, "pod": line.writer, "host": line.host})


def is_json_line(text: str) -> bool:
    """Whether a line is a JSON object that holds a line of a log."""
    return _JSON.match(text) is not None and _of_json(text).text is not text
