"""Steps by cause: calls that do not fit together, processes that ended or raised, GPUs, networks and nodes."""

import re
from signal import SIGBUS
from typing import Final

from stallwatch.diagnosis.logs.remedies_of_gpus import LOST, is_lost
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.report.step_context import StepContext
from stallwatch.diagnosis.report.text import format_location
from stallwatch.diagnosis.step import NextStep, Step, of_the_living, restart, starts_job
from stallwatch.formats.xid import OF_THE_JOB
from stallwatch.model.signals import named_signal

# Of a line: while the rank stands there, and when that is over.
_NOW_AT: Final = ("is now", "stood")
_STANDS_AT: Final = ("stands", "stood")


# Steps for ranks that called what does not fit together: a property of the program, the same at every run.


_LEFT_ITS_LOOP = (
    "Read its log: an exception that `finally` or `except` swallowed, and a signal, lead out of the loop to the same "
    "call as the end of data; print the traceback before any collective of a cleanup."
)


_CONFIRM = (
    "To confirm, run a small job with TORCH_DISTRIBUTED_DEBUG=DETAIL: it checks every collective and raises on the "
    "first that differs (slow, so not for production)."
)
_WHAT_DIFFERS = {
    "op": "a branch that depends on the rank, its data or a metric that only some ranks have",
    "size": "a batch, sequence or bucket whose length differs by rank: print the shape before the call",
    "dtype": "autocast or a cast that only some ranks take: print the dtype before the call",
    "count": "a loop or gradient accumulation that runs another number of times on it",
}


def mismatch(who: StepContext) -> list[NextStep]:
    """Steps for calls that differ in operation, size, type or count."""
    mismatch = who.verdict.mismatch
    cause = _WHAT_DIFFERS[mismatch.kind] if mismatch else _WHAT_DIFFERS["op"]
    if who.rank is None and mismatch is not None and mismatch.kind in ("op", "count"):
        return [
            "Compare the code paths of a rank of each side up to that call: one of them left a collective out, or made "
            "one that the others did not.",
            f"Look for {cause.removesuffix(' on it')}.",
            _CONFIRM,
        ]
    if who.rank is None and who.verdict.seq is not None:
        return [
            "Print shape and data type of the tensors before that call, on a rank of each side, and compare how each "
            "came to its own.",
            "Look for a batch, sequence or bucket whose length differs by rank, a cast that only some ranks take.",
            _CONFIRM,
        ]
    if who.rank is None:
        return [
            "Print shape and data type of the tensors before each collective, on every rank: the one that aborted has "
            "a smaller one than the rank that sent to it (in gloo's all_reduce the next higher rank, rank 0 after the "
            "last). Whichever of the two differs from all others is wrong.",
            "Look for a batch, sequence or bucket whose length differs by rank, a cast that only some ranks take.",
            _CONFIRM,
        ]
    frame = who.process.frame
    now, then = (
        (who.place(frame).clause(f" {who.name_first} {verb} at", with_pid=False) if frame else "") for verb in _NOW_AT
    )
    differs = who.differs if mismatch else ": they differ"
    left = mismatch is not None and mismatch.kind == "op" and signature.is_barrier(mismatch.found)
    compare = f"Compare the code paths of {who.name} and of another rank up to the call{differs}."
    return [
        Step(f"{compare}{now and f'{now}.'}", left=f"{compare}{then and f'{then}.'}"),
        *((_LEFT_ITS_LOOP,) if left else ()),
        f"Look for {cause}.",
        _CONFIRM,
        restart(
            "Stop the job and start it from its last checkpoint of before that call: what does not fit never ends, or "
            "with wrong numbers."
        ),
    ]


def exhausted(who: StepContext) -> list[NextStep]:
    """Steps for a rank that left its loop before the others."""
    return [
        f"Compare the number of batches by rank: print len(loader) on {who.name} and on the others before the loop.",
        _LEFT_ITS_LOOP,
        "Give every rank the same number: drop_last=True with DistributedSampler, a fixed number of steps per epoch, "
        "or an all_reduce(MIN) of the counts before the loop; DDP and FSDP have the Join context for uneven inputs.",
        "If a signal or an early-stopping condition ended the loop, decide it together: all_reduce the flag at each "
        "step.",
        restart("Stop the job and start it from its last checkpoint: the others wait for a step that never comes."),
    ]


def group_order(who: StepContext) -> list[NextStep]:
    """Steps for a cycle of waits over process groups."""
    stands, stood = (
        who.place(who.process.frame).clause(f"; {who.name} {verb} at", with_pid=False) if who.rank is not None else ""
        for verb in _STANDS_AT
    )
    order = "Let every rank use its process groups in the same order"
    return [
        Step(f"{order}{stands}.", left=f"{order}{stood}."),
        "Look for an operation that only some ranks start earlier, or leave out: a metric, a .item() that waits for "
        "the GPU between two groups, a background thread with collectives of its own; a `continue`, an empty batch.",
        "Run the operations of a background thread in a process group of its own, and join it before the next step.",
        restart("Stop the job and start it from its last checkpoint: a circle of waits does not resolve itself."),
    ]


def p2p(who: StepContext) -> list[NextStep]:
    """Steps for sends and receives that do not pair."""
    frame = who.process.frame
    stands, stood = (
        (who.place(frame).clause(f"; {who.name} {verb} at", with_pid=False) if frame else "") for verb in _STANDS_AT
    )
    pair = "Pair every send with its receive"
    return [
        Step(f"{pair}{stands}.", left=f"{pair}{stood}."),
        "Where two ranks exchange, post both directions in one batch_isend_irecv, or let even ranks send first and odd "
        "ranks receive first.",
        "Check that both sides run the same number of micro-batches, in the same order of peers.",
        restart("Stop the job and start it from its last checkpoint."),
    ]


def ran_past(who: StepContext) -> list[NextStep]:
    """Steps for a rank that goes round its loop without the call."""
    now, then = (who.place(who.process.frame).clause(f" It {verb} at", with_pid=False) for verb in _NOW_AT)
    compare = f"Compare the loop of {who.name} with another rank's: what lets it go round without the call?"
    return [
        Step(f"{compare}{now and f'{now}.'}", left=f"{compare}{then and f'{then}.'}"),
        "Look for a no_sync() that depends on a counter, `continue` or `if` around the call, a skipped backward pass, "
        "another accumulation or group on that rank.",
        f"What {who.name} computes meanwhile is lost: its model no longer is the others'. Do not save a checkpoint "
        "from it.",
        restart("Stop the job and start it from its last checkpoint: it does not come back to that call."),
    ]


# Steps for processes that ended, raised or were stopped.


def exited(who: StepContext) -> list[NextStep]:
    """Steps for a process that ended, by how it ended."""
    if not who.verdict.culprits:
        return _nobody_exited(who)
    activity = who.activity
    number = activity.end.exit_signal if activity else None
    last = f"Read the last lines of {who.name}'s log for what it did before the end."
    again = restart("Stop the other ranks and start the job from its last checkpoint: they cannot go on without it.")
    if activity and activity.end.out_of_memory:
        return [
            f"On {who.host} read who took the memory: `dmesg -T | grep -A 20 -i 'killed process {who.pid}'`.",
            "Lower what the rank holds in host memory (loader workers × prefetch_factor, pinned memory, checkpoint "
            "copies), or raise the memory limit of the container or job.",
            again,
        ]
    if number == 9:
        return [
            f"On {who.host} check whether memory ran out: `dmesg -T | grep -i -E 'out of memory|oom-kill'` and "
            "oom_kill in memory.events of its cgroup.",
            "If not, ask the scheduler who ended it: pre-emption, time limit, `sacct -j <job>` or `kubectl describe "
            "pod`.",
            last,
            again,
        ]
    if number == SIGBUS:
        return [
            f"On {who.host} see whether /dev/shm is full: `df -h /dev/shm`; {named_signal(number)} is a page of a "
            "mapped file that is not there, and loader workers hand their batches over there (docker's --shm-size).",
            "If it has room, look for a file that was mapped (memmap, mmap, safetensors) and then truncated, written "
            "anew or removed under the job, or whose disk is full or gone: `dmesg -T | tail`. A new file takes an old "
            "one's place by rename.",
            last,
            again,
        ]
    if number is not None and number in (4, 6, 8, 11):
        return [
            f"On {who.host} look for the crash of pid {who.pid}: `coredumpctl info {who.pid}` or a core file; "
            f"{named_signal(number)} comes from native code.",
            last,
            "Start again with PYTHONFAULTHANDLER=1 and TORCH_SHOW_CPP_STACKTRACES=1 to get the line if it comes back.",
            again,
        ]
    if activity and activity.end.exit_code == 0:
        return [
            f"Find out why {who.name} ended without an error before the others: sys.exit, an early return, a "
            "shorter data shard.",
            last,
            "Let all ranks decide together when to end, for example by an all_reduce of a flag.",
        ]
    raised = activity.exceptions.raised if activity else None
    where = f" It was raised at {format_location(raised.frame)}." if raised and raised.frame else ""
    return [
        f"Read the traceback of {who.name}: it is the first to end, later errors of others are consequences.{where}",
        "If there is none, decorate main with torch.distributed.elastic.multiprocessing.errors.record, which keeps it.",
        again,
    ]


_ADDRESSES_OF_THE_LIFE_BEFORE = (
    "If torchrun had started the ranks again, they may have met the addresses of the life before, whose store is "
    "torchrun's own and outlives them: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."
)


def _nobody_exited(who: StepContext) -> list[NextStep]:
    """Whose end was the first nothing tells."""
    not_reached = any("connectFullMesh" in fact.fact for fact in who.verdict.because)
    return [
        "Read what each rank raised: an address in it is the peer's that was lost, or not reached. One that was alive "
        "then may have taken its groups down, or was never there.",
        *([_ADDRESSES_OF_THE_LIFE_BEFORE] if not_reached else []),
        "If there is no traceback, decorate main with torch.distributed.elastic.multiprocessing.errors.record, which "
        "keeps it.",
        restart("Stop what is left of the job and start it from its last checkpoint."),
    ]


def raised(who: StepContext) -> list[NextStep]:
    """Steps for a rank that raised."""
    activity = who.activity
    told = activity.exceptions.raised if activity else None
    where = f" at {format_location(told.frame)}" if told and told.frame else ""
    what = told.text if told and told.text else "the exception"
    victims = f"; ranks {who.verdict.waiting} wait for it" if who.verdict.waiting else ""
    return [
        f"Mend what raised {what}{where} on {who.name}{victims}.",
        # Only where the rank was seen there.
        *([_OUT_OF_FINALLY] if (activity and activity.place.in_teardown) or (told and told.swallowed) else []),
        of_the_living(f"Stop the job now: {who.name} cannot come back into the step."),
    ]


_OUT_OF_FINALLY = (
    "Keep collectives, barriers and destroy_process_group out of `finally` and `except`: after an error on one rank "
    "the others never join them. Let the process exit instead, so that the launcher sees it."
)


def stopped(who: StepContext) -> list[NextStep]:
    """Steps for a process that is stopped, by a debugger, a signal or its control group."""
    activity = who.activity
    if activity and activity.process.frozen:
        return [
            of_the_living(
                f"On {who.host} see its control group, `cat /proc/{who.pid}/cgroup`, and thaw it: `docker unpause`, "
                "`scontrol resume`, or THAWED into its freezer.state (version 2: 0 into cgroup.freeze)."
            ),
            of_the_living(
                "Ask who froze it: a scheduler that suspends jobs, a snapshot of its container, a memory or cost saver."
            ),
        ]
    if activity and activity.process.tracer_pid:
        return [
            of_the_living(
                f"On {who.host} see who debugs it: `ps -o pid,user,args -p {activity.process.tracer_pid}`; let it "
                "continue or detach."
            ),
            of_the_living("If nobody knows it, stop that debugger: the rank goes on by itself."),
        ]
    return [
        of_the_living(f"On {who.host} let it go on: `kill -CONT {who.pid}`."),
        of_the_living(
            f"Find out who stopped it before that if you can: `ps -o pid,ppid,stat,tty,user,args -p {who.pid}`; a "
            "terminal's Ctrl-Z, a scheduler that suspends jobs, or a snapshot tool."
        ),
    ]


def gpu_kernel(who: StepContext) -> list[NextStep]:
    """Steps for a GPU that runs a kernel without end."""
    return [
        of_the_living(
            f"On {who.host} see which kernel runs: `cuda-gdb -p {who.pid}`, then `info cuda kernels` (it pauses the "
            f"rank), or `py-spy dump --native --pid {who.pid}` for the host side."
        ),
        f"Look at the code that launched it, at or before "
        f"{format_location(who.process.frame) or 'the line where it waits'}: custom "
        "CUDA or Triton kernels, spin waits, indices out of range.",
        "Run that step alone with compute-sanitizer on one GPU.",
        "If the same GPU does it with other code, run `dcgmi diag -r 3` on it and take it out of service.",
    ]


_XID: Final = re.compile(r"\bX(?:id \([^)]*\):|ID) (\d+)")


def gpu_fault(who: StepContext) -> list[NextStep]:
    """Steps for a GPU that reported a fault; one off the bus answers no reset."""
    lost = any(is_lost(fact.fact) for fact in who.verdict.because)
    told = [int(found[1]) for fact in who.verdict.because if (found := _XID.search(fact.fact))]
    if told and not lost and OF_THE_JOB.issuperset(told):
        return [
            "Such an XID is mostly the job's own fault, and no reason to drain the node: an access outside of an "
            "allocation by a kernel of the job or of a library, or data that leads to it.",
            "Run it again with CUDA_LAUNCH_BLOCKING=1, or under `compute-sanitizer`: they name the kernel and line.",
            f"Only if {who.host} does it with other code as well, test its GPU: `dcgmi diag -r 3`.",
        ]
    return [
        f"On {who.host} read what the driver says: `dmesg -T | grep -i -E 'xid|nvrm'` and `nvidia-smi -q{who.gpu}`.",
        starts_job(f"Take {who.host} out of service and start the job elsewhere from its last checkpoint."),
        f"A GPU off the bus answers no reset: {LOST.remedy}."
        if lost
        else "Do what the driver's recovery action names (reset the GPU, reboot the node) before it takes jobs again.",
    ]


def fabric(who: StepContext) -> list[NextStep]:
    """Steps for a network or link that failed."""
    return [
        f"On {who.host} read the counters: `nvidia-smi nvlink -e`, `ibstat`, `rdma link show`, `dmesg -T | grep "
        f"-i mlx`.",
        starts_job("Restart the job with NCCL_DEBUG=WARN to see which peer and adapter fail."),
        "Leave the node or the port out until it is repaired; other transports only hide the fault.",
    ]


def comm_stuck() -> list[NextStep]:
    """Steps where all have entered and nothing ends."""
    selftest = "`stallwatch selftest` on the same nodes: it finds the collective, GPU or link that fails."
    return [
        Step(f"Stop the job and run {selftest}", left=f"Run {selftest}"),
        starts_job(
            "Start it again with NCCL_DEBUG=WARN (INFO for the start-up) and look for network errors of one host."
        ),
        "With TORCH_NCCL_ENABLE_TIMING=1 the recorder also notes whose GPU never came to the collective: a kernel "
        "before it does not end there.",
        "If several communicators run at once (FSDP with TP, pipelines), serialise them for a test: order their "
        "launches by one stream, or set NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 or newer).",
        "Compare driver and NCCL versions on all nodes: `stallwatch doctor` knows those with known hangs.",
    ]


def slow(who: StepContext) -> list[NextStep]:
    """Steps for ranks that hold the job back where nothing shows why: what was found brings its own
    (diagnosis/slow_reasons.py)."""
    on_gpu = who.process.gpu_uuid or (who.activity and who.activity.process.uses_gpu)
    return [
        profile(who.name, who.pid),
        *(
            [f"On {who.host} look for throttling: `nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE{who.gpu}`."]
            if on_gpu
            else []
        ),
        of_the_living(
            f"Look for other programs on its cores: `top -H -p {who.pid}`, `ps -eo pid,psr,pcpu,args --sort=-pcpu | "
            "head`."
        ),
        starts_job(
            "If the same node is slow with other ranks too, drain it and restart the job from its last checkpoint."
        ),
    ]


def profile(name: str, pid: int | str | None) -> NextStep:
    """How a person looks himself what ranks spend time on."""
    look = f"See what {name} spends time on: `py-spy record --duration 20 --format speedscope -o rank.json"
    return of_the_living(f"{look} --pid {'<pid>' if pid is None else pid}`, and the same of a peer.")
