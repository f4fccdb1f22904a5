"""Steps for ranks that called what does not fit together: a property of the program, the same at every run."""

from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.report.steps_scene import Scene
from stallwatch.diagnosis.report.text import place

_LEFT_ITS_LOOP = (
    "Read its log: an exception that `finally` or `except` swallowed, and a signal, lead out of the loop to the same "
    "call as the end of data; print the traceback before any collective of a cleanup."
)


def mismatch(scene: Scene) -> list[str]:
    mismatch = scene.verdict.mismatch
    if scene.rank is None:
        return [
            "Print shape and data type of the tensors before each collective, on every rank: the one that aborted has "
            "a smaller one than the rank that sent to it (in all_reduce the next higher rank, rank 0 after the last). "
            "Whichever of the two differs from all others is wrong.",
            "Look for a batch, sequence or bucket whose length differs by rank, a cast that only some ranks take.",
            "To confirm, run a small job with TORCH_DISTRIBUTED_DEBUG=DETAIL: it checks every collective and raises on "
            "the first that differs (slow, so not for production).",
        ]
    at = f" {scene.name_first} is now at {place(scene.process.frame)}." if scene.process.frame else ""
    seen = f"{scene.name} has {mismatch.found}, the others {mismatch.expected}" if mismatch else "they differ"
    causes = {
        "op": "a branch that depends on the rank, its data or a metric that only some ranks have",
        "size": "a batch, sequence or bucket whose length differs by rank: print the shape before the call",
        "dtype": "autocast or a cast that only some ranks take: print the dtype before the call",
        "count": "a loop or gradient accumulation that runs another number of times on it",
    }
    cause = causes[mismatch.kind] if mismatch else causes["op"]
    left = mismatch is not None and mismatch.kind == "op" and signature.is_barrier(mismatch.found)
    return [
        f"Compare the code paths of {scene.name} and of another rank up to the call: {seen}.{at}",
        *((_LEFT_ITS_LOOP,) if left else ()),
        f"Look for {cause}.",
        "To confirm, run a small job with TORCH_DISTRIBUTED_DEBUG=DETAIL: it checks every collective and raises on the "
        "first that differs (slow, so not for production).",
        "Stop the job and start it from its last checkpoint: a mismatched collective never finishes.",
    ]


def exhausted(scene: Scene) -> list[str]:
    return [
        f"Compare the number of batches by rank: print len(loader) on {scene.name} and on the others before the loop.",
        _LEFT_ITS_LOOP,
        "Give every rank the same number: drop_last=True with DistributedSampler, a fixed number of steps per epoch, "
        "or an all_reduce(MIN) of the counts before the loop; DDP and FSDP have the Join context for uneven inputs.",
        "If a signal or an early-stopping condition ended the loop, decide it together: all_reduce the flag at each "
        "step.",
        "Stop the job and start it from its last checkpoint: the others wait for a step that never comes.",
    ]


def group_order(scene: Scene) -> list[str]:
    return [
        f"Let every rank use its process groups in the same order; {scene.name} stands at "
        f"{place(scene.process.frame) or 'a line that was not read'}.",
        "Look for an operation that only some ranks start earlier: a metric, a .item() that waits for the GPU between "
        "two groups, a background thread with collectives of its own.",
        "Run the operations of a background thread in a process group of its own, and join it before the next step.",
        "Stop the job and start it from its last checkpoint: a circle of waits does not resolve itself.",
    ]


def p2p(scene: Scene) -> list[str]:
    return [
        f"Pair every send with its receive; {scene.name} stands at "
        f"{place(scene.process.frame) or 'a line that was not read'}.",
        "Where two ranks exchange, post both directions in one batch_isend_irecv, or let even ranks send first and odd "
        "ranks receive first.",
        "Check that both sides run the same number of micro-batches, in the same order of peers.",
        "Stop the job and start it from its last checkpoint.",
    ]


def ran_past(scene: Scene) -> list[str]:
    return [
        f"Compare the loop of {scene.name} with another rank's: what lets it go round without the call? It is now "
        f"at {place(scene.process.frame) or 'a line that was not read'}.",
        "Look for a no_sync() that depends on a counter, `continue` or `if` around the call, a skipped backward pass, "
        "another accumulation or group on that rank.",
        f"What {scene.name} computes meanwhile is lost: its model no longer is the others'. Do not save a checkpoint "
        "from it.",
        "Stop the job and start it from its last checkpoint: it does not come back to that call.",
    ]
