"""A slow rank's line, and what goes with it, as the verdict says it."""

from collections.abc import Sequence

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import (
    Attempt,
    CodeFrame,
    Evidence,
    HeldBack,
    Neighbour,
    NodeEvidence,
    ProcessLook,
    Profile,
    RankEvidence,
    SampledStack,
    SourceLine,
    Usage,
)
from stallwatch.model.gpu import Gpu
from stallwatch.model.verdict import Slowness, Verdict
from tests.builders.job import SLEEPS, STEP_NS, Rank, loop, world
from tests.unit.diagnosis.job.test_time_spent import NEXT, backward, line, load_batch, seen

STEPS = loop(world(4), 40)
QUIET = Usage(1, 5.0, cpu_share=0.2, runnable_share=0.01, major_faults=0, read_bytes=0, cpus=tuple(range(16)))
PEERS = [load_batch(6), seen(60, line(90)), backward(34)]


def profiled_rank(
    number: int, stacks: Sequence[SampledStack], usage: Usage, *, late_ns: int = 0, backend: str = "nccl"
) -> RankEvidence:
    calls, done = STEPS[: 76 if late_ns else 78], 75 if late_ns else 77
    rank = Rank(number, calls, done, looks=1, frames=SLEEPS, backend=backend).evidence()
    (recorder,) = rank.recorders
    moved = tuple(msgspec.structs.replace(o, created_ns=(o.created_ns or 0) + late_ns) for o in recorder.operations)
    last = max(operation.created_ns or 0 for operation in moved)
    profiles = (Profile("ranks/profile.txt", 1, tuple(stacks)),) if stacks else ()
    return msgspec.structs.replace(
        rank,
        recorders=(msgspec.structs.replace(recorder, operations=moved),),
        captured_at_ns=last + STEP_NS // 2,
        profiles=profiles,
        usages=(usage,),
        sources=(SourceLine("/job/data.py", 41, "rows = decode(raw)"),),
    )


def verdict(
    stacks: Sequence[SampledStack],
    usage: Usage = QUIET,
    *more: Profile,
    rank: int = 2,
    from_start: bool = False,
    grows: bool = False,
    peers: Sequence[SampledStack] = PEERS,
    stopped: Sequence[int] = (),
    backend: str = "nccl",
    usage_of_peers: Usage = QUIET,
    gpu2: dict[str, int] | None = None,
) -> Verdict:
    """Of a job of which a rank comes late, and was seen so. `stopped`: at the first of two looks."""
    late = profiled_rank(rank, stacks, usage, late_ns=STEP_NS // 2, backend=backend)
    late = msgspec.structs.replace(late, profiles=(*late.profiles, *more))
    ranks = [profiled_rank(n, peers if stacks else (), usage_of_peers, backend=backend) for n in range(4) if n != rank]
    held_back = HeldBack((rank,), "they wait", None, sure=True, from_start=from_start, grows=grows)
    together = tuple(_stopped(one, stopped) for one in sorted((*ranks, late), key=lambda one: one.rank))
    nodes = (_node(together, gpu2),) if gpu2 else ()
    (found,) = judge(Evidence(4, "gloo", together, nodes, (), held_back=held_back)).verdicts
    assert (found.cause, found.culprits) == ("slow_rank", (rank,))
    return found


def _node(ranks: Sequence[RankEvidence], of_rank_2: dict[str, int]) -> NodeEvidence:
    """A GPU for each rank, alike but for what is said of that of rank 2."""
    gpus = [Gpu(one.rank, f"GPU-{one.rank}", sm_clock_mhz=1980, compute_pids=(one.pid or 0,)) for one in ranks]
    gpus[2] = msgspec.structs.replace(gpus[2], **of_rank_2)
    return NodeEvidence(ranks[0].host or "", (0, 1, 2, 3), gpus=(tuple(gpus),))


def _stopped(rank: RankEvidence, stopped: Sequence[int]) -> RankEvidence:
    if rank.rank not in stopped:
        return rank
    first = [ProcessLook(source=f"ranks/{rank.rank}/process.json", look=1, pid=rank.pid, state="T", tracer_pid=0)]
    after = [msgspec.structs.replace(one, look=2, state="S") for one in first]
    return msgspec.structs.replace(rank, processes=(*first, *after))


OWN = [load_batch(38), seen(60, line(90)), backward(2)]


def test_the_line_that_takes_the_time_is_told_with_both_shares_and_is_the_culprits_place() -> None:
    told = verdict(OWN)
    said = "it spends 38% of its time at /job/data.py:41 in load_batch (`rows = decode(raw)`); its peers 6%"
    assert said in told.summary
    (culprit,) = told.culprit_processes
    assert culprit.frame is not None
    assert (culprit.frame.file, culprit.frame.line) == ("/job/data.py", 41)
    assert "rank 2 alone is at data.py:41" in told.next_steps[0]


def test_a_line_that_one_look_saw_is_not_told_where_the_time_is_spread() -> None:
    told = verdict(PEERS)
    assert "spends" not in told.summary
    assert told.culprit_processes[0].frame is None
    assert "py-spy record" in told.next_steps[0]


def test_without_a_profile_a_look_says_where_it_stands() -> None:
    assert verdict([]).culprit_processes[0].frame is not None


def test_why_no_line_is_told_is_told() -> None:
    assert "no single line takes the time" in verdict(PEERS).summary
    assert "where it spends the time is not known: no profile of it was taken" in verdict([]).summary
    assert "the profile holds 3 samples of its training thread, too few" in verdict([seen(3, line(90))]).summary


def test_of_few_samples_nobody_says_that_the_time_is_spread_over_many_lines() -> None:
    """A look of two seconds at a rank that slept a fifth of its time: fifty samples, of which ten would be at the line.
    The first message said that no single line took the time, and a later look found it."""
    few = [load_batch(1), seen(13, line(90)), backward(7)]
    said = verdict(few, peers=few).summary
    assert "where it spends the time is not known yet: 21 samples are too few to show a line that takes" in said
    assert "spread" not in said


def test_a_profile_that_failed_says_why() -> None:
    failed = Attempt("profile", 1, 0, answered=False, detail="py-spy may not read it (ptrace). Give it the right.")
    ranks = [profiled_rank(number, (), QUIET, late_ns=STEP_NS // 2 if number == 2 else 0) for number in range(4)]
    ranks[2] = msgspec.structs.replace(ranks[2], attempts=(failed,))
    (found,) = judge(Evidence(4, "gloo", tuple(ranks), (), ())).verdicts
    assert "where it spends the time is not known: py-spy may not read it (ptrace)." in found.summary


def by_steps(*, sure: bool) -> tuple[Verdict, ...]:
    """Verdicts on a job that looks healthy, of which detection has measured that rank 2 is slow."""
    ranks = [profiled_rank(number, OWN if number == 2 else PEERS, QUIET) for number in range(4)]
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 90, 24.0)
    held_back = HeldBack((2,), "rank 2 holds the others back: they wait", cost, sure)
    return judge(Evidence(4, "gloo", tuple(ranks), (), (), held_back=held_back)).verdicts


def test_what_many_steps_show_has_its_line_though_the_last_arrivals_do_not_show_it() -> None:
    told, overruled = by_steps(sure=True)
    assert (told.cause, told.culprits) == ("slow_rank", (2,))
    assert "each step takes 0.26 s, 0.06 s longer than if all ranks were as fast" in told.summary
    assert "it spends 38% of its time at /job/data.py:41" in told.summary
    assert overruled.cause != "slow_rank"
    assert [rejected.cause for rejected in told.rejected] == [overruled.cause]


def test_what_is_only_suspected_does_not_come_first() -> None:
    first, second = by_steps(sure=False)
    assert first.cause != "slow_rank"
    assert (second.cause, second.confidence) == ("slow_rank", "possible")


def test_a_job_that_stands_is_not_said_to_move_slowly() -> None:
    """Rank 2 was slow until rank 3 died: that it "holds the job back" now is not true."""
    ranks = [profiled_rank(number, OWN if number == 2 else PEERS, QUIET) for number in range(3)]
    dead = Rank(3, STEPS[:77], 76, exit_signal=9).evidence()
    held_back = HeldBack((2,), "they wait", Slowness(0.06, 0.05, 0.07, 0.26, 90, 24.0), sure=True)
    (told,) = judge(Evidence(4, "gloo", (*ranks, dead), (), (), held_back=held_back)).verdicts
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


def test_a_wait_for_a_loader_is_told_with_what_its_workers_do() -> None:
    decode = SampledStack(
        "MainThread", 9, (CodeFrame("decode", "/job/data.py", 77), CodeFrame("<module>", "<s>", 1)), 50
    )
    worker = Profile("ranks/2/profile.child-9.txt", 1, (decode,), 9)
    waits = [seen(38, *NEXT, line(88)), seen(60, line(90)), backward(2)]
    told = verdict(waits, QUIET, worker)
    assert "train.py:88 in main, where it waits for its data loader; its peers 0%" in told.summary
    assert told.where == "dataloader"
    assert "storage under its shard" in told.next_steps[0]
    assert not any("throttling" in step for step in told.next_steps), "it waits for data, not for its GPU"


@pytest.mark.parametrize(
    ("changed", "said", "step"),
    [
        (
            {"runnable_share": 0.4, "cpus": (3,), "beside": (Neighbour(99, "burn", 0.5),)},
            "its peers 1%; it may use only CPU 3, on which also runs pid 99 (burn, 50% of a CPU)",
            "taskset -cp",
        ),
        (
            {"major_faults": 1000, "swapped_bytes": 3_000_000_000},
            "200 major page faults a second, its peers 0; 3.0 GB of its memory are swapped out",
            "VmSwap",
        ),
        ({"read_bytes": 1_000_000_000}, "reads 200 MB a second from storage, its peers 0", "iostat"),
    ],
    ids=["another process", "swap", "storage"],
)
def test_what_goes_with_it_is_told_with_what_to_do(changed: dict[str, object], said: str, step: str) -> None:
    told = verdict(OWN, msgspec.structs.replace(QUIET, **changed))
    assert said in told.summary
    assert any(step in one for one in told.next_steps)


def test_what_explains_little_of_the_cost_is_not_told() -> None:
    told = verdict(OWN, msgspec.structs.replace(QUIET, runnable_share=0.07))
    assert told.slowness is not None
    assert told.slowness.cost_seconds > 0.2 * told.slowness.step_seconds
    assert "no CPU" not in told.summary


@pytest.mark.parametrize(("backend", "why"), [("gloo", False), ("nccl", True)])
def test_a_line_that_takes_little_of_the_cost_is_not_why(backend: str, why: bool) -> None:
    """Seen live: a rank was stopped by a signal for most of the time, and 12 % of what it ran were a wait for its
    loader. What a host costs whose device has enough to do looks like more than it is."""
    little = [load_batch(120), *(seen(110, line(number)) for number in range(90, 98))]
    rest = [load_batch(20), *(seen(122, line(number)) for number in range(90, 98))]
    told = verdict(little, peers=rest, backend=backend)
    assert (told.where is not None) == why
    assert ("no line explains it" in told.summary) != why


def test_who_stands_stopped_at_the_moment_of_a_look_is_slow_by_many_steps() -> None:
    """cpulimit, a freezer that comes and goes: the look sees one moment, and was told as the story. Another rank that
    stands stopped is one."""
    ranks = [profiled_rank(number, OWN if number == 2 else PEERS, QUIET) for number in range(4)]
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 90, 24.0)

    def told(of: int, sure: bool = True) -> list[str]:
        stopped = ProcessLook(source="p", look=1, pid=ranks[2].pid, state="T", tracer_pid=0)
        seen = [msgspec.structs.replace(one, processes=(stopped,)) if one.rank == of else one for one in ranks]
        held_back = HeldBack((2,), "rank 2 holds the others back", cost, sure)
        return [one.cause for one in judge(Evidence(4, "gloo", tuple(seen), (), (), held_back=held_back)).verdicts]

    assert told(2) == ["slow_rank", "process_stopped"]
    assert told(2, sure=False) == ["process_stopped", "slow_rank"]
    assert told(3) == ["process_stopped"]


@pytest.mark.parametrize(
    ("field", "said", "step"),
    [
        ("stopped_share", "it is held by a stop signal (SIGSTOP) 40% of the time and let go on again", "cpulimit"),
        (
            "frozen_share",
            "it is held by its control group, which is frozen and thawed 40% of the time",
            "docker events",
        ),
    ],
)
def test_who_is_held_again_and_again_for_most_of_what_it_costs_is_slow_for_that(
    field: str, said: str, step: str
) -> None:
    """By moments over some seconds: one look sees few. The line where it stands then is no reason, and neither are
    other programs or its input."""
    of_all = msgspec.structs.replace(QUIET, **{field: 0.0})
    held = msgspec.structs.replace(of_all, **{field: 0.4})
    longer = [load_batch(6), seen(92, line(90)), backward(2)]
    told = verdict(longer, held, usage_of_peers=of_all)
    assert said in told.summary
    assert step in told.next_steps[0]
    assert not [one for one in told.next_steps if "other programs" in one or "Compare what" in one]
    assert told.where is None
    assert told.culprit_processes[0].frame is None
    for share in (0.04, 1.0):  # less than what it costs; or it stands, and that is another matter
        little = msgspec.structs.replace(of_all, **{field: share})
        assert "held by" not in verdict(longer, little, usage_of_peers=of_all).summary
    assert "held by" not in verdict(longer, held, usage_of_peers=held).summary, "all are"


@pytest.mark.parametrize(("of_peers", "why"), [(0.0, True), (0.55, False)])
def test_who_has_used_up_a_quota_of_the_cpu_is_not_told_of_other_programs(of_peers: float, why: bool) -> None:
    """A container's limit: nobody else runs on its CPUs."""
    held = msgspec.structs.replace(QUIET, runnable_share=0.4, throttled_share=0.6)
    told = verdict(OWN, held, usage_of_peers=msgspec.structs.replace(QUIET, throttled_share=of_peers))
    assert ("its control group had used up its quota of the CPU in 60% of its periods" in told.summary) == why
    assert ("resources.limits.cpu" in told.next_steps[0]) == why
    assert ("taskset" in told.next_steps[0]) != why


@pytest.mark.parametrize(("mhz", "why"), [(1100, True), (1960, False)])
def test_a_gpu_whose_clock_is_lower_is_why(mhz: int, why: bool) -> None:
    told = verdict([load_batch(6), seen(92, line(90)), backward(2)], gpu2={"sm_clock_mhz": mhz})
    assert ("its GPU 2 runs at 1100 MHz, its peers' at 1980 MHz" in told.summary) == why
    assert ("nvidia-smi -q -i GPU-2" in told.next_steps[0]) == why
    assert any("Compare what" in step for step in told.next_steps) != why


def test_steps_follow_the_reason_that_was_found() -> None:
    """ "Look for other programs on its cores" was the second of them whatever it was."""
    shared = verdict([load_batch(6), seen(92, line(90)), backward(2)])
    for told in (verdict(OWN), shared, verdict(OWN, msgspec.structs.replace(QUIET, major_faults=1000))):
        assert not [step for step in told.next_steps if "other programs" in step]
        assert len(told.next_steps) >= 2
    nothing = verdict(PEERS)
    assert [step for step in nothing.next_steps if "other programs on its cores" in step]


@pytest.mark.parametrize("own", [True, False], ids=["stopped now and then", "all are"])
def test_who_is_stopped_at_one_look_and_goes_on_is_held_again_and_again(own: bool) -> None:
    told = verdict(OWN, stopped=(2,) if own else (0, 1, 2, 3))
    assert ("held by a stop signal (SIGSTOP) at 1 of 2 looks" in told.summary) == own
    assert any("cpulimit" in step for step in told.next_steps) == own


def test_the_same_line_for_longer_asks_for_what_the_ranks_are_given() -> None:
    longer = [load_batch(6), seen(92, line(90)), backward(2)]
    told = verdict(longer)
    assert any("consistent with longer input" in fact.fact for fact in told.because)
    assert "Compare what rank 2 and a peer are given at train.py:90" in told.next_steps[0]


def test_whether_it_became_slow_or_always_was_is_told() -> None:
    assert "; it has been so since the first steps; it spends 38% of its time" in verdict(OWN, from_start=True).summary
    assert "; it costs more and more; it spends 38% of its time" in verdict(OWN, grows=True).summary
    assert not [word for word in ("first steps", "more and more") if word in verdict(OWN).summary]


def test_what_rank_0_alone_does_from_its_first_step_is_by_design() -> None:
    said = "rank 0 alone is at data.py:41, and so since its first steps"
    assert said in verdict(OWN, rank=0, from_start=True).by_design


def test_who_waits_in_calls_that_no_recorder_counts_is_accused_of_nothing() -> None:
    """Stages of a pipeline under gloo: the last computes last, and what it waits before is in no recorder."""
    c10d = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waits = [seen(60, CodeFrame("recv", c10d, 2500), line(70, "pipeline")), seen(38, line(90)), backward(2)]
    said = "rank 2 waits for others 60% of the time, at train.py:70, in calls that no recorder counts"
    assert said in verdict(waits, from_start=True).by_design


@pytest.mark.parametrize(
    ("rank", "from_start", "stacks", "runnable"),
    [
        (2, True, OWN, 0.0),
        (0, False, OWN, 0.0),
        (0, True, [load_batch(6), seen(92, line(90)), backward(2)], 0.0),
        (0, True, OWN, 0.4),
        (0, True, PEERS, 0.0),
    ],
    ids=["another rank", "it became so", "a line of all ranks", "it has no CPU", "no line"],
)
def test_else_nothing_says_that_a_slow_rank_is_so_by_design(
    rank: int, from_start: bool, stacks: Sequence[SampledStack], runnable: float
) -> None:
    usage = msgspec.structs.replace(QUIET, runnable_share=runnable)
    assert verdict(stacks, usage, rank=rank, from_start=from_start).by_design == ""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_hosts_of_nccl_wait_for_a_host_longer_than_the_job_does(backend: str) -> None:
    cost = verdict(OWN, backend=backend).slowness
    assert cost is not None
    assert cost.at_most == (backend == "nccl")
