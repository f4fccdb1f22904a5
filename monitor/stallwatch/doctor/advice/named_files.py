"""What a named file holds: shell, Python, JSON, or prose with code in it (a guide). Pure text in, parts out."""

import re
from collections.abc import Iterable, Iterator
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
# What a guide warns of is not its advice. "If it does not help", "to avoid a hang" and "the wrong interface" warn of
# nothing that is to be typed.
_CLAUSE: Final = re.compile(
    r"\b(?:if|when(?:ever)?|where|once|unless|because|since|so\s+that|in\s+case)\b[^,:;|`]*|\bto\s+avoid\b",
    re.IGNORECASE,
)
_TYPED: Final = (
    r"(?:(?:the|using|setting|exporting|use\s+of|any|all)\s+)*"
    r"(?:[`*\"']|[A-Z][A-Z0-9]*_|\$|(?:this|these|it|them|such)\b)"
)
_WARNS: Final = re.compile(
    r"\b(?i:don['’]?t|do\s+not|never|deprecated|discouraged|not\s+recommended|no\s+longer|harmful|mistake|incorrect|"
    r"myth|anti-?pattern|no\s+need\s+(?:for|to)|need(?:n['’]t|\s+not)|leave\s+(?:it|them|this|both)\s+(?:unset|alone|out)|"
    r"(?:should|must)(?:\s+not|n['’]t)\s+(?:be\s+(?:set|used|run|disabled|kept)|set|use|run|disable|keep)|bad\s+(?:idea|advice|practice)|no\s+such\s+variable|"
    r"does(?:\s+not|n['’]?t)\s+(?:exist|help|work|do|cure|fix|solve|prevent|change|have))\b"
    rf"|\b(?i:avoid|remove|unset(?:ting)?|instead\s+of)\s+{_TYPED}"
    r"|\b(?i:is|are|was|were)\s+(?i:wrong)\b|^\W*(?i:wrong|bad|broken)\b"
)
# What is said of a thing that was named: its subject is code, for "a full node is dangerous" warns of no command.
_BLAMES: Final = re.compile(
    r"(?:`[^`]+`|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+(?:=\S*)?)\)?[^`.;:]{0,30}?\b(?:"
    r"(?:is|are)\s+(?:(?:very|often|always|almost|too|really|a|an|both)\s+)*(?:dangerous|unsafe|risky|destructive|pointless|useless|"
    r"unnecessary|not\s+(?:needed|necessary|a\s+(?:fix|cure|solution))|no\s+(?:fix|cure|solution))"
    r"|(?:only\s+|just\s+|merely\s+)?(?:hides?|masks?|conceals?|papers?\s+over)\b)",
    re.IGNORECASE,
)
_EMPHASIS: Final = re.compile(r"\*+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
# Columns of a table: what is wrong, why it is, what is right.
_TABLE_RULE: Final = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_CELL_ENDS: Final = re.compile(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")
_WRONG_COLUMN: Final = re.compile(
    r"^\W*(?:bad|wrong|incorrect|don['’]?ts?|do\s+not|never|avoid|myths?|mistakes?|anti-?patterns?)\b|❌|✗",
    re.IGNORECASE,
)
_REASON_COLUMN: Final = re.compile(
    r"\bwhy\b.*\b(?:wrong|bad|not|harm\w*|dangerous|mistaken|avoid|never|fails?)\b|\bwhat\s+is\s+wrong\b", re.IGNORECASE
)
_RIGHT_COLUMN: Final = re.compile(r"\b(?:instead|better|good|right|correct|fix|remedy|do)\b(?!\s+not)", re.IGNORECASE)
_WARNS_OF_CODE: Final = re.compile(
    r"\b(?:bad|wrong|incorrect|don['’]?t|never|broken)\b|\bavoid\b\W*(?:this|these|$)|^\W*before\b\W*(?:\(.*\)\W*)?$|❌|✗",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*_])")
_CODE: Final = re.compile(r"`[^`]+`|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+")
# A command as a list: in one line, or with an item a line.
_LIST: Final = re.compile(
    r"(?P<indent>\s*)(?:-\s+)?[\"']?(?P<key>command|args|entrypoint|CMD|ENTRYPOINT)[\"']?:?\s*\[(?P<items>.*)\]"
)
_LIST_BEGINS: Final = re.compile(r"(?P<indent>\s*)(?:-\s+)?(?P<key>command|args|entrypoint):(?P<items>)\s*$")
_LIST_ITEM: Final = re.compile(r"(?P<indent>\s*)-\s+(?P<item>\S.*?)\s*$")
_ITEM: Final = re.compile(r"[^\s,\"'](?:[^,\"']*[^\s,\"'])?|(?<=[\"'])[^\"',]+(?=[\"'])")
_COMMENT: Final = re.compile(r"^\s*(?:#|//|--\s|<!--)")
_SAID: Final = re.compile(r"\s*(?:echo|printf)\s[^|>]*$")  # a shell's words for people


class Part(NamedTuple):
    """One stretch of a file in one language: a whole script, or a code block of a guide."""

    language: Language
    lines: tuple[Line, ...]  # numbered as in the file

    @property
    def text(self) -> str:
        """The part's lines as one text, without their numbers."""
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
    for number, line in _without_wrong_columns(part.lines) if part.language == "prose" else part.lines:
        if part.language == "prose":
            if not line.lstrip().startswith("<!--") and (advised := _advised(line)):
                yield number, advised
        elif not _COMMENT.match(line) and not _SAID.match(line):
            yield number, re.sub(r"\s#\s.*$", "", line)


def _advised(line: str) -> str:
    """A line of prose without the sentences that warn of what they name; "" where one warns of what the others do."""
    sentences = _SENTENCE.split(line)
    warning = [_warns(one) for one in sentences]
    if any(warns and not _CODE.search(one) for one, warns in zip(sentences, warning, strict=True)):
        return ""
    return " ".join(one for one, warns in zip(sentences, warning, strict=True) if not warns)


def _warns(sentence: str) -> bool:
    unconditional = _CLAUSE.sub(
        "", re.sub(r"`[^`]+`", "`code`", sentence)
    )  # what a command says is not the guide's word
    plain = _EMPHASIS.sub("", unconditional)
    return any(pattern.search(one) for pattern in (_WARNS, _BLAMES) for one in (unconditional, plain))


def _without_wrong_columns(lines: tuple[Line, ...]) -> Iterator[Line]:
    """Lines of prose; of a table that says which column is wrong, or why it all is, only what it says is right."""
    wrong: frozenset[int] = frozenset()
    for at, (number, line) in enumerate(lines):
        if "|" not in line:
            wrong = frozenset()
        elif at + 1 < len(lines) and _TABLE_RULE.match(lines[at + 1][1]):
            wrong = _wrong_columns(_CELL_ENDS.split(line))
        if wrong:
            cells = _CELL_ENDS.split(line)
            line = "|".join(" " if i in wrong else cell for i, cell in enumerate(cells))
        yield number, line


def _wrong_columns(heads: list[str]) -> frozenset[int]:
    if any(map(_REASON_COLUMN.search, heads)):
        return frozenset(
            i for i, head in enumerate(heads) if not _RIGHT_COLUMN.search(head) or _REASON_COLUMN.search(head)
        )
    return frozenset(i for i, head in enumerate(heads) if _WRONG_COLUMN.search(head))


def commands(part: Part) -> Iterator[Line]:
    """Statements with those that a backslash continues put together, and commands that are given as lists (Kubernetes,
    Compose, a Dockerfile) as a shell would have them, each under the number of its first line."""
    first, whole = 0, ""
    for number, line in _without_lists(statements(part)):
        first = first if whole else number
        whole += line
        if whole.endswith("\\") and part.language != "prose":
            whole = whole[:-1] + " "
            continue
        yield first, whole
        whole = ""
    if whole:
        yield first, whole


def _without_lists(lines: Iterable[Line]) -> Iterator[Line]:
    """`command: [torchrun, "--nnodes=2"]`, `args:` after it, and the same with an item a line: as one command line."""
    words: list[str] = []  # of the command that is being put together
    first, indent = 0, -1  # its line; how far its items stand in, -1 where none may follow
    for number, line in lines:
        if match := _LIST.match(line) or _LIST_BEGINS.match(line):
            if words and match["key"].lower() != "args":
                yield first, " ".join(words)
                words = []
            first = first if words else number
            words += _ITEM.findall(match["items"] or "")
            indent = -1 if match["items"] else len(match["indent"])
        elif indent >= 0 and (match := _LIST_ITEM.match(line)) and len(match["indent"]) >= indent:
            words.append(match["item"].strip("\"'"))
        else:
            if words:
                yield first, " ".join(words)
            words, indent = [], -1
            yield number, line
    if words:
        yield first, " ".join(words)


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
    sentence = _SENTENCE.split(said)[-1]
    last = _CLAUSE.sub("", sentence)
    if _warns(sentence) or _WARNS_OF_CODE.search(last) or (_COMMENT.match(head) and _WARNS_OF_CODE.search(head)):
        return
    kind = _LANGUAGES.get(language) or ("json" if not language and head.strip() == "{" else "shell")
    yield Part(kind, tuple(block))
