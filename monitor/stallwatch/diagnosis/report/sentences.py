"""The one sentence that a person on call reads first: who hangs, where in its code, what it does, who waits for it."""

from collections.abc import Callable, Mapping

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.report.text import (
    NOTHING_ASIDE,
    Culprits,
    SentenceExtras,
    of_group,
    shorten,
    waiters,
)
from stallwatch.formats.operation_names import operation_name
from stallwatch.model.signals import named_signal
from stallwatch.model.verdict import Cause, Verdict, cost_of

Activities = Mapping[int, RankActivity]
_PARTS_SHOWN = 4
_BARE_END = "ended with "  # as failure_line.py words the end of a process
_UNSEEN = "any evidence of "  # as verdicts.py words what is missing


def summary(verdict: Verdict, activities: Activities, aside: SentenceExtras = NOTHING_ASIDE) -> str:
    """Say in one sentence what is wrong. What was observed is stated; what follows from it is "consistent with"."""
    culprits = Culprits(verdict, activities, aside)
    text = _SENTENCES[verdict.cause](verdict, culprits)
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _not_entered(verdict: Verdict, culprits: Culprits) -> str:
    doing = culprits.doing()
    past = culprits.aside.steps_past
    if past is not None and verdict.waiting:
        now = culprits.doing(again=True)
        steps = "a step" if past == 1 else f"{past} steps"
        went = f"{culprits.has()} gone on for {steps} without {_operation(verdict)}, in which"
        return f"{culprits.who()} {went} {_others_wait(verdict)}{'; now ' + now if now else ''}"
    if culprits.aside.told:
        said = f"{_others_wait(verdict)} in {_operation(verdict)}, and {culprits.short()} {culprits.aside.told}"
        return f"{said}: consistent with {culprits.them()} not having entered it"
    if not doing:
        known = "what it does is not known" if culprits.single else "what they do is not known"
        lead = f"{culprits.who()} {culprits.has()} not entered {_operation(verdict)}"
        return f"{lead}, in which {_others_wait(verdict)}; {known}"
    if not verdict.waiting:
        return f"{doing}; {culprits.it()} {culprits.has()} not entered {_operation(verdict)}"
    if _is_certain(verdict):
        return f"{doing}; {_wait_for(verdict, culprits)}"
    entering = f"{culprits.short()} not having entered it"
    return f"{doing}; {_wait_in(verdict, culprits)}, consistent with {entering}"


def _collective_mismatch(verdict: Verdict, culprits: Culprits) -> str:
    mismatch = verdict.mismatch
    if culprits.aside.parts:
        return _parted(verdict, culprits.aside)
    if not verdict.culprits and mismatch is not None and mismatch.kind == "size":
        return (
            f"a rank received {culprits.aside.told}: ranks entered that collective with different sizes or data types, "
            "and the one that was aborted may be an innocent one"
        )
    at, now = culprits.called()
    others = f"; the others: {culprits.aside.others_at}" if culprits.aside.others_at else ""
    waits = f"; {_others_wait(verdict)} in vain in theirs{_others_at(culprits)}" if verdict.waiting else others
    if culprits.aside.paired:
        later = f"; {_others_wait(verdict)} in later calls{_others_at(culprits)}" if verdict.waiting else others
        now, waits = f"; {culprits.aside.paired}{now}", later
    tail = now + waits + _hedge(verdict, culprits)
    if mismatch is None:
        return (
            f"{culprits.who()} entered another operation{at} than the others, which are in {_operation(verdict)}{tail}"
        )
    if mismatch.kind == "count" and culprits.aside.told:
        return f"{culprits.aside.told}{_hedge(verdict, culprits)}"
    found, expected = shorten(operation_name(mismatch.found), 60), shorten(operation_name(mismatch.expected), 60)
    if mismatch.kind == "op":
        return f"{culprits.who()} called {found}{at} where the other ranks called {expected}{_number(verdict)}{tail}"
    if mismatch.kind == "count":
        return (
            f"{culprits.who()} made {found}{at} where the other ranks made {expected}, in {_operation(verdict)}{tail}"
        )
    what = "data type " if mismatch.kind == "dtype" else ""
    differs = f"with {what}{found} where the others have {expected}"
    return f"{culprits.who()} entered {_operation(verdict)}{at} {differs}{tail}"


def _parted(verdict: Verdict, aside: SentenceExtras) -> str:
    said = "; ".join(
        f"{waiters(ranges, verb='')} called {shorten(operation_name(what), 60)}{' at ' + at if at else ''}"
        for ranges, what, at in aside.parts[:_PARTS_SHOWN]
    )
    more = f"; {len(aside.parts) - _PARTS_SHOWN} more" if len(aside.parts) > _PARTS_SHOWN else ""
    number = f"as number {verdict.seq}{of_group(verdict.process_group)}" if verdict.seq is not None else ""
    if aside.race:
        return (
            f"{number} {said}{more}: each of them makes both calls, from two threads in one process group, so which "
            "comes first is chance; no rank is to blame"
        )
    if len(aside.parts) == 1:
        return f"{number} {said}, and others something else: their own logs tell what"
    if verdict.mismatch is not None and verdict.mismatch.kind == "count":
        return f"{number} {said}{more}: nothing tells whether one side skipped a collective or the other made one extra"
    return f"{number} {said}{more}: nothing tells which of them is right"


def _data_exhausted(verdict: Verdict, culprits: Culprits) -> str:
    doing = culprits.doing() or f"{culprits.who()} {culprits.has()} left the training loop"
    first = culprits.first
    if verdict.mismatch is not None and not (first and first.call.in_collective):
        doing = f"{culprits.who()} called {operation_name(verdict.mismatch.found)}{culprits.call_site()}"
    waits = f"{_others_wait(verdict)} in {_operation(verdict)}{_others_at(culprits)}"
    rest = waits if verdict.waiting else "the other ranks still train"
    return f"{doing}, though {rest}: consistent with {culprits.its()} data having ended before theirs"


def _group_order(verdict: Verdict, culprits: Culprits) -> str:
    if not culprits.ranks:
        circle = "some of them for each other in a circle over process groups"
        lead = f"{_others_wait(verdict)}, {circle}{_others_at(culprits)}"
        return f"{lead}: nothing tells which of them entered these in another order"
    stands = culprits.doing(again=not culprits.single)
    if stands and culprits.first and culprits.first.place.gpu_sync:
        stands += culprits.call_site(", for a call made at ")
    if culprits.single:
        rest = f", while {_wait_for(verdict, culprits)}" if verdict.waiting else ""
        order = "enters its process groups in another order than they do"
        # Who has left a call of one group out stands in the next one's as who calls these in another order.
        why = f"it {order}" if _is_certain(verdict) else f"consistent with a rank that left a call out, or {order}"
        return f"{stands or culprits.who() + ' waits'}{rest}: {why}"
    circle = "in a circle over process groups that they enter in different orders"
    return f"{_each_other(verdict, culprits)} {circle}{': ' + stands if stands else ''}"


def _p2p_unmatched(verdict: Verdict, culprits: Culprits) -> str:
    stands = culprits.doing(again=not culprits.single)
    if not culprits.single:
        posted = culprits.call_site(" (posted at ")
        pairs = f"in sends and receives that do not match{posted + ')' if posted else ''}, so none can finish"
        return f"{_each_other(verdict, culprits)} {pairs}{': ' + stands if stands else ''}"
    lead = stands or culprits.who()
    if not culprits.ranks:
        stand = culprits.aside.told or "at least one of them in a send or receive whose other side has not come"
        return f"{_others_wait(verdict)}, {stand}"
    if verdict.mismatch is not None or not _is_transfer(verdict):
        sizes = verdict.mismatch
        what = f": {sizes.found} where the other side has {sizes.expected}" if sizes else ""
        posted = culprits.call_site(" (posted at ")
        waits = f", while {_others_wait(verdict)}{_others_at(culprits)}" if verdict.waiting else ""
        unlike = f"sends or receives{posted + ')' if posted else ''} that do not match those of its peers{what}"
        return f"{stands or culprits.who() + ' waits'}{waits}: consistent with {unlike}"
    if verdict.process_group is None and not _is_certain(verdict):
        rest = f"; {_others_wait(verdict)} for it" if verdict.waiting else ""
        return (
            f"{lead}, and the other side has not come{rest}: consistent with a message that was never sent or received"
        )
    if not verdict.waiting:
        return f"{lead}: the other side of {_operation(verdict)} was never posted"
    side = f"its side of {_operation(verdict)}, for which {_others_wait(verdict)}"
    return (
        f"{lead}; it never posted {side}"
        if _is_certain(verdict)
        else f"{lead}, consistent with not having posted {side}"
    )


def _is_transfer(verdict: Verdict) -> bool:
    return not verdict.operation or signature.names_transfer(verdict.operation)


def _each_other(verdict: Verdict, culprits: Culprits) -> str:
    verb = "wait for each other" if _is_certain(verdict) else "stand still, consistent with waiting for each other"
    return f"{culprits.who()} {verb}"


def _rank_exited(verdict: Verdict, culprits: Culprits) -> str:
    waits = f"; {_wait_for(verdict, culprits)}" if verdict.waiting else ""
    first = culprits.first
    failed = culprits.followers_gone()
    if not waits and failed and verdict.culprits:
        waits = f"; {failed}"
    return f"{culprits.who()} {_ended(first, culprits)}{waits}{_hedge(verdict, culprits)}"


def _ended(first: RankActivity | None, culprits: Culprits) -> str:
    was, is_ = ("was", "is") if culprits.single else ("were", "are")
    if first is None and culprits.aside.told:
        return f"{is_} gone: {shorten(culprits.aside.told, 200)}"
    if first is None:
        return f"{is_} gone; how the process ended is not known"
    exceptions = first.exceptions
    # The cause as the logs tell it comes before what the rank raised at last, which may follow from it.
    cause = "" if culprits.aside.told.startswith(_BARE_END) else culprits.aside.told
    told = cause or (exceptions.text if not exceptions.tell_of_a_peer else None)
    raised = f" after {shorten(told, 160)}{'' if cause else culprits.raised_at()}" if told else ""
    if culprits.aside.told and first.end.exit_signal is None and first.end.exit_code is None:
        return f"{is_} gone: {shorten(culprits.aside.told, 200)}"
    if first.end.out_of_memory:
        return f"{was} killed by the kernel because memory ran out"
    if first.end.exit_signal is not None:
        unknown = ", sender not known" if first.end.exit_signal in (9, 15) else ""
        return f"{was} ended by {named_signal(first.end.exit_signal)}{unknown}{raised}"
    if first.end.exit_code == 0:
        return "ended without an error while other ranks still ran"
    if first.end.exit_code is not None:
        return f"exited with code {first.end.exit_code}{raised}"
    return f"{is_} gone{raised}" if raised else f"{is_} gone; how the process ended is not known"


def _rank_raised(verdict: Verdict, culprits: Culprits) -> str:
    first = culprits.first
    told = (first.exceptions.text or first.exceptions.logged_beside) if first else None
    beside = " (by the end of the log that ranks share)" if first and told != first.exceptions.text else ""
    if not told and culprits.aside.told:
        waits = f"; {_others_wait(verdict)} for {culprits.them()}" if verdict.waiting else ""
        said = shorten(culprits.aside.told, 220)
        return f"{culprits.who()} failed: {said}{waits}{_hedge(verdict, culprits)}"
    raised = (shorten(told, 160) or "an exception") + beside
    it = culprits.it() if culprits.single or not first else f"rank {first.rank}"
    then = f"; {it} now {first.place.detail}" if first and first.place.detail else ""
    inside = f" in {_operation(verdict)}" if verdict.operation else ""
    waits = f"; {_others_wait(verdict)} for {culprits.them()}{inside}" if verdict.waiting else ""
    return f"{culprits.who()} raised {raised}{culprits.raised_at()}{then}{waits}{_hedge(verdict, culprits)}"


def _process_stopped(verdict: Verdict, culprits: Culprits) -> str:
    first = culprits.first
    by = "by a stop signal (SIGSTOP)"
    if first and first.process.frozen:
        by = "by its control group, which is frozen (a paused container, a suspended job)"
    elif first and first.process.tracer_pid:
        by = f"by the debugger with pid {first.process.tracer_pid}"
    verb = "is" if culprits.single else "are"
    waits = f"; {_wait_for(verdict, culprits)}" if verdict.waiting else ""
    return f"{culprits.who()} {verb} held {by}{waits}"


def _init_missing(verdict: Verdict, culprits: Culprits) -> str:
    if culprits.aside.apart:
        return f"{culprits.who()} {culprits.aside.apart}: another MASTER_ADDR or MASTER_PORT on one of the sides"
    if culprits.aside.told and not verdict.culprits:
        return culprits.aside.told
    doing = culprits.doing()
    lead = f"{doing} and has" if doing else f"{culprits.who()} {culprits.has()}"
    waits = f"; {_others_wait(verdict)} for {culprits.them()} to join" if verdict.waiting else ""
    return f"{lead} not come to init_process_group{waits}{_hedge(verdict, culprits)}"


def _gpu_kernel_stuck(verdict: Verdict, culprits: Culprits) -> str:
    waits = f"; {_others_wait(verdict)} in {_operation(verdict)}{_others_at(culprits)}" if verdict.waiting else ""
    if not culprits.single:
        runs = "run kernels that are no communication and do not end"
        certain = _is_certain(verdict)
        said = runs if certain else "are busy but not with communication, consistent with kernels that do not end"
        return f"the GPUs of {culprits.who()} {said}{waits}"
    lead = f"{culprits.who()} waits{culprits.at()} for its GPU, which"
    if _is_certain(verdict):
        return f"{lead} runs a kernel that is no communication and does not end{waits}"
    return f"{lead} is busy but not with communication{waits}: consistent with a kernel that does not end"


def _fault(what: str) -> Callable[[Verdict, Culprits], str]:
    def sentence(verdict: Verdict, culprits: Culprits) -> str:
        shown = next((fact.fact for fact in verdict.because), "")
        waits = f"; {_others_wait(verdict)} in {_operation(verdict)}{_others_at(culprits)}" if verdict.waiting else ""
        who = f" of {culprits.who()}" if verdict.culprits else ""
        fault = f"reports a fault{': ' + shorten(shown, 160) if shown else ''}"
        return f"the {what}{who} {fault}{waits}{_hedge(verdict, culprits) if verdict.culprits else ''}"

    return sentence


def _comm_stuck(verdict: Verdict, culprits: Culprits) -> str:
    who = waiters(verdict.waiting, verb="") if verdict.waiting else "all ranks"
    return (
        f"{who} entered {_operation(verdict)} alike and none finishes: consistent with a fault of network, driver or "
        "library, or communicators that block each other; no rank is to blame by this evidence"
    )


def _slow_rank(verdict: Verdict, culprits: Culprits) -> str:
    shown = next((fact.fact for fact in verdict.because), "")
    doing = culprits.doing(again=True)
    lead = f"{culprits.who()} {'holds' if culprits.single else 'hold'} the job back, which still moves"
    if verdict.slowness is not None:
        why = f"; {culprits.aside.told}" if culprits.aside.told else ""
        return f"{lead}: {cost_of(verdict.slowness)}{why}"
    return f"{lead}{': ' + shorten(shown, 200) if shown else ''}{'; ' + doing if doing and not shown else ''}"


def _waiting(verdict: Verdict, culprits: Culprits) -> str:
    doing = culprits.doing()
    waits = f"{_others_wait(verdict)} in {_operation(verdict)}" if verdict.waiting else "other ranks wait"
    if not culprits.ranks:
        return f"{waits}, and nothing shows that it is stuck"
    lead = doing or culprits.who()
    return f"{lead} and makes progress; {waits}: long, but nothing shows that it is stuck"


def _job_ended(verdict: Verdict, culprits: Culprits) -> str:
    shown = next((fact.fact for fact in verdict.because), "")
    return f"the job is over, and no rank is to blame{': ' + shorten(shown, 200) if shown else ''}"


def _healthy(verdict: Verdict, culprits: Culprits) -> str:
    return "nothing is wrong: every rank that was seen moves"


def _undecided_sentence(verdict: Verdict, culprits: Culprits) -> str:
    if culprits.all_at_rendezvous():
        unseen = next((text.removeprefix(_UNSEEN) for text in verdict.missing if text.startswith(_UNSEEN)), "")
        alone = verdict.waiting.isdecimal()  # a launcher that makes the others' ranks itself begins with one
        each_other = "for others, of which nothing was seen here" if alone else "for each other"
        for_whom = f"for {unseen}, of which nothing was seen here" if unseen else each_other
        why = "ranks that were never started, or another MASTER_ADDR, MASTER_PORT, WORLD_SIZE or RANK on some of them"
        return f"{waiters(verdict.waiting)} at the rendezvous {for_whom}: consistent with {why}"
    waits = f"{_others_wait(verdict)} in {_operation(verdict)}, and the" if verdict.waiting else "the"
    if culprits.aside.told:
        return f"{waits} evidence does not decide why: {shorten(culprits.aside.told, 240)}"
    lacking = f"; missing: {shorten(verdict.missing[0], 160)}" if verdict.missing else ""
    return (
        f"{waits} evidence does not decide why{lacking}"
        if verdict.waiting
        else f"the evidence does not decide{lacking}"
    )


def _others_wait(verdict: Verdict) -> str:
    return waiters(verdict.waiting) if verdict.waiting else "the other ranks wait"


def _wait_for(verdict: Verdict, culprits: Culprits) -> str:
    return _wait_in(verdict, culprits, f" for {culprits.them()}")


def _wait_in(verdict: Verdict, culprits: Culprits, reason: str = "") -> str:
    """Who waits in the operation of the verdict; those that wait for these in turn wait somewhere else."""
    direct, also, behind = culprits.aside.direct, culprits.aside.also, culprits.aside.behind
    where = f"{_operation(verdict)}{_others_at(culprits)}"
    if not direct or not (also or behind):
        return f"{_others_wait(verdict)}{reason} in {where}"
    lead = f"{waiters(direct)}{reason} in {where}"
    if not also:
        return f"{lead}, and {waiters(behind)} behind that"
    beside = f"{waiters(also, verb='')} in another operation"
    return f"{lead}, {beside}, and {waiters(behind)} behind these" if behind else f"{lead}, and {beside}"


def _others_at(culprits: Culprits) -> str:
    """The other half of the story: where they called what the culprits did not."""
    return f", {culprits.aside.others_at}" if culprits.aside.others_at else ""


def _is_certain(verdict: Verdict) -> bool:
    return verdict.confidence == "certain"


def _hedge(verdict: Verdict, culprits: Culprits) -> str:
    """What was observed stands; that it is the cause is only consistent with it."""
    if not culprits.ranks and culprits.aside.told:
        return ""
    return "" if _is_certain(verdict) else f", consistent with {culprits.short()} being the cause"


def _operation(verdict: Verdict) -> str:
    """What the others wait in; where no recorder shows it, it may be a collective as well as a transfer."""
    unknown = "communication" if verdict.seq is None else "a collective"
    return f"{operation_name(verdict.operation) or unknown}{_number(verdict)}"


def _number(verdict: Verdict) -> str:
    number = f" number {verdict.seq}" if verdict.seq is not None and verdict.seq >= 0 else ""
    return f"{number}{of_group(verdict.process_group)}"


_SENTENCES: dict[Cause, Callable[[Verdict, Culprits], str]] = {
    "not_entered": _not_entered,
    "collective_mismatch": _collective_mismatch,
    "data_exhausted": _data_exhausted,
    "group_order": _group_order,
    "p2p_unmatched": _p2p_unmatched,
    "rank_exited": _rank_exited,
    "rank_raised": _rank_raised,
    "process_stopped": _process_stopped,
    "init_missing": _init_missing,
    "gpu_kernel_stuck": _gpu_kernel_stuck,
    "gpu_fault": _fault("GPU"),
    "fabric_fault": _fault("network or NVLink"),
    "comm_stuck": _comm_stuck,
    "slow_rank": _slow_rank,
    "waiting": _waiting,
    "job_ended": _job_ended,
    "healthy": _healthy,
    "undecided": _undecided_sentence,
}
