"""How slow ranks are told: who they are, what it costs, what is seen of them; of one node and of all nodes of a job."""

from collections.abc import Sequence

import msgspec

from stallwatch.detectors.waiting import Least
from stallwatch.model.verdict import Slowness, cost_of


class SlowReason(msgspec.Struct, frozen=True):
    """Why ranks are held to be slow, in words: who and by what, what it costs, and what is seen of them."""

    who: str
    cost_lead: str = ""  # "; "; "": the cost was not known
    why: str = ""

    def told(self, slowness: Slowness | None) -> str:
        """With this cost."""
        cost = f"{self.cost_lead}{cost_of(slowness)}" if self.cost_lead and slowness is not None else ""
        return f"{self.who}{cost}{self.why}"


def cost_lead(slowness: Slowness | None) -> str:
    """What stands between who is slow and what that costs; "" where the cost is not known."""
    return "" if slowness is None else "; "


def held_back(least: Least, since: str, whose: str = "they") -> str:
    """Given who waits least, return who holds whom back, and by which shares of waiting. `since`: a clause that begins
    with a space, or ""; `whose`: of whom the others' share is."""
    holds = "holds" if len(least.ranks) == 1 else "hold"
    return (
        f"{_ranks(least.ranks)} {holds} the others back{since}: in the last {least.looks} looks {whose} stood waiting "
        f"in a collective {least.peers_share:.0%} of the time, {_ranks(least.ranks)} {least.share:.0%}"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
