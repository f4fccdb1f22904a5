"""The blocks of Python code that a line stands in, by its indentation: loops, conditions, handlers of exceptions.

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
