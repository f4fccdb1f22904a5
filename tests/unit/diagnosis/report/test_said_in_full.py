"""Whole sentences about jobs: where the culprit is and where the others are, who failed alike, what it sleeps for."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Attempt, CodeFrame, Evidence, SourceBlock, SourceLine
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, world
from tests.builders.texts import RAISED, marked, of_logs, ranked, timed_out

_TORCH = "/venv/lib/python3.11/site-packages/torch"
_MODULE = CodeFrame("<module>", "/srv/job/train.py", 99)
_USER = (CodeFrame("_call_impl", f"{_TORCH}/nn/modules/module.py", 1700), CodeFrame("step", "/srv/job/train.py", 10))
W4 = world(4)
STEPS = loop(W4, 5)


def _call(*inner: tuple[str, str]) -> tuple[CodeFrame, ...]:
    made = CodeFrame("all_reduce", f"{_TORCH}/distributed/distributed_c10d.py", 3000)
    return (made, *(CodeFrame(name, f"{_TORCH}/{file}", 300) for name, file in inner), *_USER, _MODULE)


_DDP = _call(("_sync_buffers", "nn/parallel/distributed.py"), ("forward", "nn/parallel/distributed.py"))
_FSDP = _call(
    ("unshard", "distributed/fsdp/_fully_shard/_fsdp_param_group.py"),
    ("pre_forward", "distributed/fsdp/_fully_shard/_fsdp_param_group.py"),
    ("fsdp_hook_wrapper", "distributed/fsdp/_fully_shard/_fsdp_state.py"),
)


def _job(others: tuple[CodeFrame, ...], culprit: tuple[CodeFrame, ...] = SLEEPS) -> Evidence:
    """Rank 1 stands elsewhere; the others wait in the collective of the next step."""
    waits = (
        Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=others, wchan="futex_do_wait", backend="gloo")
        for rank in (0, 2, 3)
    )
    return evidence(*waits, Rank(1, STEPS, len(STEPS), frames=culprit, backend="gloo"))


def _with_source(told: Evidence, source: SourceLine) -> Evidence:
    return replace(told, ranks=tuple(replace(r, sources=(source,)) if r.rank == 1 else r for r in told.ranks))


def _first(told: Evidence) -> Verdict:
    return judge(told).verdicts[0]


@pytest.mark.parametrize(
    ("others", "through"),
    [(_DDP, ", in DistributedDataParallel's forward"), (_FSDP, ", in FSDP's pre_forward"), (_call(), "")],
)
def test_it_is_said_where_the_others_are_by_their_line_and_by_the_call_that_took_them_there(
    others: tuple[CodeFrame, ...], through: str
) -> None:
    summary = _first(_job(others)).summary
    assert "sleeps at /srv/job/data.py:7 in prepare" in summary
    assert f"called at /srv/job/train.py:10 in step{through}, consistent with" in summary


def test_under_nccl_the_recorder_tells_the_call() -> None:
    """Its hosts stand in a synchronisation, and not in the collective."""
    synchronises = (CodeFrame("synchronize", f"{_TORCH}/cuda/__init__.py", 1083), *_USER[1:], _MODULE)
    told = evidence(
        *(Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=synchronises) for rank in (0, 2, 3)),
        Rank(1, STEPS, len(STEPS), frames=SLEEPS),
    )
    ranks = tuple(
        replace(
            rank,
            recorders=tuple(
                replace(look, operations=tuple(replace(entry, frames=_FSDP) for entry in look.operations))
                for look in rank.recorders
            ),
        )
        for rank in told.ranks
    )
    assert "in FSDP's pre_forward" in _first(replace(told, ranks=ranks)).summary


def test_ranks_that_fail_alike_by_themselves_are_all_named() -> None:
    failed = "".join(ranked(RAISED, rank) for rank in (1, 2))
    verdict = _first(of_logs(failed + "".join(timed_out("2.6", rank, 31) for rank in (0, 3, 4, 5, 6, 7))))
    assert (verdict.cause, verdict.culprits) == ("rank_raised", (1, 2))
    assert verdict.summary.startswith("Ranks 1-2 raised ValueError: shard 17 is empty")


@pytest.mark.parametrize("text", ["shard = self.cache[batch]", "batch = compute(shard, batch)", "x = loaders[epoch]"])
def test_words_of_variables_make_no_data_loop(text: str) -> None:
    verdict = _first(_with_source(_job(_call()), SourceLine("/srv/job/data.py", 7, text, ())))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))
    assert verdict.where != "dataloader"


def test_a_sleep_in_a_poll_is_shown_with_the_loop_around_it() -> None:
    block = SourceBlock("while", 6, "while not os.path.exists(path):")
    summary = _first(
        _with_source(_job(_call()), SourceLine("/srv/job/data.py", 7, "time.sleep(0.5)", (block,)))
    ).summary
    assert "(`time.sleep(0.5)`), again and again in `while not os.path.exists(path):`" in summary


def test_gloos_abort_by_a_size_gives_the_lines_of_those_that_survived_it() -> None:
    aborted = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
        "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 8000 vs 4000\n"
    )
    survived = (
        'Traceback (most recent call last):\n  File "/job/train.py", line 31, in main\n    dist.all_reduce(loss)\n'
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Read error [127.0.0.1]:18849: "
        "Connection reset by peer\n"
    )
    log = marked(aborted, "[default0]:") + "".join(marked(survived, f"[default{rank}]:") for rank in (1, 2))
    verdict = _first(of_logs(log))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())
    assert "received 8000 bytes in a collective where it expected 4000" in verdict.summary
    said = [fact.fact for fact in verdict.because]
    assert [f"rank {rank} was at /job/train.py:31 in main" for rank in (1, 2)] == [s for s in said if "was at" in s]


def test_who_is_missing_from_the_start_is_named_with_its_host() -> None:
    verifies = (CodeFrame("_verify_param_shape_across_processes", f"{_TORCH}/distributed/utils.py", 286), _MODULE)
    joined = [Rank(rank, loop(W4, 0), frames=verifies, state="R", wchan=None).evidence() for rank in range(3)]
    absent = replace(
        Rank(3, dumped=False, frames=SLEEPS, host="node7").evidence(),
        attempts=(
            Attempt("flight_recorder", 1, 1, True, "answered without a dump: torch is not loaded or has no recorder"),
        ),
    )
    asked = (Attempt("flight_recorder", 1, 1, True, "nccl 118 bytes"),)
    ranks = (*(replace(rank, attempts=asked) for rank in joined), absent)
    verdict = _first(replace(evidence(*(Rank(rank) for rank in range(4))), ranks=ranks))
    assert (verdict.cause, verdict.culprits) == ("init_missing", (3,))
    assert "Rank 3 (pid 1003 on node7)" in verdict.summary


def _pipe(rank: int, line: int) -> Rank:
    """gloo's Work.wait is C++: nothing tells in what it waits but that it stands below a line of a send or receive."""
    frames = (
        CodeFrame("recv", f"{_TORCH}/distributed/distributed_c10d.py", 2800),
        CodeFrame("pipe", "/srv/job/pipe.py", line),
        _MODULE,
    )
    return Rank(rank, STEPS, len(STEPS), frames=frames, wchan="futex_do_wait", backend="gloo")


def test_where_the_others_stand_at_several_lines_the_first_of_them_are_told() -> None:
    sleeper = Rank(1, STEPS, len(STEPS), frames=SLEEPS, backend="gloo")
    verdict = _first(evidence(_pipe(0, 127), sleeper, _pipe(2, 131), _pipe(3, 129)))
    assert verdict.culprits == (1,)
    assert "rank 0 at /srv/job/pipe.py:127 in pipe, rank 2 at /srv/job/pipe.py:131 in pipe, 1 more" in verdict.summary


def test_a_rank_that_uses_its_groups_in_another_order_is_told_with_the_line_of_the_others() -> None:
    dp = Group("1", "dp", (0, 1, 2, 3), 1)
    usual = (Call(W4, elements=500, line=10), Call(dp, elements=7, line=11)) * 4
    swapped = Rank(0, (*usual, usual[1]), len(usual), frames=_call(), wchan="futex_do_wait")
    others = [Rank(rank, (*usual, usual[0]), len(usual), frames=_call(), wchan="futex_do_wait") for rank in (1, 2, 3)]
    verdict = _first(evidence(swapped, *others))
    assert (verdict.cause, verdict.culprits) == ("group_order", (0,))
    assert (
        "called at /srv/job/train.py:10 in step: consistent with a rank that left a call out, or enters"
        in verdict.summary
    )


def _through_a_helper(caller: str, line: int) -> tuple[CodeFrame, ...]:
    made = CodeFrame("all_reduce", f"{_TORCH}/distributed/distributed_c10d.py", 3000)
    helper = CodeFrame("average", "/srv/job/train.py", 12)
    return (made, helper, CodeFrame(caller, "/srv/job/train.py", line), _MODULE)


def test_who_stand_in_one_helper_are_told_with_the_lines_that_called_it() -> None:
    """A GAN: both networks are averaged by one function, each in a group of its own."""
    dp = Group("1", "dp", (0, 1, 2, 3), 1)
    usual = (Call(W4, elements=500, line=12), Call(dp, elements=7, line=12)) * 4
    stands = _through_a_helper("train_generator", 22), _through_a_helper("train_discriminator", 18)
    swapped = Rank(0, (*usual, usual[1]), len(usual), frames=stands[0], wchan="futex_do_wait").evidence()
    swapped = replace(swapped, sources=(SourceLine("/srv/job/train.py", 22, "    average(generator, g)"),))
    others = (Rank(rank, (*usual, usual[0]), len(usual), frames=stands[1], wchan="futex_do_wait") for rank in (1, 2, 3))
    told = evidence(*others)
    verdict = _first(replace(told, ranks=(swapped, *told.ranks)))
    assert (verdict.cause, verdict.culprits) == ("group_order", (0,))
    assert "/srv/job/train.py:12 in average, called from /srv/job/train.py:22 in train_generator (`average(" in (
        verdict.summary
    )
    assert "/srv/job/train.py:12 in average, from /srv/job/train.py:18 in train_discriminator: con" in verdict.summary
    frame = verdict.culprit_processes[0].frame
    assert frame and frame.line == 12, "where it stands stays where it stands"


def test_callers_that_are_the_same_are_not_told() -> None:
    dp = Group("1", "dp", (0, 1, 2, 3), 1)
    usual = (Call(W4, elements=500, line=12), Call(dp, elements=7, line=12)) * 4
    frames = _through_a_helper("train", 22)
    swapped = Rank(0, (*usual, usual[1]), len(usual), frames=frames, wchan="futex_do_wait")
    others = (Rank(rank, (*usual, usual[0]), len(usual), frames=frames, wchan="futex_do_wait") for rank in (1, 2, 3))
    assert " from " not in _first(evidence(swapped, *others)).summary


def _through_a_framework(function: str, line: int) -> tuple[CodeFrame, ...]:
    made = CodeFrame("all_reduce", f"{_TORCH}/distributed/distributed_c10d.py", 3000)
    site = _TORCH.removesuffix("/torch")
    inside = CodeFrame("gather", f"{site}/accelerate/operations.py", 40)
    loop = CodeFrame(function, f"{site}/transformers/trainer.py", line)
    return (made, inside, loop, CodeFrame("train", f"{site}/transformers/trainer.py", 2100), _MODULE)


def test_who_stand_in_one_framework_are_told_with_the_lines_at_which_their_ways_part() -> None:
    """`trainer.train()` is one line for all ranks: one has left the loop inside of it."""
    dp = Group("1", "dp", (0, 1, 2, 3), 1)
    usual = (Call(W4, elements=500, line=12), Call(dp, elements=7, line=12)) * 4
    stands = _through_a_framework("_evaluate", 2300), _through_a_framework("_inner_training_loop", 2200)
    swapped = Rank(0, (*usual, usual[1]), len(usual), frames=stands[0], wchan="futex_do_wait")
    others = (Rank(rank, (*usual, usual[0]), len(usual), frames=stands[1], wchan="futex_do_wait") for rank in (1, 2, 3))
    summary = _first(evidence(swapped, *others)).summary
    assert ", by transformers/trainer.py:2300 in _evaluate" in summary
    assert ", by transformers/trainer.py:2200 in _inner_training_loop" in summary


def test_both_peers_of_a_mesh_wait_for_the_one_that_stands() -> None:
    """Data and tensor parallel: ranks 1 and 2 wait for rank 3, each in another group; of one it was said that it waits
    behind the other, as rank 0 does."""
    rows = [Group("1", "tp", (0, 1), 1), Group("2", "tp", (2, 3), 2)]
    columns = [Group("3", "dp", (0, 2), 3), Group("4", "dp", (1, 3), 4)]
    done = {rank: (Call(rows[rank // 2]), Call(columns[rank % 2])) * 3 for rank in range(4)}
    ranks = [Rank(r, (*done[r], Call(rows[0]), Call(columns[r])), len(done[r]) + 1) for r in (0, 1)]
    ranks += [Rank(2, (*done[2], Call(rows[1])), len(done[2])), Rank(3, done[3], len(done[3]), frames=SLEEPS)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))
    assert "in another operation, and rank 0 waits behind these" in verdict.summary
