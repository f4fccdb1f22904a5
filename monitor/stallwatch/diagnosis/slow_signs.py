"""What is outside of a slow rank's code and slows it, compared with its peers: who holds it, CPUs, its GPU, memory,
storage; with what to do."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.slow_neighbours import sharers, steps_about
from stallwatch.diagnosis.step import NextStep, of_the_living, starts_job
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import ProcessLook, RankEvidence, Usage
from stallwatch.model.gpu import Gpu, gpu_slower
from stallwatch.model.process import is_frozen
from stallwatch.model.verdict import Fact, Slowness

_CONTENDED = 0.05  # of the time, more than its peers; and of what it costs:
OF_COST = 0.5  # what explains less than this part does not explain it
_FAULTS = 20.0  # a second: reads from disk where memory was expected, some milliseconds each
_READS = 5e6  # bytes a second from storage
_TIMES = 3.0  # what its peers do
_FEW_CPUS = 4
_THROTTLED = 0.1  # of the periods of a quota, more than its peers'
# Not one takes a tenth of a CPU, or none is in the daemon's namespace of processes.
_UNSEEN = ", and who takes it is not seen (many that take little each, or another container's)"
_STANDS = 0.97  # of the time: who is held for so long does not go on


class SlowSign(NamedTuple):
    """One thing that goes with ranks that are slow, as it is said."""

    fact: Fact
    steps: tuple[NextStep, ...] = ()
    told: bool = True
    explains: bool = False  # why the same code takes longer
    measured: bool = False  # over some time, and not at single moments
    anywhere: bool = False  # it takes time at whatever line runs


class SlowRanks:
    """The slow ranks, and their peers on the same nodes."""

    def __init__(self, case: Case, slow: Sequence[int], cost: Slowness | None, gpus: Mapping[int, Gpu]) -> None:
        ranks = case.evidence
        self.case = case
        self.gpus = gpus
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
        """ "its" or "their"."""
        return "their" if self.many else "its"

    @property
    def all_cpus(self) -> set[int]:
        """That any rank may use."""
        usages = (usage for rank in (*self.mine, *self.peers) for usage in rank.usages)
        return {cpu for usage in usages for cpu in usage.cpus or ()}

    def both(self, value: Callable[[Usage], float | None]) -> tuple[float, float] | None:
        """What the slow ranks have, and their median peer; None where either is unknown."""
        here, there = (values(ranks, value) for ranks in (self.mine, self.peers))
        return (sum(here) / len(here), median(there)) if here and there else None


def values(ranks: Sequence[RankEvidence], value: Callable[[Usage], float | None]) -> list[float]:
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


class _Hold(NamedTuple):
    """A way in which somebody holds a process, and lets it go on."""

    by: str
    share: Callable[[Usage], float | None]
    is_held: Callable[[ProcessLook], bool]
    find: str  # by whom, on the node


_HOLDS = (
    _Hold(
        "a stop signal (SIGSTOP)",
        lambda usage: usage.stopped_share,
        lambda look: look.state == "T" and not look.tracer_pid,
        "stops {name} again and again: on {host} `ps -eo pid,args | grep -w cpulimit`, and `strace -f -e trace=kill -p "
        "<pid>` of what is suspected.",
    ),
    _Hold(
        "its control group, which is frozen and thawed",
        lambda usage: usage.frozen_share,
        lambda look: is_frozen(thread.wchan for thread in look.threads),
        "freezes it again and again: on {host} `cat /proc/{pid}/cgroup` names the group; `docker events --filter "
        "event=pause`, or a scheduler that lets jobs share the node by turns (`scontrol show config | grep Preempt`).",
    ),
)


def holds(who: SlowRanks) -> SlowSign | None:
    """Held at one moment and going on at another: somebody does that again and again, to take its CPU from it."""
    return next(filter(None, (_measured_hold(who, hold) or _seen_hold(who, hold) for hold in _HOLDS)), None)


def _measured_hold(who: SlowRanks, hold: _Hold) -> SlowSign | None:
    shares = who.both(hold.share)
    if shares is None or shares[0] - shares[1] < max(_CONTENDED, OF_COST * who.cost_share) or shares[0] > _STANDS:
        return None
    held = f"{who.say('is', 'are')} held by {hold.by} {shares[0]:.0%} of the time and let go on again and again"
    return _held(who, hold, f"{held}, {who.its} peers {shares[1]:.0%}")._replace(measured=True)


def _seen_hold(who: SlowRanks, hold: _Hold) -> SlowSign | None:
    each = [[hold.is_held(look) for look in rank.processes if look.state] for rank in who.mine]
    held, looks = sum(map(sum, each)), sum(map(len, each))
    if not held or any(hold.is_held(look) for rank in who.peers for look in rank.processes):
        return None
    return _held(who, hold, f"{who.say('was', 'were')} held by {hold.by} at {held} of {looks} looks, and goes on")


def _held(who: SlowRanks, hold: _Hold, fact: str) -> SlowSign:
    find = hold.find.format(name=who.name, host=who.host, pid=who.pid or "<pid>")
    return SlowSign(Fact(fact, "/proc"), (of_the_living(f"Find out who {find}"),), explains=True)


def _contention(who: SlowRanks) -> SlowSign | None:
    shares = who.both(lambda usage: usage.runnable_share)
    if shares is None or shares[0] - shares[1] < max(_CONTENDED, OF_COST * who.cost_share):
        return None
    fact = f"{who.its} main thread had no CPU to run on {shares[0]:.0%} of the time, {who.its} peers {shares[1]:.0%}"
    throttled = who.both(lambda usage: usage.throttled_share or 0.0)
    if throttled is not None and throttled[0] - throttled[1] >= _THROTTLED:
        return _by_quota(who, fact, throttled[0])
    wanted = who.both(_without_when_wanted)
    if wanted is not None and wanted[0] - wanted[1] < _CONTENDED:
        # The whole machine is crowded: who has more to compute waits for longer in all, and is no worse off each time.
        alike = "but the same part of the time in which each wants to run: the node is crowded"
        return SlowSign(Fact(f"{fact}, {alike}", "scheduler, /proc"), told=False)
    usages = [rank.usages[-1] for rank in who.mine if rank.usages]
    cpus = min((usage.cpus for usage in usages if usage.cpus), key=len, default=())
    beside = sharers(who.mine, who.case.evidence)
    if cpus and len(cpus) <= _FEW_CPUS and len(cpus) < len(who.all_cpus):
        fact += f"; {who.say('may', 'may')} use only CPU {rank_ranges(cpus)}"
        fact += f", on which also {beside.run}" if beside.named else _UNSEEN
    elif beside.named:
        fact += f"; on the same CPUs {beside.run}"
    steps = steps_about(beside, who.name, who.host, who.pid or "<pid>", many=who.many)
    return SlowSign(Fact(fact, "scheduler, /proc"), steps, explains=True, anywhere=True)


def _without_when_wanted(usage: Usage) -> float | None:
    """Of the time in which its main thread ran or could have run, that in which it had no CPU."""
    if usage.cpu_share is None or usage.runnable_share is None or usage.cpu_share + usage.runnable_share <= 0.0:
        return None
    return usage.runnable_share / (usage.cpu_share + usage.runnable_share)


def _by_quota(who: SlowRanks, fact: str, share: float) -> SlowSign:
    fact += f": {who.its} control group had used up its quota of the CPU in {share:.0%} of its periods"
    step = of_the_living(
        f"Raise the CPU limit of {who.its} container or job, or take it away (Kubernetes: `resources.limits.cpu`; "
        f"cgroup: `cpu.max`): on {who.host} `cat /proc/{who.pid or '<pid>'}/cgroup` names the group, its `cpu.stat` "
        "counts `nr_throttled`. Too many threads use it up as well: OMP_NUM_THREADS, num_workers."
    )
    return SlowSign(Fact(fact, "scheduler, cpu.stat"), (step,), explains=True, anywhere=True)


def _gpu(who: SlowRanks) -> SlowSign | None:
    """Its GPU is slower than those of its peers, or has a narrower link."""
    peers = [who.gpus[rank.rank] for rank in who.peers if rank.rank in who.gpus]
    for rank in who.mine:
        gpu = who.gpus.get(rank.rank)
        if gpu is None or gpu in peers or not (slower := gpu_slower(gpu, peers)):
            continue
        show = f"On {who.host} `nvidia-smi -q -i {gpu.uuid or gpu.index} -d PERFORMANCE,CLOCK,TEMPERATURE,POWER`"
        steps = (
            f"{show} says what lowers it: heat (fans, airflow), a power limit, or a clock that somebody has set.",
            starts_job("If it stays so, drain the node and restart the job from its last checkpoint."),
        )
        return SlowSign(Fact(slower.said, "NVML"), steps, explains=slower.share >= OF_COST * who.cost_share)
    return None


def _faults(who: SlowRanks) -> SlowSign | None:
    rates = who.both(_a_second(lambda usage: usage.major_faults))
    if rates is None or rates[0] < max(_FAULTS, _TIMES * rates[1]):
        return None
    swapped = max((usage.swapped_bytes or 0 for rank in who.mine for usage in rank.usages), default=0)
    fact = f"{who.say('has', 'have')} {rates[0]:.0f} major page faults a second, {who.its} peers {rates[1]:.0f}"
    fact += f"; {swapped / 1e9:.1f} GB of {who.its} memory are swapped out" if swapped else ""
    step = f"Free memory on {who.host}: `free -g`, `grep VmSwap /proc/{who.pid or '<pid>'}/status`, `vmstat 1`."
    return SlowSign(Fact(fact, "/proc"), (of_the_living(step),), explains=True)


def _storage(who: SlowRanks) -> SlowSign | None:
    rates = who.both(_a_second(lambda usage: usage.read_bytes))
    if rates is None or rates[0] < max(_READS, _TIMES * rates[1]):
        return None
    mine, theirs = (rate / 1e6 for rate in rates)
    fact = f"{who.say('reads', 'read')} {mine:.0f} MB a second from storage, {who.its} peers {theirs:.0f}"
    step = f"On {who.host} `iostat -x 1` and `pidstat -d 1` show the device and who reads."
    return SlowSign(Fact(fact, "/proc"), (step,))


SIGNS: tuple[Callable[[SlowRanks], SlowSign | None], ...] = (_gpu, _contention, _faults, _storage)
