"""When to tell whom: the severity that an incident deserves now, and why nobody is told where nobody is."""

from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents import slowness
from stallwatch.incidents.life import Life, Mute
from stallwatch.model.incident import Severity
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Cause, Verdict
from stallwatch.progress import patience as patience_of

# Cannot resolve themselves: there is nothing to wait for. A mere "possible" is not enough to wake somebody at once.
AT_ONCE: frozenset[Cause] = frozenset(
    {
        "rank_exited", "rank_raised", "process_stopped", "collective_mismatch", "group_order", "p2p_unmatched",
        "gpu_fault", "fabric_fault",
    }
)  # fmt: skip
# Stuck as far as two looks can tell: a warning, and critical when it still stands later.
STUCK: frozenset[Cause] = frozenset({"not_entered", "data_exhausted", "init_missing", "gpu_kernel_stuck", "comm_stuck"})
OPEN: frozenset[Cause] = frozenset({"undecided", "waiting", "healthy"})
_ORDER: dict[Severity, int] = {"none": 0, "warning": 1, "critical": 2}
_SECOND_NS = 1_000_000_000
_AS_LONG_AGAIN = 1.5  # times the longest of a phase's past: a checkpoint that always takes 20 min surprises nobody


def deserved(life: Life, facts: JobFacts | None, config: Config, now_ns: int) -> Severity:
    """Return the severity, silence not considered. Once told, an incident is never taken back in its severity."""
    before = life.incident.severity
    if life.quiet_since_ns is not None and life.adopted_ns is None:
        return before  # the symptom has gone: what is over wakes nobody
    if life.adopted_ns is not None and (life.incident.verdict is None or life.incident.verdict.cause not in AT_ONCE):
        return before  # nor what may have passed while no daemon ran
    now, _ = _now(life, facts, config, now_ns)
    return now if _ORDER[now] > _ORDER[before] else before


def patience(life: Life, facts: JobFacts | None, config: Config, now_ns: int) -> str:
    """Return what it is that nobody is told yet for, with the setting behind it; "" where nothing would be told."""
    return _now(life, facts, config, now_ns)[1]


def _now(life: Life, facts: JobFacts | None, config: Config, now_ns: int) -> tuple[Severity, str]:
    tell = config.tell
    exited = any(finding.detector == "exit" for finding in life.incident.findings)
    if life.family == "request" or life.confirmed_ns is None:
        return "none", ""
    if facts is not None and facts.ending and not exited:
        # A job on its way out gets its time; then the exit detector speaks.
        return "none", f"the job is ending ({tell.ending_seconds:g} s, tell.ending_seconds)"
    verdict = life.incident.verdict
    stood = (now_ns - life.incident.since_ns) / _SECOND_NS
    since_ns = life.incident.verdict_since_ns
    known = (now_ns - since_ns) / _SECOND_NS if since_ns is not None else 0.0
    begun = facts is None or facts.begun
    unknown = f"it is not known what holds the job up ({tell.undecided_seconds:g} s, tell.undecided_seconds)"
    starting = f"the job has not begun to step ({tell.start_seconds:g} s, tell.start_seconds)"
    settling = f"it may end by itself; it must be seen so for {tell.settle_seconds:g} s (tell.settle_seconds)"
    if life.family in ("health", "drift"):
        return "warning", ""
    if life.family == "slow":
        why = slowness.untold(life.incident, verdict, config.slow.cost_share)
        return ("none", why) if why else ("warning", "")
    if verdict is None:
        failed = life.judgements_failed > 0 and begun and stood >= tell.undecided_seconds
        return ("warning", "") if failed else ("none", "")
    if verdict.cause == "process_stopped" and _is_suspended(verdict, facts) and stood < tell.waiting_seconds:
        return "none", f"the whole job is suspended ({tell.waiting_seconds:g} s, tell.waiting_seconds)"
    if verdict.cause in AT_ONCE:
        sure = verdict.confidence != "possible" or known >= config.stall.critical_after_seconds
        return ("critical" if sure else "warning"), ""
    if verdict.cause in STUCK:
        if (verdict.cause == "init_missing" or not begun) and stood < tell.start_seconds:
            return "none", starting
        if settles(verdict, facts) and known < tell.settle_seconds:
            return "none", settling
        if patience_of.computes(verdict) and stood < tell.undecided_seconds:
            return "none", f"the culprit computes ({tell.undecided_seconds:g} s, tell.undecided_seconds)"
        return ("critical" if known >= config.stall.critical_after_seconds else "warning"), ""
    if verdict.cause == "healthy":
        return "none", ""
    if not begun:
        return "none", "the job has not begun to step, and nothing shows that it is stuck"
    if verdict.cause == "undecided":
        return ("warning", "") if stood >= tell.undecided_seconds else ("none", unknown)
    patience, why = tell.waiting_seconds, "tell.waiting_seconds"
    if facts is not None and _AS_LONG_AGAIN * facts.phase_past_seconds > patience:
        patience, why = _AS_LONG_AGAIN * facts.phase_past_seconds, "by what this phase took before"
    return ("warning", "") if stood >= patience else ("none", f"the culprit makes progress ({patience:g} s, {why})")


def _is_suspended(verdict: Verdict, facts: JobFacts | None) -> bool:
    """Every rank of the job is stopped: somebody suspended it (a scheduler, Ctrl-Z), which one rank's stop is not."""
    return facts is not None and len(facts.alive) == facts.world_size > 1 and set(facts.alive) == set(verdict.culprits)


def settles(verdict: Verdict, facts: JobFacts | None) -> bool:
    """The culprit is where healthy ranks are silent for long, or a guess: it must stay so for `tell.settle_seconds`."""
    phases = frozenset(rank for rank, _ in facts.phases) if facts else frozenset()
    return patience_of.settles(verdict, phases, frozenset(facts.working) if facts else frozenset())


def silence(facts: JobFacts | None, mutes: tuple[Mute, ...], job: JobKey, config: Config, now_ns: int) -> str:
    """Return why nobody may be told about this job now, "" when people may."""
    if any(mute.name == job.name and mute.until_ns > now_ns for mute in mutes):
        return "the job is muted"
    if facts is None:
        return ""
    if facts.opted_out:
        return "the job asked for silence (STALLWATCH_NOTIFY=off)"
    if facts.world_size < config.daemon.minimum_world_size:
        return f"the job has fewer than {config.daemon.minimum_world_size} ranks (daemon.minimum_world_size)"
    if config.tell.terminals:
        return ""
    if facts.debugged:
        return f"rank {facts.debugged[0]} is being debugged"
    if facts.in_terminal:
        return "the job runs in a terminal session (tell.terminals)"
    return ""
