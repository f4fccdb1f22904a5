"""A step that says itself what is left of it when the job is over, or moves again: where it is written is where that is
known. A plain string is one that holds then as well.
"""

from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from stallwatch.model.verdict import MOST_STEPS_LEFT, Verdict, WhenOver


class Step(msgspec.Struct, frozen=True):
    """A step as it is told while the job stands. No string: a text made of one would be told of a job that is over as
    well, so a step takes more words by `+` alone, and raises TypeError in an f-string."""

    text: str
    left: str  # how it is told when the job is over; "": nothing of it is left
    starts_job: bool = False  # it says how the job is started again, so that nothing else has to

    def __add__(self, more: str, /) -> "Step":
        """Return it with more said, then and now."""
        return Step(self.text + more, self.left and self.left + more, self.starts_job)

    def __format__(self, _: str, /) -> NoReturn:
        raise TypeError(f"a text would not know what is left of this step; add the text to it: {self.text!r}")


NextStep = Step | str


def of_the_living(text: str) -> Step:
    """A step that looks into a process of the job, lets it go on, waits for it or ends it, or reaches its store; or
    that goes by what such a step has shown."""
    return Step(text, left="")


def restart(text: str) -> Step:
    """A step that ends what stands and starts the job from its last checkpoint, and nothing else: of a job that has
    ended that is said by what it died of."""
    return Step(text, left="")


def starts_job(text: str, *, left: str = "") -> Step:
    """A step that starts the job in its own way: elsewhere, or with other settings. `left`: its words without what ends
    the job before; "": it is told as it is."""
    return Step(text, left=left or text, starts_job=True)


def text_of(step: NextStep) -> str:
    """A step as it is told while the job stands."""
    return step.text if isinstance(step, Step) else step


def once(steps: Iterable[NextStep]) -> tuple[NextStep, ...]:
    """Return the steps without those that say what one before them says."""
    said: dict[str, NextStep] = {}
    for step in steps:
        said.setdefault(text_of(step), step)
    return tuple(said.values())


def with_steps(verdict: Verdict, steps: Sequence[NextStep]) -> Verdict:
    """Return the verdict with its steps as they are told now, and with what is left of them when the job is over."""
    return msgspec.structs.replace(verdict, next_steps=tuple(map(text_of, steps)), when_over=when_over(steps))


def when_over(steps: Sequence[NextStep]) -> WhenOver:
    """Given the steps of a verdict, return what is left of them."""
    left = [step for step in steps if not isinstance(step, Step) or step.left]
    return WhenOver(
        tuple(step.left if isinstance(step, Step) else step for step in left[:MOST_STEPS_LEFT]),
        any(isinstance(step, Step) and step.starts_job for step in left),
    )
