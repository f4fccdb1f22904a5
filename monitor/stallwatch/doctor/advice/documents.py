"""What a named file holds: shell, Python, JSON, or prose with code in it (a guide). Pure text in, parts out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

Language = Literal["shell", "python", "json", "prose"]
Line = tuple[int, str]

_PROSE: Final = frozenset((".md", ".markdown", ".rst", ".txt"))
_FENCE: Final = re.compile(r"^\s*(?:>\s*)?(?P<marks>`{3,}|~{3,})\s*\{?\.?(?P<language>[\w+-]*)")
_LANGUAGES: Final[dict[str, Language]] = {
    "python": "python", "py": "python", "python3": "python", "pycon": "python", "json": "json", "jsonc": "json",
    "json5": "json", "text": "prose", "output": "prose", "log": "prose", "console-output": "prose",
}  # fmt: skip
# What a guide warns of is not its advice.
_WARNS: Final = re.compile(
    r"\b(?:don['’]?t|do\s+not|does\s+not|doesn['’]?t|never|avoid|remove|unset(?:ting)?|deprecated|discouraged|"
    r"not\s+recommended|no\s+longer|wrong|harmful|mistake|incorrect|myth|anti-?pattern|bad\s+(?:idea|advice|practice)|"
    r"no\s+such\s+variable|instead\s+of)\b",
    re.IGNORECASE,
)
_WARNS_OF_CODE: Final = re.compile(
    r"\b(?:bad|wrong|incorrect|don['’]?t|never|avoid|broken|before)\b|❌|✗", re.IGNORECASE
)
_COMMENT: Final = re.compile(r"^\s*(?:#|//|--\s|<!--)")
_SAID: Final = re.compile(r"\s*(?:echo|printf)\s[^|>]*$")  # a shell's words for people


class Part(NamedTuple):
    language: Language
    lines: tuple[Line, ...]  # numbered as in the file

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)


def parts(path: Path, text: str) -> Iterator[Part]:
    """Given a file, return its parts in order. A guide's code blocks are parts of their own; one that stands under a
    warning ("wrong:", "never do this") is left out."""
    numbered = tuple(enumerate(text.splitlines(), 1))
    if path.suffix == ".py":
        yield Part("python", numbered)
    elif path.suffix == ".json":
        yield Part("json", numbered)
    elif path.suffix.lower() in _PROSE:
        yield from _of_guide(numbered)
    else:
        yield Part("shell", numbered)


def statements(part: Part) -> Iterator[Line]:
    """Lines that do or advise something: comments, echoes and warnings are left out."""
    for number, line in part.lines:
        if part.language == "prose":
            if not line.lstrip().startswith("<!--") and not _WARNS.search(line):
                yield number, line
        elif not _COMMENT.match(line) and not _SAID.match(line):
            yield number, re.sub(r"\s#\s.*$", "", line)


def commands(part: Part) -> Iterator[Line]:
    """Statements with those that a backslash continues put together, each under the number of its first line."""
    first, whole = 0, ""
    for number, line in statements(part):
        first = first if whole else number
        whole += line
        if whole.endswith("\\") and part.language != "prose":
            whole = whole[:-1] + " "
            continue
        yield first, whole
        whole = ""
    if whole:
        yield first, whole


def _of_guide(numbered: tuple[Line, ...]) -> Iterator[Part]:
    prose: list[Line] = []
    block: list[Line] = []
    marks, language, said = "", "", ""
    for number, line in numbered:
        match = _FENCE.match(line)
        if marks:
            if match and match["marks"].startswith(marks) and not match["language"]:
                yield from _block(language, block, said)
                marks, block = "", []
            else:
                block.append((number, line))
        elif match:
            yield Part("prose", tuple(prose))
            prose, marks, language = [], match["marks"], match["language"].lower()
        else:
            prose.append((number, line))
            said = line if line.strip() else said
    yield Part("prose", tuple(prose))
    if block:
        yield from _block(language, block, said)


def _block(language: str, block: list[Line], said: str) -> Iterator[Part]:
    head = block[0][1] if block else ""
    if _WARNS.search(said) or _WARNS_OF_CODE.search(said) or (_COMMENT.match(head) and _WARNS_OF_CODE.search(head)):
        return
    kind = _LANGUAGES.get(language) or ("json" if not language and head.strip() == "{" else "shell")
    yield Part(kind, tuple(block))
