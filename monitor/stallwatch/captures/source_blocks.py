"""The blocks of Python code that a line stands in, by its indentation: loops, conditions, handlers of exceptions; and
which lines before it gave what it waits for, and which call to other ranks each round makes.

By indentation and not by a parser: another Python may have written the file, and nothing that it holds can hurt.
"""

import re
from collections.abc import Sequence

from stallwatch.model.evidence import SourceBlock

_HEADER = re.compile(r"(?:async\s+)?(for|while|if|elif|else|try|except|finally|with|match|case|def|class)\b")
_ONE_LINE = re.compile(r"(?:async\s+)?(for|while)\b.*:\s*\S")
_CLOSES = re.compile(r"[)\]}]")
_ENDS = ("def", "class")  # what lies around a function is another frame's
_KEPT = frozenset({"for", "while", "if", "elif", "else", "except", "finally"})
_HEADER_CHARACTERS = 120
_WAITED_FOR = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^\]]*\])?\.wait\s*\(")
_GIVES = (
    r"(?:^|[;(])\s*{0}\s*(?::[^=]*)?\+?=(?!=)|\b{0}\.(?:append|extend)\s*\("
    r"|\b(?:async\s+)?for\b[^:]*\b{0}\b[^:]*\bin\b"
)
_TAKES_FROM = re.compile(r"\bin\s+(?:\w+\s*\(\s*)?([A-Za-z_]\w*)\s*[,):\]]")
_COMMUNICATES = re.compile(
    r"\b(?:all_reduce|reduce_scatter|all_gather|broadcast|barrier|all_to_all)\w*\s*\(|\.backward\s*\("
    r"|\boptim\w*\.step\s*\("
)
_LEAVES = re.compile(r"(?:continue|break|return|raise)\b")
_MOST_GIVEN = 4  # lines
_MOST_CONTINUED = 12  # lines of one call
_GIVEN_CHARACTERS = 400


def blocks_around(lines: Sequence[str], number: int) -> tuple[SourceBlock, ...]:
    """Given a file's lines and a number from 1, return the blocks around that line, outermost first."""
    if not 1 <= number <= len(lines):
        return ()
    found: list[SourceBlock] = []
    depth = _indentation(lines[number - 1])
    if match := _ONE_LINE.match(lines[number - 1].strip()):
        found.append(_block(match[1], number, lines[number - 1]))
    for place in range(number - 2, -1, -1):
        line = lines[place]
        text = line.strip()
        if depth == 0:
            break
        if not text or text.startswith("#") or _indentation(line) >= depth:
            continue
        if _CLOSES.match(text):
            depth = _indentation(line) + 1  # the end of a header of several lines, which begins above
            continue
        match = _HEADER.match(text)
        depth = _indentation(line)
        if match is None:
            continue
        if match[1] in _ENDS:
            break
        if match[1] in _KEPT:
            found.append(_block(match[1], place + 1, line))
    return tuple(reversed(found))


def _block(kind: str, number: int, line: str) -> SourceBlock:
    return SourceBlock(kind, number, line.strip()[:_HEADER_CHARACTERS])


def _indentation(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


def given_before(lines: Sequence[str], number: int) -> tuple[str, ...]:
    """Given a file's lines and a number from 1: where that line waits for something (`request.wait()`), return the
    lines of its function that gave it, nearest first: `for request in requests:`, `requests = [dist.irecv(…)]`."""
    found = _WAITED_FOR.search(lines[number - 1]) if 1 <= number <= len(lines) else None
    if found is None:
        return ()
    names, given = [found[1]], dict[int, str]()
    first = _function_begins(lines, number)
    for place in range(number - 1, first - 1, -1):
        text = lines[place]
        if text.lstrip().startswith("#") or not any(re.search(_GIVES.format(re.escape(name)), text) for name in names):
            continue
        given[place] = _whole(lines, place)
        # What a loop goes through was made before it; names are few, for a line of each is kept.
        names += [one for one in _TAKES_FROM.findall(text) if one not in names]
    return tuple(given.values())[:_MOST_GIVEN]


def communicates_each_round(lines: Sequence[str], number: int) -> str:
    """Given a file's lines and a number from 1, return the first call to other ranks that every round of the innermost
    loop around that line makes, which comes by it; where it is in no loop, every call of its function; "" for none."""
    if not 1 <= number <= len(lines):
        return ""
    around = blocks_around(lines, number)
    loop = next((block.line for block in reversed(around) if block.kind in ("for", "while")), None)
    first = loop if loop is not None else _function_begins(lines, number) + 1
    own = {block.line for block in around}
    found = ""
    for place in range(first, len(lines)):
        text = lines[place].strip()
        if text and not text.startswith("#") and _indentation(lines[place]) <= _indentation(lines[first - 1]):
            break
        speaks, leaves = _COMMUNICATES.search(text), place >= number and _LEAVES.match(text)
        if text.startswith("#") or not (speaks or leaves):
            continue
        if any(block.line not in own for block in blocks_around(lines, place + 1) if block.line > first):
            continue  # only now and then
        if leaves:
            break
        found = found or text
    return found[:_GIVEN_CHARACTERS]


def _function_begins(lines: Sequence[str], number: int) -> int:
    """The index of the header of the function around a line, 0 where it is in none."""
    depth = _indentation(lines[number - 1])
    for place in range(number - 2, -1, -1):
        match = _HEADER.match(lines[place].strip())
        if match is not None and match[1] == "def" and _indentation(lines[place]) < depth:
            return place
    return 0


def _whole(lines: Sequence[str], place: int) -> str:
    """A line with those in which its call goes on, until its brackets are closed."""
    text = ""
    for line in lines[place : place + _MOST_CONTINUED]:
        text = f"{text} {line.strip()}".strip()
        if sum(map(text.count, "([{")) <= sum(map(text.count, ")]}")):
            break
    return text[:_GIVEN_CHARACTERS]
