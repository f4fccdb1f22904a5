"""A verdict's steps stand beneath its sentence, wherever they are shown: what that has said they do not say again."""

import re
from collections.abc import Iterable

from stallwatch.model.verdict import Verdict

_STANDS = re.compile(
    r"(?P<lead>; |(?<=[.?]) | \()(?:[Ii]t|[Tt]he rank|[Rr]ank \d+|[Tt]he call) (?:stands|waits|is now|is) at "
)
_PLACE_ENDS = re.compile(r": |\.?\Z")
_BRACKET_ENDS = re.compile(r"\)\.?\Z")


def unrepeated(steps: Iterable[str], verdict: Verdict) -> tuple[str, ...]:
    """Given what to do, return it without the place of a rank, and without what differs, where the verdict's sentence
    says it."""
    made = tuple(_without_place(step, verdict.summary) for step in steps)
    if verdict.mismatch is not None and says_what_differs(verdict):
        found, expected = re.escape(verdict.mismatch.found), re.escape(verdict.mismatch.expected)
        made = tuple(re.sub(rf": [^:]* has {found}, the others {expected}", "", step) for step in made)
    return made


def says_what_differs(verdict: Verdict) -> bool:
    """Whether the sentence names both sides of a mismatch."""
    differs = verdict.mismatch
    return differs is not None and differs.expected in verdict.summary and differs.found in verdict.summary


def _without_place(step: str, said: str) -> str:
    match = _STANDS.search(step)
    if match is None:
        return step
    rest = step[match.end() :]
    closes = _BRACKET_ENDS if match["lead"] == " (" else _PLACE_ENDS
    ends = [end for end in range(len(rest), 4, -1) if closes.match(rest[end:]) and rest[:end].count("`") % 2 == 0]
    ends = [end for end in ends if rest[:end] in said]
    if not ends:
        return step
    before, after = step[: match.start()], rest[ends[0] :]
    if after.startswith(": "):  # what follows is of the place
        return f"{before}; {after[2:]}" if match["lead"] == "; " else step
    return {"; ": before + after, " (": before + after[1:]}.get(match["lead"], before.rstrip())
