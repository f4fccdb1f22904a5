"""A process is gone: the first to end by itself. Peers that died of it are victims, as their logs say or as they ended
after it."""

from signal import SIGABRT, SIGKILL

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.came_through import came_through, may_have_come_through
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    main_wait,
    named,
    remedy_of,
)
from stallwatch.diagnosis.ends import (
    ahead_ns,
    earliest,
    end_of,
    end_times,
    exit_code,
    is_known,
    is_swept,
    is_untold,
    seen_by,
    sentence,
    sentence_of,
)
from stallwatch.diagnosis.job.leaving import (
    AT_ONCE_NS,
    CLEARLY_LATER_NS,
    TIMED_OUT,
    are_together,
    ended_alike,
    is_told,
    may_be_cleared_away,
    signal_of,
    unseen_since,
    went_on_without,
)
from stallwatch.diagnosis.logs.consequence import is_passed_on
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.evidence import ProcessLook
from stallwatch.model.signals import ENDING
from stallwatch.model.verdict import Confidence, Fact, Rejected

# Lower is nearer to a first cause. _SILENT: so ends who dies of a peer, too (exit code 1; an abort by torch's watchdog
# or std::terminate), or it is not known how; of several of these the first is the cause. Agents terminate (15) those
# that are left.
_KILLED, _FAILED, _SILENT, _ENDED, _TERMINATED, _CONSEQUENCE = range(6)
# What torch and Python raise where a peer has gone, among other things. The hook tells no more where no log was read.
_OF_PEERS_TOO = frozenset(
    ("RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError",
     "ConnectionResetError", "BrokenPipeError", "EOFError", "TimeoutError")
)  # fmt: skip
_REFUSED = "size_mismatch"  # gloo's and NCCL's refusal: who prints it received what another rank should not have sent


def claim(analysis: Analysis) -> Saying:
    """A process is gone: the first to end by itself; or the whole job was ended from outside."""
    gone = {rank: activity for rank, activity in analysis.case.activities.items() if activity.end.gone}
    if not gone:
        return None
    ends = {rank: end_of(analysis, rank) for rank in gone}
    if analysis.case.logs.ended_together and not any(ends.values()):
        return None
    codes = {
        None if end is None or not is_told(end) else exit_code(end) or signal_of(end) or 0 for end in ends.values()
    }
    if codes == {0, None} and not analysis.hangs:
        return Rejected("rank_exited", f"those of {named(gone)} that were seen to end did with exit code 0")
    if codes == {0}:
        if len(gone) + len(unseen_since(analysis.case, gone)) == len(analysis.case.observed):
            return Rejected("rank_exited", "every process whose end was seen ended with exit code 0")
        if not analysis.hangs:
            return Rejected("rank_exited", f"{named(gone)} ended with exit code 0 and nobody waits for them")
        if came_through(analysis):
            return Rejected("rank_exited", f"{named(gone)} ended with exit code 0, after calls that did not fit")
        if analysis.absent and went_on_without(analysis.case, analysis.waiting, ends):
            return Rejected("rank_exited", f"{named(gone)} ended with exit code 0, and the others went on without them")
    if (alike := _ended_alike(analysis, ends)) is not None:
        return alike
    if None in codes and codes <= {None, SIGKILL} and _went_at_once(analysis, ends):
        seen = "any" if codes == {None} else "each"
        return Rejected(
            "rank_exited", f"{named(gone)} were gone within milliseconds, and nobody saw how {seen} of them ended"
        )
    classes, left = _classes(analysis, ends)
    at_start = analysis.case.ended_at_the_start
    classes |= dict.fromkeys((*left, *analysis.case.cleared_away, *at_start), _CONSEQUENCE)
    first = min(classes.values())
    mismatch = analysis.logged_mismatch
    differ = set(mismatch.group.heard) & set(gone) if mismatch is not None else analysis.case.logs.of_kind(_REFUSED)
    if first >= _SILENT and differ:
        return Rejected("rank_exited", f"{named(gone)} ended of calls that differ, as the logs tell")
    if first == _CONSEQUENCE and at_start:
        return Rejected("rank_exited", f"{named(at_start)} ended where others were waited for at the job's start")
    if first == _CONSEQUENCE and not _is_last_cause(analysis, gone):
        return Rejected("rank_exited", f"the logs of {named(gone)} say that a peer went away first")
    failed = [rank for rank, kind in classes.items() if kind == first]
    apart_ns = AT_ONCE_NS if first == _SILENT else 0
    culprits = failed if first == _FAILED and _alike(analysis, failed) else earliest(analysis, failed, ends, apart_ns)
    culprits = _killed_at_once(analysis, failed, ends, culprits) if first == _KILLED else culprits
    after = _swept_after(analysis, classes, ends, culprits) if first == _KILLED else []
    if unnamed := _unnamed(analysis, ends, culprits, first) or _one_of_kills(analysis, ends, culprits, after):
        return unnamed
    unsure = bool(after) or (codes == {0} and may_have_come_through(analysis, gone))
    unsure |= first == _KILLED and may_be_cleared_away(analysis.case, culprits, ends)
    facts = [Fact(sentence(rank, ends[rank]), seen_by(ends[rank])) for rank in culprits]
    victims = sorted(set(gone) - set(culprits))
    if victims:
        facts.append(Fact(f"{named(victims)} ended too: consequence, by their exit and logs", "/proc and logs"))
    wait = main_wait(analysis, culprits)
    return Claim(
        cause="rank_exited",
        culprits=tuple(culprits),
        confidence="likely" if unsure else _confidence(analysis, gone, culprits, first),
        because=(*facts, *activity_facts(analysis, culprits)),
        steps=remedy_of(analysis, culprits) if first == _FAILED else (),
    ).at(analysis, wait)


def _went_at_once(analysis: Analysis, ends: dict[int, ProcessLook | None]) -> bool:
    """Whether all ranks went within what two ends may be seen apart, and none has said why: so does a job that is
    over, or that somebody killed as a whole."""
    times = [end.ended_ns for end in ends.values() if end is not None and end.ended_ns is not None]
    if len(times) < 2 or len(times) < len({*analysis.case.observed, *analysis.case.world}):
        return False
    silent = not any(analysis.case.activity(rank).exceptions.text for rank in ends)
    silent &= not any(end is not None and end.out_of_memory for end in ends.values())
    return silent and not analysis.hangs and max(times) - min(times) <= AT_ONCE_NS


def _unnamed(analysis: Analysis, ends: dict[int, ProcessLook | None], culprits: list[int], kind: int) -> Saying:
    """Ranks that ended as victims do: who was the first nothing tells, or how those fared who were not seen since."""
    if any(_own_words(analysis, rank) for rank in culprits):
        return None
    lives = set(analysis.case.observed) - {*ends}
    unseen = unseen_since(analysis.case, ends)
    others = sorted({*unseen, *analysis.case.unobserved})
    if not analysis.hangs and lives == {*unseen} and others and not any(map(is_known, ends.values())):
        return Rejected("rank_exited", f"{named(ends)} are gone, and nobody saw how, nor how {named(others)} fared")
    nobody_lives = lives == {*unseen}
    swept = nobody_lives and bool(unseen)
    may = [_may_be_victim(ends[rank]) or (swept and is_swept(ends[rank])) for rank in culprits]
    if (unseen or (others and nobody_lives)) and all(may):
        how = sentence_of(culprits, ends)
        told = f"{how}, as a victim does, too, and nobody saw how {named(others)} fared; begin with their logs"
    elif len(culprits) > 1 and kind == _SILENT:
        how = sentence_of(culprits, ends)
        told = f"{how}, as victims do, too, and nothing tells whose end came first; read their logs"
    else:
        return None
    facts = (Fact(told, seen_by(ends[culprits[0]])),)
    return Claim("rank_exited", (), "possible", facts, told=told, unnamed="the rank whose end was the first")


def _may_be_victim(end: ProcessLook | None) -> bool:
    """Python ends so of an exception, torch's watchdog of a time-out; or it is not known."""
    return end is None or not is_known(end) or end.exit_code == 1 or signal_of(end) == SIGABRT


_VICTIMS_SHOWN = 3  # what they raised names whom they did not reach


def crashed(analysis: Analysis) -> Saying:
    """Every rank is gone, and the first of them died of a peer that lived on: it took its groups down, or did not
    answer. Their launcher then ended whoever was left by SIGTERM; one of those may be it, or one of whom nobody saw how
    it ended."""
    ends = {rank: end_of(analysis, rank) for rank, activity in analysis.case.activities.items() if activity.end.gone}
    if not ends or len(ends) < len(analysis.case.observed) or analysis.case.unobserved:
        return None
    classes, left = _classes(analysis, ends)
    if not left and set(classes.values()) == {_CONSEQUENCE} and _began_by_failing(ends):
        left = [rank for rank, end in ends.items() if is_swept(end)]  # of one log of all the lines are anybody's
    elif not left or not all(classes[rank] == _TERMINATED or not is_known(ends[rank]) for rank in left):
        return None
    victims = [rank for rank in ends if rank not in left]
    if {classes[rank] for rank in victims} != {_CONSEQUENCE}:
        return None
    texts = [analysis.case.activity(rank).exceptions.text or "" for rank in victims]
    # A hook tells no more than the type: torch's of a key that nobody set in time.
    in_vain = any(TIMED_OUT.search(text) or "DistStoreError" in text for text in texts)
    lost = "waited for a peer in vain, or lost it," if in_vain else "lost the connection to a peer"
    if not left and all(map(is_passed_on, texts)):
        told = f"{named(victims)} ended of what some of them raised, and passed on to all; their logs tell whose it is"
        return Claim("rank_exited", (), "possible", (Fact(told, "their hooks and logs"),), told=told)
    told = f"{named(victims)} {lost} and ended of that; "
    if left:
        cleared = all(is_known(ends[rank]) for rank in left)
        then = f", and {verb(left, 'was', 'were')} cleared away after them" if cleared else ""
        told += f"{named(left)} still lived then{then}: begin there"
    else:
        told += (
            "no rank is known to have ended before: one took its groups down and lived on, or the network between them "
            "failed"
        )
    raised = tuple(
        Fact(f"rank {rank} raised {text}", "log") for rank, text in zip(victims, texts, strict=True) if ": " in text
    )
    facts = (Fact(told, "/proc and logs"), *raised[:_VICTIMS_SHOWN])
    return Claim("rank_exited", (), "possible", facts, told=told)


def _began_by_failing(ends: dict[int, ProcessLook | None]) -> bool:
    """Whether the first ended by itself: nobody asked the job to end. Where it is not known which or how that one did,
    nobody may have been ended by somebody else, either."""
    told = [end for end in ends.values() if end is not None and is_told(end)]
    timed = [(end.ended_ns, end) for end in ends.values() if end is not None and end.ended_ns]
    first = min(timed, key=lambda one: one[0])[1] if len(timed) == len(ends) else None
    if first is not None and is_told(first):
        told = [first]
    elif any(map(is_swept, told)):
        return False
    return any(exit_code(end) or signal_of(end) == SIGABRT for end in told)


def _ended_alike(analysis: Analysis, ends: dict[int, ProcessLook | None]) -> Saying:
    if (how := ended_alike(analysis.case, ends)) is None:
        return None
    if analysis.hangs:
        return Rejected("rank_exited", f"{how}: the job was ended as it stood")
    source = seen_by(next(iter(ends.values())))
    untimed = any(map(is_untold, ends.values()))
    return Claim("job_ended", (), "possible" if untimed else "likely", (Fact(how, source),))


def _is_last_cause(analysis: Analysis, gone: dict[int, RankActivity]) -> bool:
    """Their logs speak of a peer that went away, and no such peer is seen: every rank of the job is, and of those that
    live nobody stands where others wait for him."""
    living = set(analysis.case.observed) - set(gone)
    if analysis.case.unobserved or not living & set(analysis.waiting):
        return False
    return not any(rank in living for rank, _ in analysis.roots.absent)


def _confidence(analysis: Analysis, gone: dict[int, RankActivity], culprits: list[int], kind: int) -> Confidence:
    """A kill, or an exception of its own, speaks for itself; a bare exit code may be the end of a chain."""
    if kind == _CONSEQUENCE:
        return "possible"
    if kind == _KILLED:
        return "certain"
    others_live = all(activity.known for rank, activity in analysis.case.activities.items() if rank not in gone)
    aborted = any(analysis.case.activity(rank).end.exit_signal == SIGABRT for rank in culprits)
    if len(gone) == 1 and others_live and not analysis.case.unobserved and kind <= _ENDED and not aborted:
        return "certain"
    told = all(analysis.case.activity(rank).exceptions.text for rank in culprits)
    if kind == _FAILED and told and not analysis.case.unobserved:
        return "certain" if len(culprits) == 1 else "likely"
    logs = all((evidence := analysis.case.evidence.get(rank)) is not None and evidence.log for rank in culprits)
    return "likely" if logs and not analysis.case.unobserved and len(culprits) == 1 else "possible"


def _class(analysis: Analysis, activity: RankActivity, end: ProcessLook | None) -> int:
    if activity.exceptions.tell_of_a_peer:
        return _CONSEQUENCE
    evidence = analysis.case.evidence.get(activity.rank)
    if evidence is not None and any(event.kind == _REFUSED for event in evidence.log_events):
        return _CONSEQUENCE
    signal = signal_of(end) if end is not None else None
    if signal is not None and signal != SIGABRT and signal not in ENDING:
        return _KILLED
    if _own_words(analysis, activity.rank):
        return _FAILED
    if signal in ENDING:
        return _TERMINATED
    if _may_be_victim(end):
        return _SILENT
    return _FAILED if end is not None and end.exit_code else _ENDED


def _classes(analysis: Analysis, ends: dict[int, ProcessLook | None]) -> tuple[dict[int, int], list[int]]:
    """Of what each rank died, by itself; and who ended only after a victim had."""
    classes = {rank: _class(analysis, analysis.case.activity(rank), end) for rank, end in ends.items()}
    classes |= dict.fromkeys(_killed_later(analysis, classes, ends), _TERMINATED)
    if set(classes.values()) == {_CONSEQUENCE}:
        classes |= dict.fromkeys(_killed_first(analysis, ends), _KILLED)
    return classes, _outlived_victims(analysis, classes, ends)


def _own_words(analysis: Analysis, rank: int) -> bool:
    """Whether it raised something, and more is known of it than an exception's name, which a peer's end raises, too."""
    text = analysis.case.activity(rank).exceptions.text
    return text is not None and text not in _OF_PEERS_TOO


def _killed_at_once(
    analysis: Analysis, killed: list[int], ends: dict[int, ProcessLook | None], culprits: list[int]
) -> list[int]:
    """Given the first that were killed, return all that were within milliseconds, where nobody had ended before, and
    others of their node live on: launchers clear away all, and no peer's end kills."""
    by_signal = [rank for rank in killed if (end := ends[rank]) is not None and signal_of(end) == SIGKILL]
    together = earliest(analysis, by_signal, ends, AT_ONCE_NS)
    hosts = {analysis.case.activity(rank).host for rank in together}
    living = {*analysis.case.observed} - {*ends, *unseen_since(analysis.case, ends)}
    live_on = hosts <= {analysis.case.activity(rank).host for rank in living} and len(hosts) == 1
    return together if live_on and {*earliest(analysis, list(ends), ends)} <= {*together} else culprits


def _killed_later(analysis: Analysis, classes: dict[int, int], ends: dict[int, ProcessLook | None]) -> list[int]:
    """Ranks that somebody killed after another one had failed by itself: some launchers clear away so. It failed
    before, unless the clock of their node tells otherwise."""
    swept = {rank for rank, kind in classes.items() if kind == _KILLED and is_swept(ends[rank])}
    failed = {rank for rank, kind in classes.items() if kind <= _FAILED} - swept
    ahead = {rank: [ahead_ns(analysis, ends, rank, other) for other in failed] for rank in swept}
    return [rank for rank, by_ns in ahead.items() if any(by is None or by <= 0 for by in by_ns)]


def _swept_after(
    analysis: Analysis, classes: dict[int, int], ends: dict[int, ProcessLook | None], killed: list[int]
) -> list[int]:
    """Ranks that ended as victims do, or were ended, clearly before all of these, who were killed, were gone. That
    clears nobody: a process closes its connections, of which others die, seconds before it is gone where a GPU's
    contexts or much memory are to be freed, or where it gets no processor time."""
    if not all(is_swept(ends[rank]) for rank in killed):
        return []
    return [
        rank
        for rank, kind in classes.items()
        if kind in (_SILENT, _TERMINATED, _CONSEQUENCE)
        and rank not in killed
        and all((ahead_ns(analysis, ends, rank, one) or 0) > CLEARLY_LATER_NS for one in killed)
    ]


def _one_of_kills(
    analysis: Analysis, ends: dict[int, ProcessLook | None], culprits: list[int], after: list[int]
) -> Saying:
    """Given ranks that were killed, and who was gone clearly before them: nobody is named where these may have been
    swept. Several were killed, or some asked to end, after another end; or several at once, and of one that is gone
    nobody saw how or when."""
    if not all(is_swept(end := ends[rank]) and end is not None and signal_of(end) == SIGKILL for rank in culprits):
        return None
    swept = {rank: end for rank, end in ends.items() if end is not None and is_swept(end)}
    killed = {rank: end for rank, end in swept.items() if signal_of(end) == SIGKILL}
    untold = [rank for rank, end in ends.items() if is_untold(end)]
    if after and len(swept) > 1:
        later = sorted(killed.keys() - {*after})
        told = f"{sentence_of(later, ends)}, after the {'end' if len(after) == 1 else 'ends'} of {named(after)}"
    elif untold and len(killed) > 1 and are_together(analysis.case, killed):
        told = f"{sentence_of(sorted(killed), ends)}, and nobody saw how or when {named(untold)} ended"
    else:
        return None
    told += ": nothing tells whose end came first; read their logs"
    facts = (Fact(told, seen_by(ends[culprits[0]])),)
    return Claim("rank_exited", (), "possible", facts, told=told, unnamed="the rank whose end was the first")


def _killed_first(analysis: Analysis, ends: dict[int, ProcessLook | None]) -> list[int]:
    """Who was killed before any other ended, where all speak of a peer that went away: nobody is killed by that. Of one
    log of several the lines may be another's."""
    first = earliest(analysis, list(ends), ends, AT_ONCE_NS)
    end = ends[first[0]]
    unseen = unseen_since(analysis.case, ends) or analysis.case.unobserved
    return first if len(first) == 1 and end is not None and signal_of(end) == SIGKILL and not unseen else []


def _outlived_victims(analysis: Analysis, classes: dict[int, int], ends: dict[int, ProcessLook | None]) -> list[int]:
    """Ranks of whose end nothing is known but that it came after that of a victim, on one node's clock: that victim
    missed the answer of one who still lived, and what ended then was cleared away. Launchers do that by SIGTERM, and
    look at their ranks ten times a second (torchrun)."""
    times, host = end_times(ends), {rank: analysis.case.activity(rank).host for rank in ends}
    first: dict[str | None, int] = {}
    for rank, at_ns in times.items():
        if classes[rank] == _CONSEQUENCE:
            first[host[rank]] = min(at_ns, first.get(host[rank], at_ns))
    return [
        rank
        for rank, at_ns in times.items()
        if (classes[rank] in (_ENDED, _TERMINATED) or (classes[rank] == _SILENT and not is_known(ends[rank])))
        and host[rank] in first
        and at_ns > first[host[rank]] + (AT_ONCE_NS if classes[rank] == _TERMINATED else CLEARLY_LATER_NS)
    ]


def _alike(analysis: Analysis, ranks: list[int]) -> bool:
    """Several ranks that raised the same by themselves: none is a consequence of another."""
    raised = {(analysis.case.activity(rank).exceptions.text or "").partition(":")[0] for rank in ranks}
    return len(ranks) > 1 and len(raised) == 1 and raised != {""}
