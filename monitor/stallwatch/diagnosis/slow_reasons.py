"""Why ranks are slow: by the line that takes their time and what goes with it, compared with their peers; with what to
do."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis.activity.threads import child_stacks, training_stacks
from stallwatch.diagnosis.frames.code_origin import code_origin, source_text
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.time_spent import LEAST_SAMPLES, Spent, compared, waited, would_show
from stallwatch.diagnosis.report.steps_by_cause import profile
from stallwatch.diagnosis.report.text import DOING, format_location
from stallwatch.diagnosis.slow_signs import OF_COST, SIGNS, SlowRanks, SlowSign, holds, values
from stallwatch.diagnosis.step import NextStep, starts_job
from stallwatch.model.evidence import RankEvidence, SampledStack
from stallwatch.model.gpu import Gpu
from stallwatch.model.verdict import Fact, Frame, Slowness, Where

NO_GPUS: Mapping[int, Gpu] = {}


class Reasons(NamedTuple):
    """Why ranks are slow: the line that takes the time, facts that go with it, and what to do."""

    frame: Frame | None = None  # the job's line that takes the time which peers do not spend
    spent: Spent | None = None
    waits: Spent | None = None  # or the line at which they wait for others themselves
    profiled: bool = False  # ranks were looked at over some time
    facts: tuple[Fact, ...] = ()
    told: str = ""  # of the facts what a sentence says
    steps: tuple[NextStep, ...] = ()
    explained: bool = False  # something outside of its code slows it
    peers_without_cpu: float | None = None  # share of time in which their peers had no CPU to run on; None: not known

    @property
    def where(self) -> Where | None:
        """The kind of place where the time goes; None without a profile."""
        return self.spent.where if self.spent is not None else None


def slow_reasons(case: Case, slow: Sequence[int], cost: Slowness | None, gpus: Mapping[int, Gpu] = NO_GPUS) -> Reasons:
    """Given the ranks that hold the job back, what that costs, and the GPU of each rank that has one, return where they
    spend the time and what goes with it."""
    who = SlowRanks(case, slow, cost, gpus)
    stacks = _trained(case, who.mine), _trained(case, who.peers)
    seen = compared(*stacks)
    held = holds(who)
    signs = [say for say in (held, *(sign(who) for sign in SIGNS)) if say]
    outside = any(say.explains for say in signs)
    # Who is held stands at whatever line it is at.
    spent = seen if seen is not None and _explains(who, seen) and not (held and held.measured) else None
    profiled = any(rank.profiles for rank in who.mine)
    line = _line(who, spent)
    # Who has no CPU stands for longer at a line to which its peers come, too: that it does is no second reason.
    anywhere = any(say.anywhere for say in signs)
    if outside and (line is None or (spent is not None and (spent.is_shared or (anywhere and not spent.is_alone)))):
        line = line and line._replace(steps=(), told=False)  # the same code takes longer for what is outside of it
    else:
        line = line or _little(who, seen) or _no_line(who, profiled=profiled)
    found = [*(say for say in signs if say.explains), *filter(None, (line, _workers(who, spent)))]
    found += [say for say in signs if not say.explains]
    if spent is not None and spent.is_shared and not outside:
        found.append(_longer(who))
    steps = [step for say in found for step in say.steps]
    shares = values(who.peers, lambda usage: usage.runnable_share)
    return Reasons(
        frame=_frame(who.mine, spent) if spent is not None else None,
        spent=spent,
        waits=waited(*stacks),
        profiled=profiled,
        facts=tuple(say.fact for say in found),
        told="; ".join(say.fact.fact for say in found if say.told),
        steps=tuple(steps),
        explained=outside,
        peers_without_cpu=median(shares) if shares else None,
    )


def _trained(case: Case, ranks: Sequence[RankEvidence]) -> list[list[SampledStack]]:
    return [training_stacks(rank, case.activity(rank.rank).place.os_thread_id) for rank in ranks]


def _frame(ranks: Sequence[RankEvidence], spent: Spent) -> Frame:
    at = spent.frame
    texts = (source_text(rank.sources, at) for rank in ranks)
    return Frame(at.filename, at.line, at.name, next((text for text in texts if text), None))


def _at(who: SlowRanks, ranks: Sequence[RankEvidence], spent: Spent) -> str:
    """ "train.py:120 in main (`batch = next(it)`), where it waits for its data loader"."""
    said, inner = format_location(_frame(ranks, spent)), spent.frames[0]
    if spent.frame == inner:
        return said
    if spent.where in ("user_code", "busy_loop", "unknown"):
        return f"{said}, in {inner.name} of {code_origin(inner.filename).module}"
    return f"{said}, where it {DOING[spent.where]}" if not who.many else f"{said} ({spent.where})"


def _line(who: SlowRanks, spent: Spent | None) -> SlowSign | None:
    if spent is None:
        return None
    verb = who.say("spends", "spend")
    at = _at(who, who.mine, spent)
    fact = f"{verb} {spent.share:.0%} of {who.its} time at {at}; {who.its} peers {spent.peers_share:.0%}"
    source = f"py-spy, {spent.samples} samples of {'them' if who.many else 'it'}"
    if spent.where == "dataloader":
        step = (
            f"{who.name[:1].upper()}{who.name[1:]} waits for data: look at what its loader's workers do (their stacks "
            f"are in the evidence), at the storage under its shard, and at num_workers and prefetch_factor."
        )
        return SlowSign(Fact(fact, source), (step,))
    if spent.is_shared:
        step = f"Compare what {who.name} and a peer are given at {spent.line}: sizes, lengths, files."
        then: NextStep = starts_job(
            "If they are given the same, let the job start with two of them exchanged: what goes with the rank is its "
            "input, what stays is the machine."
        )
    else:
        alone = f"{who.name} alone {'are' if who.many else 'is'} at {spent.line}"
        step = f"See why {alone}: {who.its} input, {who.its} file, or a branch by rank."
        then = profile(who.name, who.pid)
    return SlowSign(Fact(fact, source), (step, then))


def _explains(who: SlowRanks, spent: Spent) -> bool:
    """Whether a line takes a good part of what they cost. Hosts that run ahead of their devices seem to cost more than
    they do."""
    ahead = any(group.backend == "nccl" for group in who.case.groups)
    return ahead or spent.share - spent.peers_share >= OF_COST * who.cost_share


def _little(who: SlowRanks, spent: Spent | None) -> SlowSign | None:
    """A line that takes too little to be why."""
    if spent is None:
        return None
    fact = (
        f"no line explains it: the most is {spent.share:.0%} of {who.its} time at {_at(who, who.mine, spent)}, of "
        f"{who.its} peers {spent.peers_share:.0%}"
    )
    return SlowSign(Fact(fact, f"py-spy, {spent.samples} samples of {'them' if who.many else 'it'}"))


def _no_line(who: SlowRanks, *, profiled: bool) -> SlowSign:
    """Why no line is named."""
    unknown = f"where {who.say('spends', 'spend')} the time is not known"
    if not profiled:
        failed = [one for rank in who.mine for one in rank.attempts if one.what == "profile" and not one.answered]
        why = failed[-1].detail.partition(". ")[0].rstrip(".") if failed else "no profile of it was taken"
        return SlowSign(Fact(f"{unknown}: {why}", "captures"))
    if not any(rank.profiles for rank in who.peers):
        return SlowSign(Fact(f"{unknown}: no peer was profiled, so there is nothing to compare it with", "py-spy"))
    samples = sum(stack.count for rank in who.mine for stack in training_stacks(rank))
    if samples < LEAST_SAMPLES:
        return SlowSign(
            Fact(f"{unknown}: the profile holds {samples} samples of its training thread, too few", "py-spy")
        )
    of_peers = sum(stack.count for rank in who.peers for stack in training_stacks(rank))
    if who.cost_share and not would_show(who.cost_share, samples, of_peers):
        few = f"{samples} samples are too few to show a line that takes {who.cost_share:.0%} of {who.its} time"
        return SlowSign(Fact(f"{unknown} yet: {few}", "py-spy"))
    said = "no single line takes the time: it is spread over many, or passes where stacks do not show it (GPU, driver)"
    return SlowSign(Fact(said, "py-spy"))


def _workers(who: SlowRanks, spent: Spent | None) -> SlowSign | None:
    """What the workers do that it waits for."""
    if spent is None or spent.where != "dataloader":
        return None
    theirs = compared([child_stacks(rank) for rank in who.mine], [child_stacks(rank) for rank in who.peers])
    if theirs is None:
        return None
    fact = (
        f"{who.its} loader's workers spend {theirs.share:.0%} of their time at {_at(who, who.mine, theirs)}; those "
        f"of {who.its} peers {theirs.peers_share:.0%}"
    )
    return SlowSign(Fact(fact, f"py-spy, {theirs.samples} samples of workers"))


def _longer(who: SlowRanks) -> SlowSign:
    computes = who.both(lambda usage: usage.cpu_share)
    works = computes is not None and computes[0] > 0.5
    likely = "longer input, or a slower CPU" if works else "longer input, or something slower that it waits for there"
    fact = f"{who.its} peers run the same line for less long: consistent with {likely}"
    return SlowSign(Fact(fact, "py-spy"), told=False)
