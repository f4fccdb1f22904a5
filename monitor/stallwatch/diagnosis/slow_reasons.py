"""Why ranks are slow: by the line that takes their time and what goes with it, compared with their peers; with what to
do."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis.activity.threads import child_stacks, training_stacks
from stallwatch.diagnosis.frames.code_origin import code_origin, source_text
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.time_spent import LEAST_SAMPLES, Spent, compared, waited
from stallwatch.diagnosis.report.text import DOING, format_location
from stallwatch.diagnosis.step import NextStep, of_the_living
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import Neighbour, RankEvidence, SampledStack, Usage
from stallwatch.model.verdict import Fact, Frame, Slowness, Where

_CONTENDED = 0.05  # of the time, more than its peers; and of what it costs:
OF_COST = 0.5  # what explains less than this part does not explain it
_FAULTS = 20.0  # a second: reads from disk where memory was expected, some milliseconds each
_READS = 5e6  # bytes a second from storage
_TIMES = 3.0  # what its peers do
_FEW_CPUS = 4


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
    peers_without_cpu: float = 0.0  # of the time in which their peers were ready to run and had no CPU

    @property
    def where(self) -> Where | None:
        """The kind of place where the time goes; None without a profile."""
        return self.spent.where if self.spent is not None else None


def slow_reasons(case: Case, slow: Sequence[int], cost: Slowness | None) -> Reasons:
    """Given the ranks that hold the job back, and what that costs, return where they spend the time and what goes with
    it."""
    who = _Who(case, slow, cost)
    stacks = _trained(case, who.mine), _trained(case, who.peers)
    seen = compared(*stacks)
    spent = seen if seen is None or _explains(who, seen) else None
    profiled = any(rank.profiles for rank in who.mine)
    found = [
        say
        for say in (
            _line(who, spent) or _little(who, seen) or _no_line(who, profiled=profiled),
            _workers(who, spent),
            *(sign(who) for sign in _SIGNS),
        )
        if say
    ]
    if spent is not None and spent.is_shared and not any(say.explains for say in found):
        found.append(_longer(who))
    steps = [step for say in found for step in say.steps]
    return Reasons(
        frame=_frame(who.mine, spent) if spent is not None else None,
        spent=spent,
        waits=waited(*stacks),
        profiled=profiled,
        facts=tuple(say.fact for say in found),
        told="; ".join(say.fact.fact for say in found if say.told),
        steps=tuple(steps or who.to_look_for()),
        explained=any(say.explains for say in found),
        peers_without_cpu=median(_values(who.peers, lambda usage: usage.runnable_share) or [0.0]),
    )


class _Say(NamedTuple):
    """One thing that goes with it, as it is said."""

    fact: Fact
    steps: tuple[NextStep, ...] = ()
    told: bool = True
    explains: bool = False  # why the same code takes longer


class _Who:
    """The slow ranks, and their peers on the same nodes."""

    def __init__(self, case: Case, slow: Sequence[int], cost: Slowness | None) -> None:
        ranks = case.evidence
        self.case = case
        self.mine = [ranks[rank] for rank in slow if rank in ranks]
        hosts = {rank.host for rank in self.mine}
        self.peers = [ranks[rank] for rank in sorted(ranks) if rank not in slow and ranks[rank].host in hosts]
        # Of the time as it is.
        self.cost_share = cost.cost_seconds / cost.step_seconds if cost is not None and cost.step_seconds else 0.0
        self.many = len(slow) > 1
        self.name = f"{'ranks' if self.many else 'rank'} {rank_ranges(slow)}"
        self.pid = next((rank.pid for rank in self.mine if rank.pid is not None), None)
        self.host = next((rank.host for rank in self.mine if rank.host), None) or f"the node of {self.name}"

    def say(self, one: str, many: str = "") -> str:
        """ "it spends" or "they spend"."""
        return f"they {many or one}" if self.many else f"it {one}"

    @property
    def its(self) -> str:
        return "their" if self.many else "its"

    def to_look_for(self) -> list[NextStep]:
        """Where nothing was found: how a person looks himself."""
        pid = self.pid if self.pid is not None else "<pid>"
        look = f"See what {self.name} spends time on: `py-spy record --duration 20 --format speedscope -o rank.json"
        return [of_the_living(f"{look} --pid {pid}`, and the same of a peer.")]

    @property
    def all_cpus(self) -> set[int]:
        """That any rank may use."""
        usages = (usage for rank in (*self.mine, *self.peers) for usage in rank.usages)
        return {cpu for usage in usages for cpu in usage.cpus or ()}

    def both(self, value: Callable[[Usage], float | None]) -> tuple[float, float] | None:
        """What the slow ranks have, and their median peer; None where either is unknown."""
        here, there = (_values(ranks, value) for ranks in (self.mine, self.peers))
        return (sum(here) / len(here), median(there)) if here and there else None


def _trained(case: Case, ranks: Sequence[RankEvidence]) -> list[list[SampledStack]]:
    return [training_stacks(rank, case.activity(rank.rank).place.os_thread_id) for rank in ranks]


def _values(ranks: Sequence[RankEvidence], value: Callable[[Usage], float | None]) -> list[float]:
    """Of each rank the mean over its looks, weighted by their length."""
    found = []
    for rank in ranks:
        known = [(usage.seconds, number) for usage in rank.usages if (number := value(usage)) is not None]
        if seconds := sum(seconds for seconds, _ in known):
            found.append(sum(seconds * number for seconds, number in known) / seconds)
    return found


def _a_second(value: Callable[[Usage], int | None]) -> Callable[[Usage], float | None]:
    def rate(usage: Usage) -> float | None:
        count = value(usage)
        return None if count is None or not usage.seconds else count / usage.seconds

    return rate


def _frame(ranks: Sequence[RankEvidence], spent: Spent) -> Frame:
    at = spent.frame
    texts = (source_text(rank.sources, at) for rank in ranks)
    return Frame(at.filename, at.line, at.name, next((text for text in texts if text), None))


def _at(who: _Who, ranks: Sequence[RankEvidence], spent: Spent) -> str:
    """ "train.py:120 in main (`batch = next(it)`), where it waits for its data loader"."""
    said, inner = format_location(_frame(ranks, spent)), spent.frames[0]
    if spent.frame == inner:
        return said
    if spent.where in ("user_code", "busy_loop", "unknown"):
        return f"{said}, in {inner.name} of {code_origin(inner.filename).module}"
    return f"{said}, where it {DOING[spent.where]}" if not who.many else f"{said} ({spent.where})"


def _line(who: _Who, spent: Spent | None) -> _Say | None:
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
    elif spent.is_shared:
        step = f"Compare what {who.name} and a peer are given at {spent.line}: sizes, lengths, files."
    else:
        alone = f"{who.name} alone {'are' if who.many else 'is'} at {spent.line}"
        step = f"See why {alone}: {who.its} input, {who.its} file, or a branch by rank."
    return _Say(Fact(fact, source), (step,))


def _explains(who: _Who, spent: Spent) -> bool:
    """Whether a line takes a good part of what they cost. Hosts that run ahead of their devices seem to cost more than
    they do."""
    ahead = any(group.backend == "nccl" for group in who.case.groups)
    return ahead or spent.share - spent.peers_share >= OF_COST * who.cost_share


def _little(who: _Who, spent: Spent | None) -> _Say | None:
    """A line that takes too little to be why."""
    if spent is None:
        return None
    fact = (
        f"no line explains it: the most is {spent.share:.0%} of {who.its} time at {_at(who, who.mine, spent)}, of "
        f"{who.its} peers {spent.peers_share:.0%}"
    )
    return _Say(Fact(fact, f"py-spy, {spent.samples} samples of {'them' if who.many else 'it'}"))


def _stops(who: _Who) -> _Say | None:
    """Stopped at one look and going on at another: somebody does that again and again, to take its CPU from it."""
    each = [[look.state == "T" and not look.tracer_pid for look in rank.processes if look.state] for rank in who.mine]
    stopped, looks = sum(map(sum, each)), sum(map(len, each))
    if not stopped or any(look.state == "T" for rank in who.peers for look in rank.processes):
        return None
    fact = f"{who.say('was', 'were')} held by a stop signal (SIGSTOP) at {stopped} of {looks} looks, and went on after"
    step = of_the_living(
        f"Find out who stops {who.name} again and again: on {who.host} `ps -eo pid,args | grep -w cpulimit`, and "
        f"`strace -f -e trace=kill -p <pid>` of what is suspected."
    )
    return _Say(Fact(fact, "/proc"), (step,), explains=True)


def _no_line(who: _Who, *, profiled: bool) -> _Say:
    """Why no line is named."""
    unknown = f"where {who.say('spends', 'spend')} the time is not known"
    if not profiled:
        failed = [one for rank in who.mine for one in rank.attempts if one.what == "profile" and not one.answered]
        why = failed[-1].detail.partition(". ")[0].rstrip(".") if failed else "no profile of it was taken"
        return _Say(Fact(f"{unknown}: {why}", "captures"))
    if not any(rank.profiles for rank in who.peers):
        return _Say(Fact(f"{unknown}: no peer was profiled, so there is nothing to compare it with", "py-spy"))
    samples = sum(stack.count for rank in who.mine for stack in training_stacks(rank))
    if samples < LEAST_SAMPLES:
        return _Say(Fact(f"{unknown}: the profile holds {samples} samples of its training thread, too few", "py-spy"))
    said = "no single line takes the time: it is spread over many, or passes where stacks do not show it (GPU, driver)"
    return _Say(Fact(said, "py-spy"))


def _workers(who: _Who, spent: Spent | None) -> _Say | None:
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
    return _Say(Fact(fact, f"py-spy, {theirs.samples} samples of workers"))


def _contention(who: _Who) -> _Say | None:
    shares = who.both(lambda usage: usage.runnable_share)
    if shares is None or shares[0] - shares[1] < max(_CONTENDED, OF_COST * who.cost_share):
        return None
    fact = f"{who.its} main thread had no CPU to run on {shares[0]:.0%} of the time, {who.its} peers {shares[1]:.0%}"
    usages = [rank.usages[-1] for rank in who.mine if rank.usages]
    cpus = min((usage.cpus for usage in usages if usage.cpus), key=len, default=())
    beside = _named_beside(who, usages)
    if cpus and len(cpus) <= _FEW_CPUS and len(cpus) < len(who.all_cpus):
        fact += f"; {who.say('may', 'may')} use only CPU {rank_ranges(cpus)}"
        fact += f", on which also runs {beside}" if beside else ""
    elif beside:
        fact += f"; on the same CPUs run {beside}"
    step = of_the_living(
        f"Give {who.name} CPUs of {who.its} own: on {who.host} `taskset -cp {who.pid or '<pid>'}` shows what "
        f"{who.say('may', 'may')} use, `top -H -p {who.pid or '<pid>'}` what runs; move or stop who shares them"
        f"{f' ({beside})' if beside else ''}."
    )
    return _Say(Fact(fact, "scheduler, /proc"), (step,), explains=True)


def _named_beside(who: _Who, usages: Sequence[Usage]) -> str:
    by_pid = {rank.pid: rank.rank for rank in who.case.evidence.values() if rank.pid is not None}
    busiest: dict[int, Neighbour] = {one.pid: one for usage in usages for one in usage.beside}
    shown = sorted(busiest.values(), key=lambda one: (-one.cpu_share, one.pid))[:2]
    return " and ".join(_neighbour(one, by_pid) for one in shown)


def _neighbour(one: Neighbour, ranks: Mapping[int, int]) -> str:
    rank = f"rank {ranks[one.pid]}, " if one.pid in ranks else ""
    return f"pid {one.pid} ({rank}{one.command}, {one.cpu_share:.0%} of a CPU)"


def _faults(who: _Who) -> _Say | None:
    rates = who.both(_a_second(lambda usage: usage.major_faults))
    if rates is None or rates[0] < max(_FAULTS, _TIMES * rates[1]):
        return None
    swapped = max((usage.swapped_bytes or 0 for rank in who.mine for usage in rank.usages), default=0)
    fact = f"{who.say('has', 'have')} {rates[0]:.0f} major page faults a second, {who.its} peers {rates[1]:.0f}"
    fact += f"; {swapped / 1e9:.1f} GB of {who.its} memory are swapped out" if swapped else ""
    step = f"Free memory on {who.host}: `free -g`, `grep VmSwap /proc/{who.pid or '<pid>'}/status`, `vmstat 1`."
    return _Say(Fact(fact, "/proc"), (of_the_living(step),), explains=True)


def _storage(who: _Who) -> _Say | None:
    rates = who.both(_a_second(lambda usage: usage.read_bytes))
    if rates is None or rates[0] < max(_READS, _TIMES * rates[1]):
        return None
    mine, theirs = (rate / 1e6 for rate in rates)
    fact = f"{who.say('reads', 'read')} {mine:.0f} MB a second from storage, {who.its} peers {theirs:.0f}"
    step = f"On {who.host} `iostat -x 1` and `pidstat -d 1` show the device and who reads."
    return _Say(Fact(fact, "/proc"), (step,))


def _longer(who: _Who) -> _Say:
    computes = who.both(lambda usage: usage.cpu_share)
    works = computes is not None and computes[0] > 0.5
    likely = "longer input, or a slower CPU" if works else "longer input, or something slower that it waits for there"
    fact = f"{who.its} peers run the same line for less long: consistent with {likely}"
    return _Say(Fact(fact, "py-spy"), told=False)


_SIGNS: tuple[Callable[[_Who], _Say | None], ...] = (_stops, _contention, _faults, _storage)
