"""A log's bytes as lines: in whatever encoding it was redirected, as whoever split or overwrote them meant them."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stallwatch.formats.log_prefix import LONGEST_PREFIX

MAXIMUM_LINE: Final = 4_096
_LOOK_BYTES: Final = 4_096
# A container's runtime splits what is long: all parts but the last are marked P.
_PART: Final = re.compile(r"(?P<head>\d\S+ (?P<stream>std(?:out|err)) )(?P<mark>[PF])(?P<text> .*|$)", re.DOTALL)
_MARK_WITHIN: Final = 64
_MOST_PARTS_TEXT: Final = 4 * MAXIMUM_LINE
# Text that was copied from a terminal is cut at its width. Only torch's own lines are put together again: what is
# shorter than a terminal, or longer, is no such text.
_WIDTHS: Final = range(60, 400)
_PAGE_INDENT: Final = 4
_DEEPEST_QUOTE: Final = 32  # of mails that answer one another; a line may be of nothing but ">"
_QUOTES: Final = re.compile(rf"(?:> ?){{0,{_DEEPEST_QUOTE}}}")
_WIDEST_INDENT: Final = 64  # of a page; a line may be of nothing but spaces
_FEWEST_CUT: Final = 3
_FEWEST_ENDS: Final = 2
_WIDEST_MAIL: Final = 100
_WORD: Final = 16  # no longer is the word that a mail writes into the next line
_OF_A_RULE: Final = 3  # different characters, at most, of a line that only separates
_MOST_CUT: Final = 40  # lines of a terminal that one line takes
# What ends so is whole, though many of one job's lines may be as long.
_WHOLE: Final = re.compile(r"(?:before timing out\.|last completed (?:NCCL )?work: -?\d+\.?|[\"}\]])\r?$")
_OF_TORCH: Final = re.compile(r"\[[EWF](?:\d{3,4} [\d:.]+)? ?(?:ProcessGroup\w+|TCPStore|socket|Utils)\.[ch]pp:\d+\] ")
# Of torch's other files, of its agents: a line of its own.
_BEGINS: Final = re.compile(r"\b[EWIF]\d{3,4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?[\w./]+:\d+\] ")


def encoding_of(data: bytes) -> str | None:
    """Given the first bytes of a file, return the encoding of two bytes a character that it has (PowerShell's ">"
    writes it); None where it has none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    look = data[: _LOOK_BYTES & ~1]
    even, odd = look[::2].count(0), look[1::2].count(0)
    if len(look) >= 8 and min(even, odd) == 0 and 4 * max(even, odd) > len(look):
        return "utf-16-le" if odd else "utf-16-be"
    return None


def as_utf8(data: bytes) -> bytes:
    """Given a text file's bytes, return them in UTF-8 where it has two bytes a character, else as they are."""
    encoding = encoding_of(data)
    return data.decode(encoding, "replace").encode() if encoding else data


def outdented(lines: list[str]) -> list[str]:
    """Given the lines of a log, return them without what all of them have before them: the mark of a text that a mail
    or a page quotes, and the indentation of a page (Markdown's code), from which the text was taken."""
    depth = _quoted_depth(lines)
    if depth:
        quotes = re.compile(rf"(?:> ?){{0,{depth}}}")
        lines = [quotes.sub("", line, count=1) for line in lines]
    begins = [line[:_WIDEST_INDENT] for line in lines if line.strip()]
    indent, other = min(begins, default=""), max(begins, default="")  # what these two have in common, all have
    while not (other.startswith(indent) and indent.strip(" \t") == ""):
        indent = indent[:-1]
    if len(indent.expandtabs(_PAGE_INDENT)) < _PAGE_INDENT:
        return lines  # a traceback's own lines have two
    return [line.removeprefix(indent) for line in lines]


def _quoted_depth(lines: Iterable[str]) -> int:
    """How many marks of a quotation all lines that say anything begin with."""
    depth = _DEEPEST_QUOTE
    for line in lines:
        marks = _QUOTES.match(line)
        if marks is not None and line[marks.end() :].strip():
            depth = min(depth, marks[0].count(">"))
        if not depth:
            break
    return depth


def _width(lines: Sequence[str]) -> int | None:
    """The width at which a terminal cut torch's lines; None where nothing shows it."""
    of_torch = [line.rstrip("\r") for line in lines if _OF_TORCH.search(line, 0, LONGEST_PREFIX)]
    width = max(map(len, lines), default=0) - (1 if lines and lines[0].endswith("\r") else 0)
    cut = sum(_is_cut(line, width) for line in of_torch)
    sure = (cut >= _FEWEST_CUT and 3 * cut >= len(of_torch)) or (cut > 0 and _is_padded(lines, width))
    return width if width in _WIDTHS and sure else None


def _is_padded(lines: Sequence[str], width: int) -> bool:
    """Whether a terminal's window was copied with the spaces behind its lines: all are as wide as it was."""
    held = [line.rstrip("\r") for line in lines if line.strip()]
    return (
        len(held) >= _FEWEST_CUT and all(len(line) == width for line in held) and any(line[-1] == " " for line in held)
    )


def _is_cut(line: str, width: int) -> bool:
    return len(line.rstrip("\r")) == width and not _WHOLE.search(line)


def cut_lines(lines: Sequence[str]) -> frozenset[int]:
    """Given the lines of a log, return the numbers of those that somebody's terminal, mail or table may have cut: of
    the greatest length, with others, or nearly so in a text of a mail's width."""
    lengths = [len(line.rstrip("\r")) for line in lines]
    width = max(lengths, default=0)
    if width not in _WIDTHS:
        return frozenset()
    least = width - _WORD if width <= _WIDEST_MAIL else width
    ends = [at for at, length in enumerate(lengths) if length >= least and len(set(lines[at])) > _OF_A_RULE]
    return frozenset(at + 1 for at in ends) if len(ends) >= _FEWEST_ENDS else frozenset()


def uncut(lines: Sequence[str]) -> Sequence[str]:
    """Given the lines of a log, return them with those of torch whole that a terminal's width has cut; what was joined
    leaves an empty line, so that numbers stay."""
    width = _width(lines)
    if width is None:
        return lines
    out, at = [], 0
    while at < len(lines):
        end = at + 1
        if _OF_TORCH.search(lines[at], 0, LONGEST_PREFIX):
            while end < min(len(lines), at + _MOST_CUT) and _is_cut(lines[end - 1], width):
                if any(header.search(lines[end], 0, LONGEST_PREFIX) for header in (_OF_TORCH, _BEGINS)):
                    break
                end += 1
        out.append("".join(line.rstrip("\r") for line in lines[at:end]) if end > at + 1 else lines[at])
        out += [""] * (end - at - 1)
        at = end
    return out


# Tools that fill paragraphs break a line between words, and put what they mark lines with before its first part only.
_BROKEN: Final = (
    (re.compile(r"Watchdog caught collective operation timeout:"), re.compile(r"\bbefore timing out\b")),
    (re.compile(r"detected(?:\s*by watchdog at work\b.*)?$"), re.compile(r"last completed (?:NCCL )?work: -?\d+")),
)
_MOST_BROKEN: Final = 4  # lines that one of torch's takes then


def refilled(lines: Sequence[str]) -> Sequence[str]:
    """Given the lines of a log, return them with those of torch whole that were broken between words; what was joined
    leaves an empty line, so that numbers stay."""
    out, at = [], 0
    while at < len(lines):
        end = _end_of_broken(lines, at) if "ProcessGroup" in lines[at] else at + 1
        out.append(" ".join((lines[at], *(line.strip() for line in lines[at + 1 : end]))))
        out += [""] * (end - at - 1)
        at = end
    return out


def _end_of_broken(lines: Sequence[str], at: int) -> int:
    """Behind the last line of what begins there; of a line that is whole, or never ends, behind itself."""
    if not _OF_TORCH.search(lines[at], 0, LONGEST_PREFIX):
        return at + 1
    text = lines[at].rstrip()
    end = next((end for begin, end in _BROKEN if begin.search(text) and not end.search(text)), None)
    for after in range(at + 1, min(len(lines), at + _MOST_BROKEN)) if end is not None else ():
        more = lines[after].strip()
        if not more or any(head.search(more, 0, LONGEST_PREFIX) for head in (_OF_TORCH, _BEGINS)):
            break
        text += f" {more}"
        if end is not None and end.search(text):
            return after + 1
    return at + 1


def whole_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Given the lines of a file, return what was written as one line, with the number of its first: parts of split ones
    joined, and of progress bars that overwrote each other the last, with what stands before the first."""
    parts: dict[str, tuple[int, str]] = {}
    for number, raw in enumerate(lines, 1):
        text, first = raw, number
        within = raw[:_MARK_WITHIN]
        if (" P" in within or parts) and (part := _PART.match(raw)):
            first, before = parts.pop(part["stream"], (number, ""))
            text = before + part["text"][1:] if before else f"{part['head']}F{part['text']}"
            if part["mark"] == "P" and len(text) < _MOST_PARTS_TEXT:
                parts[part["stream"]] = first, text.rstrip("\r")
                continue
        if len(text) > MAXIMUM_LINE:
            bars = text.rstrip("\r").split("\r")
            text = "\r".join((bars[0][:LONGEST_PREFIX], bars[-1])) if len(bars) > 1 else text
        yield first, text[:MAXIMUM_LINE]
    for first, text in sorted(parts.values()):
        yield first, text[:MAXIMUM_LINE]
