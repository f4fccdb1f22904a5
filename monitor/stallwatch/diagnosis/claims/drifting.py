"""Nobody waits yet, but one rank's calls pair with the wrong ones of the others: the hang comes later, or never, and
the numbers are wrong from here on."""

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.calls.drift import one_off
from stallwatch.diagnosis.claim import Claim, Saying
from stallwatch.model.verdict import Fact, Mismatch


def claim(story: Story) -> Saying:
    if story.hangs:
        return None
    for group in story.case.groups:
        for drift in one_off(story.case, group.index):
            few = drift.shift > 0
            call = story.case.streams[group.index][drift.culprits[0]].call_at(drift.seq)
            return Claim(
                cause="collective_mismatch",
                culprits=drift.culprits,
                confidence="likely",
                because=(Fact(drift.reason, "flight recorders"),),
                where="collective",
                mismatch=Mismatch("count", "one call more" if few else "none", "none" if few else "one call more"),
                group=group.index,
                operation=call.operation if call else None,
                seq=drift.seq,
                site=call.site if call and not few else "",
            )
    return None
