"""A step that says itself what is left of it when the job is over, or moves again: where it is written is where that is
known. A plain string is one that holds then as well.

A step keeps that only as it is: a text that is made of it (an f-string, a join) is a plain string again.
"""

from collections.abc import Sequence

from stallwatch.model.verdict import MOST_STEPS_LEFT, WhenOver


class Step(str):
    """A step as it is told while the job stands."""

    left: str  # how it is told when that is over; "": nothing of it is left
    starts_job: bool  # it says how the job is started again, so that nothing else has to

    def __new__(cls, text: str, *, left: str, starts_job: bool = False) -> "Step":
        """Return the step of a text, and what is left of it."""
        step = super().__new__(cls, text)
        step.left, step.starts_job = left, starts_job
        return step

    def __add__(self, more: str, /) -> "Step":
        """Return it with more said, then and now."""
        return Step(str(self) + more, left=self.left and self.left + more, starts_job=self.starts_job)


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


def when_over(steps: Sequence[str]) -> WhenOver:
    """Given the steps of a verdict, return what is left of them."""
    left = [step for step in steps if not isinstance(step, Step) or step.left]
    return WhenOver(
        tuple(step.left if isinstance(step, Step) else step for step in left[:MOST_STEPS_LEFT]),
        any(isinstance(step, Step) and step.starts_job for step in left),
    )
