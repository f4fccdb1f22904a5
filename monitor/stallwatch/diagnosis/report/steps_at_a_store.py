"""Steps for a rank that waits for others to come: at a rendezvous, at a store, in the making of a group."""

from stallwatch.diagnosis.activity.blocking_location import WAITS_FOR_A_KEY, WAITS_FOR_WORKERS
from stallwatch.diagnosis.frames.code_origin import function
from stallwatch.diagnosis.report.step_context import Stuck
from stallwatch.diagnosis.step import NextStep, of_the_living, restart


def store(at: Stuck) -> list[NextStep]:
    """Given a rank that waits there, say what to look at on its host and what mends it."""
    if at.activity and at.activity.place.detail == WAITS_FOR_A_KEY:
        return [
            of_the_living(f"{at.stacks}; it waits at {at.line} for a key of the store that nobody has set."),
            "Look in the code for what sets that key (`store.set`, `store.add`): a branch on the rank, an exception or "
            "an early return kept it from that. A rank that went on may be the one.",
            "Give the wait a time-out of its own (`store.wait([key], timedelta(minutes=5))`): its exception names the "
            "key.",
            of_the_living(
                f"From {at.host} reach the store: `nc -vz $MASTER_ADDR $MASTER_PORT`; rank 0 serves it and must be "
                "alive."
            ),
        ]
    if at.activity and at.activity.place.detail == WAITS_FOR_WORKERS:
        return [
            of_the_living(f"{at.stacks}; at {at.line} it waits until as many have come as that call names."),
            "Start what is to come (a server of inference, another group of the job), with the same address and port, "
            "and see in its log why it has not: the call's `world_size` counts the one that opens the store, too.",
            "Or have it wait for nobody (`wait_for_workers=False`), or for no longer than training can stand still "
            "(`timeout=timedelta(minutes=5)`).",
        ]
    if _begins_anew(at):
        return [
            f"Ask why {at.name} begins anew: it is in init_process_group, and the others are in a collective of groups "
            "that they had with it. Something started it again alone (a supervisor, Kubernetes' restartPolicy, a retry "
            "of its script), or it has destroyed its groups.",
            "Let what starts one rank again start all of them: `torchrun --max-restarts`, the restart of the whole job "
            "in Kubernetes and Slurm.",
            restart("Stop the job and start all its ranks from the last checkpoint: one cannot come back alone."),
        ]
    return [
        of_the_living(f"{at.stacks}; it waits at {at.line} for ranks that have not come."),
        "Let every rank of the job call init_process_group and new_group, in the same order, members or not.",
        of_the_living(
            f"From {at.host} reach the store: `nc -vz $MASTER_ADDR $MASTER_PORT`; rank 0 serves it and must be alive."
        ),
        "Run `stallwatch doctor` on the nodes of the missing ranks.",
    ]


def _begins_anew(at: Stuck) -> bool:
    """Whether it makes its first group while the others, who had made theirs together with it, train."""
    stack = at.activity.place.stack if at.activity else ()
    trains = at.who.verdict.cause == "not_entered" and at.who.verdict.seq is not None
    return trains and any(function(frame.name) == "init_process_group" for frame in stack)


def rendezvous() -> list[NextStep]:
    """Everybody who was seen is at the rendezvous."""
    variables = "MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|NODE_RANK"
    return [
        of_the_living(
            f"Compare what the ranks were given: `for p in $(pgrep -f <script>); do tr '\\0' '\\n' </proc/$p/environ | "
            f"grep -E '^({variables})='; done` on each node, and `stallwatch doctor`, which names the ranks that "
            "differ."
        ),
        "Count the ranks: as many as WORLD_SIZE must run, each with a RANK of its own; the launcher's log tells "
        "of those that never started.",
        of_the_living("From every node reach the store: `nc -vz $MASTER_ADDR $MASTER_PORT`; rank 0 serves it."),
    ]
