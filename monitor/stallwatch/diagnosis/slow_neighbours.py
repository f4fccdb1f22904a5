"""Who runs on the CPUs of slow ranks beside them, in words, and what to do about each kind of them."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis.step import NextStep, of_the_living
from stallwatch.model.evidence import Neighbour, RankEvidence

_MOST_NAMED = 2
_AS_MUCH = 1.25  # times what its peers have of a kind: by chance


class Sharers(NamedTuple):
    """Who is named, the busiest first, and how."""

    named: tuple[Neighbour, ...] = ()
    names: tuple[str, ...] = ()
    are_own: tuple[bool, ...] = ()  # started by the slow ranks, or threads of theirs

    @property
    def run(self) -> str:
        """ "runs pid 7 (burn, 50% of a CPU)"; "" where nobody is known."""
        if not self.named:
            return ""
        one = len(self.named) == 1 and self.named[0].many == 1
        return f"run{'s' if one else ''} {' and '.join(self.names)}"

    @property
    def others(self) -> str:
        """Those that are not the slow ranks' own."""
        return " and ".join(name for name, own in zip(self.names, self.are_own, strict=True) if not own)

    def has_own(self, kin: str) -> bool:
        """Whether children ("child") or threads ("thread") of the slow ranks are among them."""
        return any(one.kin == kin and own for one, own in zip(self.named, self.are_own, strict=True))


def sharers(slow: Sequence[RankEvidence], ranks: Mapping[int, RankEvidence]) -> Sharers:
    """Given the slow ranks, and all of their job, return who ran on the slow ones' CPUs while they were last looked
    at. Of what is their own that is left out which their peers have as well: it is not why they are slower."""
    by_pid = {rank.pid: rank.rank for rank in ranks.values() if rank.pid is not None}
    mine = {rank.rank for rank in slow}
    peers = [rank for rank in ranks.values() if rank.rank not in mine and rank.usages]
    # Slow ranks that share one CPU are each other's neighbours.
    found = {
        (one.pid, one.kin): _known(one, by_pid)
        for rank in slow
        if rank.usages
        for one in rank.usages[-1].beside
        if not (one.is_of((rank.rank,)) and _is_usual(one, rank, peers))
    }
    named = sorted(found.values(), key=lambda one: (-one.cpu_share, one.pid))
    first = next((one for one in named if not one.is_of(mine)), None)  # its own may be busier than who disturbs it
    rest = [one for one in named if one is not first][: _MOST_NAMED - (first is not None)]
    shown = [one for one in named if one is first or one in rest]
    own = tuple(one.is_of(mine) for one in shown)
    its = "their" if len(mine) > 1 else "its"
    names = tuple(_name(one, its if is_own else "") for one, is_own in zip(shown, own, strict=True))
    return Sharers(tuple(shown), names, own)


def _is_usual(one: Neighbour, rank: RankEvidence, peers: Sequence[RankEvidence]) -> bool:
    """Whether ranks that are not slow, and may use no more CPUs, have as many of this kind and name, as busy."""
    if not peers or median(map(_cpus, peers)) > _cpus(rank):
        return False
    (mine, many), theirs = _of_own(one, rank), [_of_own(one, peer) for peer in peers]
    return mine <= _AS_MUCH * median(share for share, _ in theirs) and many <= median(count for _, count in theirs)


def _cpus(rank: RankEvidence) -> int:
    return len(rank.usages[-1].cpus or ())


def _of_own(like: Neighbour, rank: RankEvidence) -> tuple[float, int]:
    """What a rank's own of this kind and name take of a CPU, and how many these are."""
    alike = [
        one
        for one in rank.usages[-1].beside
        if one.is_of((rank.rank,)) and (one.kin, one.command) == (like.kin, like.command)
    ]
    return sum(one.cpu_share for one in alike), sum(one.many for one in alike)


def _known(one: Neighbour, ranks: Mapping[int, int]) -> Neighbour:
    """Bundles of daemons that did not say what a process is to ranks."""
    if one.kin is not None or one.pid not in ranks:
        return one
    return Neighbour(one.pid, one.command, one.cpu_share, one.many, "rank", ranks[one.pid])


def _name(one: Neighbour, its: str) -> str:
    """`its`: "" of somebody else's."""
    of = f"rank {one.rank}{f' of job {one.training_job}' if one.training_job else ''}"
    uses = f"{one.command}, {one.cpu_share:.0%} of a CPU{' together' if one.many > 1 else ''}"
    if one.kin == "thread":
        what = f"{one.many} threads" if one.many > 1 else f"thread {one.pid}"
        return f"{what} of {its or of} own process ({uses})" if its else f"{what} of {of} ({uses})"
    if one.kin == "rank":
        return f"pid {one.pid} ({of}, {uses})"
    if one.many > 1:
        return f"{one.many} children of {f'{its} own' if its else of}, such as pid {one.pid} ({uses})"
    whose = (f", a child of {its} own" if its else f", a child of {of}") if one.kin else ""
    return f"pid {one.pid}{whose} ({uses})"


def steps_about(beside: Sharers, name: str, host: str, pid: int | str, *, many: bool) -> tuple[NextStep, ...]:
    """Given who runs beside the ranks of this name, on which host, and the pid of one of them, return what to do."""
    they, its = ("they may", "their") if many else ("it may", "its")
    look = f"on {host} `taskset -cp {pid}` shows what {they} use, `top -H -p {pid}` what runs"
    steps = []
    if beside.has_own("child"):
        steps.append(
            of_the_living(
                f"Give the children of {name} CPUs of their own, or have fewer of them: they inherit what {they} use. "
                "Of a data loader's workers: os.sched_setaffinity in worker_init_fn, or num_workers."
            )
        )
    if beside.has_own("thread"):
        steps.append(
            of_the_living(
                f"Let {name} have no more threads than CPUs: OMP_NUM_THREADS or torch.set_num_threads, and "
                "TOKENIZERS_PARALLELISM=false or RAYON_NUM_THREADS where it tokenizes."
            )
        )
    others = [one for one, own in zip(beside.named, beside.are_own, strict=True) if not own]
    if steps and not others:
        return (*steps, of_the_living(f"Or let {name} use more CPUs: {look}."))
    if others and all(one.kin and not one.training_job for one in others):
        # Of the same job: nobody is to be stopped.
        shares = "share" if many else "shares"
        give = f"Give each rank CPUs of its own: {look}; {name} {shares} them with {beside.others}."
    else:
        named = f" ({beside.others})" if others else ""
        give = f"Give {name} CPUs of {its} own: {look}; move or stop who shares them{named}."
    return (of_the_living(give), *steps)
