"""What a verdict may say is wrong: each cause with what it means, and what follows from it everywhere, in one row.

Nobody keeps a set of causes of his own: who asks something of causes that no column answers adds a column, so that a
new cause cannot be forgotten there.
"""

from typing import Literal, NamedTuple

Cause = Literal[
    "not_entered", "collective_mismatch", "data_exhausted", "group_order", "p2p_unmatched", "rank_exited",
    "rank_raised", "process_stopped", "init_missing", "gpu_kernel_stuck", "gpu_fault", "fabric_fault", "comm_stuck",
    "slow_rank", "waiting", "job_ended", "healthy", "undecided",
]  # fmt: skip
# at_once: it stands and cannot resolve itself; there is nothing to wait for. stuck: as far as two looks can tell.
# waits, slow, well: the job moves, and somebody waits long, holds it back, or nothing is wrong. over: nobody's fault.
State = Literal["at_once", "stuck", "undecided", "waits", "slow", "well", "over"]


class CauseTraits(NamedTuple):
    """What holds for all verdicts with this cause."""

    state: State  # what it says of the job; urgency, patience, exit codes and colours go by it
    lies_in: Literal["program", "hardware", "elsewhere"]  # program: in what is called, and where
    # system: processes, kernel and GPUs; recorders have no part in it, so what they leave open makes it no less sure.
    told_by: Literal["recorders", "system"]
    # Who must have spoken before it is believed, in a job of several nodes. its_node: it alone can see it, so there it
    # is proven when it is likely; its_node_at_once: and no other rank's end or absence leads to it.
    proven_by: Literal["all_nodes", "its_node", "its_node_at_once"]
    deadly: bool  # a job dies of it; whoever ended one that merely stood knows that it is over
    ends_with: Literal["nothing", "culprits", "everybody"]  # whose doing tells whether it may end by itself
    meaning: str
    doubts_node: bool = False  # a node that showed it is examined before it takes another job
    comes_and_goes: bool = False  # who shows it at one look may go on a moment later, again and again

    @property
    def accuses(self) -> bool:
        """Something is found to be wrong. What is not may still become anything at the next look."""
        return self.state in ("at_once", "stuck", "slow")

    @property
    def stands(self) -> bool:
        """A job is found to be stuck, by whatever."""
        return self.state in ("at_once", "stuck")

    @property
    def holds_back(self) -> bool:
        """The job moves, slower than it could, because of its culprits: it costs a share of each step."""
        return self.state == "slow"

    @property
    def flows(self) -> bool:
        """No operation of the job is stuck: what was pending at a look has long been completed."""
        return self.state in ("slow", "well")

    @property
    def may_be_slow(self) -> bool:
        """One look may say it of a job of which many steps show that ranks hold it back."""
        return self.state in ("undecided", "waits", "slow", "well")


# In the order of the documents. Which one is told where several fit: PRECEDENCE (diagnosis/verdicts.py).
CAUSES: dict[Cause, CauseTraits] = {
    "not_entered": CauseTraits(
        "stuck", "program", "recorders", "all_nodes", deadly=False, ends_with="culprits",
        meaning="culprits never entered the collective or P2P that the others wait in; `where` says what they do "
        "instead",
    ),
    "collective_mismatch": CauseTraits(
        "at_once", "program", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="culprits entered another operation, size, dtype, or one more or less",
    ),
    "data_exhausted": CauseTraits(
        "stuck", "program", "recorders", "all_nodes", deadly=False, ends_with="culprits",
        meaning="culprits left the training loop early and wait elsewhere",
    ),
    "group_order": CauseTraits(
        "at_once", "program", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="a cycle of waits over two or more process groups",
    ),
    "p2p_unmatched": CauseTraits(
        "at_once", "program", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="a send without its recv, or a cycle of them",
    ),
    "rank_exited": CauseTraits(
        "at_once", "elsewhere", "system", "its_node", deadly=True, ends_with="nothing",
        meaning="its process is gone: exit code, signal, out-of-memory kill, or unknown",
    ),
    "rank_raised": CauseTraits(
        "at_once", "program", "system", "its_node", deadly=True, ends_with="nothing",
        meaning="it hit an exception and is in teardown, or swallowed it",
    ),
    "process_stopped": CauseTraits(
        "at_once", "elsewhere", "system", "its_node_at_once", deadly=False, ends_with="nothing",
        meaning="held by SIGSTOP or a debugger",
        comes_and_goes=True,
    ),
    "init_missing": CauseTraits(
        "stuck", "elsewhere", "recorders", "all_nodes", deadly=False, ends_with="culprits",
        meaning="culprits never reached rendezvous",
    ),
    "gpu_kernel_stuck": CauseTraits(
        "stuck", "elsewhere", "recorders", "its_node", deadly=False, ends_with="nothing",
        meaning="the culprit's GPU runs a kernel that is no communication and does not end",
        doubts_node=True,
    ),
    "gpu_fault": CauseTraits(
        "at_once", "hardware", "system", "its_node_at_once", deadly=True, ends_with="nothing",
        meaning="XID, ECC, lost from the bus, recovery action",
        doubts_node=True,
    ),
    "fabric_fault": CauseTraits(
        "at_once", "hardware", "system", "all_nodes", deadly=True, ends_with="nothing",
        meaning="NIC, NVLink or switch errors explain it",
        doubts_node=True,
    ),
    "comm_stuck": CauseTraits(
        "stuck", "elsewhere", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="every rank entered the same operation and none finishes; no culprit is named",
    ),
    "slow_rank": CauseTraits(
        "slow", "program", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="the job moves, and these ranks hold it back",
    ),
    "waiting": CauseTraits(
        "waits", "program", "recorders", "all_nodes", deadly=False, ends_with="nothing",
        meaning="a long wait whose culprit makes progress",
    ),
    "job_ended": CauseTraits(
        "over", "elsewhere", "system", "all_nodes", deadly=False, ends_with="nothing",
        meaning="the whole job was ended from outside, or is over; no culprit",
    ),
    "healthy": CauseTraits(
        "well", "elsewhere", "recorders", "all_nodes", deadly=False, ends_with="nothing", meaning="nothing is wrong",
    ),
    "undecided": CauseTraits(
        "undecided", "program", "recorders", "all_nodes", deadly=False, ends_with="everybody",
        meaning="the evidence does not decide; `missing` says what would",
    ),
}  # fmt: skip


def table() -> str:
    """The causes as a page shows them, in Markdown."""
    rows = (f"| `{cause}` | {traits.meaning} |" for cause, traits in CAUSES.items())
    return "\n".join(("| cause | meaning |", "|---|---|", *rows))
