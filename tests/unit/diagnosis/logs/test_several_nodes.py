"""Launchers tell local ranks: in the logs of several nodes these are no ranks, and which they are is said or not."""

from pathlib import Path

import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.builders.texts import AGENT, RAISED, SUMMARY, marked, timed_out, told, verdict

_DEEPSPEED = "[2026-11-03 04:10:00,120] [INFO] [launch.py:152:main] nnodes=2, num_local_procs=1, node_rank={0}\n"
_FAILED = (
    "[2026-11-03 04:18:31,500] [ERROR] [launch.py:325:sigkill_handler] ['/env/bin/python', '-u', 'train.py', "
    "'--local_rank=0'] exits with return code = 1\n"
)
_TORCHRUN = (
    "  restart_count=0\n  group_rank=1\n  group_world_size=2\n  local_ranks=[0, 1, 2, 3]\n  global_ranks=[4, 5, 6, 7]\n"
)


def _of_files(folder: Path, **files: str) -> Verdict:
    paths = []
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_log", ".log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    first, backwards = (judge(load(given)).verdicts[0] for given in (paths, paths[::-1]))
    assert first == backwards
    return first


def test_a_local_rank_of_one_of_several_nodes_is_told_as_that_and_as_no_rank(tmp_path: Path) -> None:
    found = _of_files(tmp_path, n0_log=marked("step 1", "[default0]:"), n1_log=marked(RAISED, "[default3]:"))
    assert (found.cause, found.culprits) == ("rank_raised", ())
    assert "a rank known only as local rank 3 of its node (n1.log)" in f"a{found.summary[1:]}"
    assert any("global" in text or "[rankN]" in text for text in found.missing)


def test_of_one_node_the_local_rank_is_the_rank(tmp_path: Path) -> None:
    assert _of_files(tmp_path, train_log=marked(RAISED, "[default3]:")).culprits == (3,)
    assert _of_files(tmp_path, **{"job.out": marked("step 1", "[default0]:"), "job.err": marked(RAISED, "[default3]:")}
                     ).culprits == (3,)  # fmt: skip


def test_torchruns_folders_of_several_nodes_hold_local_ranks(tmp_path: Path) -> None:
    folders = {f"n{node}__run{node}__attempt_0__{rank}__stderr_log": "step 1\n" for node in (0, 1) for rank in (0, 1)}
    assert _of_files(tmp_path, **{**folders, "n1__run1__attempt_0__1__stderr_log": RAISED}).culprits == ()


@pytest.mark.parametrize("said", [_TORCHRUN + marked(RAISED, "[default1]:"), _TORCHRUN + RAISED + AGENT["2.4"].format(
    code=1, rank=1, pid=9)], ids=["tee", "agent"])  # fmt: skip
def test_the_ranks_that_torchrun_told_at_the_start_are_those_of_the_node(said: str) -> None:
    assert verdict(said).culprits == (5,)


def test_deepspeeds_nodes_have_their_ranks_one_after_the_other() -> None:
    log = marked(_DEEPSPEED.format(0), "n0: ") + marked(_DEEPSPEED.format(1), "n1: ") + marked(_FAILED, "n1: ")
    assert verdict(log).culprits == (1,)
    assert verdict(_DEEPSPEED.format(1) + _FAILED).culprits == (1,)


def test_local_ranks_of_two_launchers_that_nothing_tells_apart_are_nobodys(tmp_path: Path) -> None:
    """Two DeepSpeed launchers wrote into one log, without a host before their lines."""
    starts = "".join(f"[INFO] [launch.py:164:main] nnodes=2, num_local_procs=8, node_rank={node}\n" for node in (0, 1))
    ended = "[ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=0'] exits with return "
    (tmp_path / "job.log").write_text(starts + ended + "code = -9\n")
    assert judge(load([tmp_path])).verdicts[0].culprits == ()


def _table(rank: int, local: int, host: str, code: int) -> str:
    table = SUMMARY.format(rank=rank, code=code, pid=5000 + rank, traceback="no more is known")
    return table.replace(f"(local_rank: {rank})", f"(local_rank: {local})").replace("node0", host)


@pytest.mark.parametrize("others", [1, 3])
def test_in_a_log_of_several_nodes_nobody_writes_below_the_table_that_tells_his_end(others: int) -> None:
    raised = marked(RAISED, "[default1]:") + _table(1, 1, "node0", 1)
    waited = marked(timed_out("2.0", 0, 5, place=2), "[default1]:")
    waited += marked(timed_out("2.0", 0, 7), f"[default{others}]:")
    cause, culprits = told(raised + waited + _table(8 + others, others, "node1", -6))
    assert (cause in ("rank_raised", "rank_exited"), culprits) == (True, (1,))
