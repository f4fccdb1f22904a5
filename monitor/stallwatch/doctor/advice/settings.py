"""Variables that a file sets for a job: shell and sbatch scripts, Dockerfiles, Kubernetes and Compose YAML, env files,
nccl.conf, Python. Pure text in, settings out."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from stallwatch.doctor.advice.named_files import Part, statements

_NAME: Final = r"(?P<name>[A-Za-z][A-Za-z0-9_]*_[A-Za-z0-9_]+)"
_VALUE: Final = r"""(?P<value>"[^"]*"|'[^']*'|[^\s"'#;&|)]*)"""
# A shell's or Dockerfile's assignments, several on a line; mpirun -x, docker -e, env, nccl.conf, env files; srun
# --export=ALL,A=1,B=2; Dockerfile's and csh's older forms; a list entry of Compose.
_OF_SHELLS: Final = (
    re.compile(rf"(?:(?<=\s)|(?<=^)|(?<=[;&(]))(?:-x|-e|--env[= ])?\s*{_NAME}={_VALUE}"),
    re.compile(rf"(?<=[=,]){_NAME}=(?P<value>[^\s,\"']*)"),
    re.compile(rf"^\s*(?:ENV|setenv)\s+{_NAME}\s+{_VALUE}\s*$"),
    re.compile(rf"^\s*-\s+[\"']?{_NAME}=(?P<value>[^\s\"']*)"),
)
# A key of Compose, of a Ray runtime_env, of a mapping.
_OF_MAPPINGS: Final = (
    re.compile(rf"name:\s*[\"']?{_NAME}[\"']?\s*,\s*value:\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\s,}}]+)"),
    re.compile(rf"(?:^|[{{,])\s*[\"']?{_NAME}[\"']?\s*:\s+(?P<value>\"[^\"]*\"|'[^']*'|[\w.,^=:/-]+)\s*(?=[,}}]|$)"),
)
_OF_PYTHON: Final = (
    re.compile(rf"environ\[[\"']{_NAME}[\"']\]\s*=\s*(?P<value>\"[^\"]*\"|'[^']*')"),
    re.compile(rf"(?:setdefault|putenv)\(\s*[\"']{_NAME}[\"']\s*,\s*(?P<value>\"[^\"]*\"|'[^']*')"),
    re.compile(rf"(?:^|[{{,])\s*[\"']{_NAME}[\"']\s*:\s*(?P<value>\"[^\"]*\"|'[^']*')"),
)
# A guide's sentences, and rows of its tables: "Set `A` to 5", "`A`: set to 5", "`A`: enable …", "| `A` | 5 |".
_MENTION: Final = rf"[`*]{{1,3}}{_NAME}[`*]{{1,3}}"
_PLAIN: Final = r"[`\"']?(?P<value>[\w^=][\w.,:^=/-]*)[`\"']?"
_OF_PROSE: Final = (
    re.compile(rf"`(?:export\s+|ENV\s+)?{_NAME}=(?P<value>[^\s`\"']*|\"[^\"`]*\"|'[^'`]*')[^`]*`"),
    re.compile(
        rf"\b(?:[Ss]et(?:ting)?|[Ii]ncreas(?:e|ing)|[Rr]ais(?:e|ing)|[Uu]se|[Ee]xport)\s+(?:the\s+)?{_MENTION}\s*(?:to|=|as)\s*{_PLAIN}"
    ),
    # Without marks only what can be no word of the sentence.
    re.compile(
        r"\b(?:[Ss]et(?:ting)?|[Ii]ncreas(?:e|ing)|[Rr]ais(?:e|ing))\s+(?:the\s+)?(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+)\s+to\s+"
        r"(?P<value>\d+)\b"
    ),
    re.compile(rf"{_MENTION}\s*(?:[:–—-]|is)?\s*(?:[Ss]et\s+(?:it\s+)?to|[Ss]hould\s+be|=)\s*{_PLAIN}"),
    re.compile(rf"^\s*\|\s*{_MENTION}\s*\|\s*{_PLAIN}\s*\|"),
)
_SWITCHED: Final = re.compile(
    rf"{_MENTION}\*{{0,2}}\s*[:–—-]\s*\*{{0,2}}\s*(?P<value>[Ee]nabl|[Dd]isabl|[Tt]urn\s+on|[Tt]urn\s+off)|"
    rf"\b(?P<before>[Ee]nable|[Dd]isable)\s+`(?P<after>[A-Z][A-Z0-9_]*_[A-Z0-9_]+)`"
)
_K8S_NAME: Final = re.compile(rf"^\s*-?\s*name:\s*[\"']?{_NAME}[\"']?\s*$")
_K8S_VALUE: Final = re.compile(r"^\s*-?\s*value:\s*(?P<value>\"[^\"]*\"|'[^']*'|\S+)\s*$")
# What only the running script knows.
_OPEN: Final = re.compile(r"[$`{}]|%[sdr(]|<[^>]*>")


class Setting(NamedTuple):
    """A variable that one line of a file sets, and to what."""

    line: int
    name: str
    value: str


def settings(lines: Iterator[tuple[int, str]], *, is_python: bool = False) -> Iterator[Setting]:
    """Given numbered lines without comments, return what they set; values that only the run knows are left out."""
    statements = _OF_PYTHON if is_python else (*_OF_SHELLS, *_OF_MAPPINGS, *_OF_PYTHON[:2])
    waiting = ""  # Kubernetes: the name whose value is on a following line
    for number, line in lines:
        if match := _K8S_NAME.match(line):
            waiting = match["name"]
            continue
        if waiting and (match := _K8S_VALUE.match(line)):
            yield from _setting(number, waiting, match["value"])
            waiting = ""
            continue
        if line.strip():
            waiting = ""
        seen: set[str] = set()
        for statement in statements:
            for match in statement.finditer(line):
                if match["name"] not in seen:
                    seen.add(match["name"])
                    yield from _setting(number, match["name"], match["value"])


def settings_of(part: Part) -> Iterator[Setting]:
    """What a part of a file sets, or advises to set."""
    if part.language == "json":
        return
    if part.language == "prose":
        yield from _of_prose(statements(part))
    else:
        yield from settings(statements(part), is_python=part.language == "python")


def _of_prose(lines: Iterator[tuple[int, str]]) -> Iterator[Setting]:
    for number, line in lines:
        seen: set[str] = set()
        for statement in _OF_PROSE:
            for match in statement.finditer(line):
                if match["name"] not in seen:
                    seen.add(match["name"])
                    yield from _setting(number, match["name"], match["value"].rstrip(".,;:"))
        for match in _SWITCHED.finditer(line):
            name = match["name"] or match["after"]
            on = (match["value"] or match["before"]).lower().startswith(("enabl", "turn on"))
            if name not in seen:
                seen.add(name)
                # To "disable" by a variable that disables is to set it.
                yield Setting(number, name, "1" if on or name.endswith("_DISABLE") else "0")
        # An assignment that stands in a sentence without marks, or in a list of Compose's kind.
        for setting in settings(iter([(number, line)])):
            if setting.name not in seen and setting.name.isupper():
                seen.add(setting.name)
                yield setting


def _setting(line: int, name: str, value: str) -> Iterator[Setting]:
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        value = value[1:-1]
    if not _OPEN.search(value):
        yield Setting(line, name, value)
