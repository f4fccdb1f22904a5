"""Rank, world and job from what launchers set."""

import os
import subprocess
import sys

import pytest

from stallwatch.hook import identity
from stallwatch.hook.identity import ProcessIdentity, World, world_of

PROCESS = ProcessIdentity(pid=10, start_ticks=20, pid_namespace=30, node="n1")
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "llama",
}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "llama"}
SRUN = {**SLURM, "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_ID": "0"}


def world(environment: dict[str, str]) -> World:
    return world_of(environment, PROCESS)


def test_torchrun() -> None:
    assert world(TORCHRUN) == World(3, 1, 8, 2, "llama", "n0:29500/8/2/llama", True)


def test_srun_numbers_a_rank() -> None:
    found = world({**SRUN, "MASTER_ADDR": "n0", "MASTER_PORT": "1"})
    assert found == World(5, 1, 16, 0, "llama-77", "n0:1/16/0/77.0", True)


def test_a_batch_script_is_no_srun_rank() -> None:
    found = world({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "16"})
    assert (found.is_ranked, found.world_size) == (False, 1)


def test_torchrun_inside_slurm_numbers_ranks_and_slurm_names_the_job() -> None:
    found = world({**SRUN, **TORCHRUN})
    assert (found.rank, found.world_size, found.training_job) == (3, 8, "llama-77")


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
        {"PMI_RANK": "4", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2"},
        {"PMIX_RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "2"},
    ],
)
def test_mpi_launchers(variables: dict[str, str]) -> None:
    found = world(variables)
    assert (found.rank, found.world_size, found.local_rank) == (4, 8, 2)


def test_without_variables_it_is_rank_0_of_1_until_better_is_known() -> None:
    alone = world_of({}, PROCESS, arguments=lambda: ["python", "-c", "train()"])
    assert alone == World(0, 0, 1, 0, "local-10", ":/1/0/local-10", False)


def test_a_script_that_no_launcher_started_gives_its_job_the_name_and_its_process_tells_runs_apart() -> None:
    first, second = (
        world_of({}, ProcessIdentity(pid, 1, 1, "node"), arguments=lambda: ["python", "-u", "tune.py"])
        for pid in (10, 11)
    )
    assert (first.training_job, second.training_job) == ("tune", "tune")
    assert first.epoch != second.epoch


LIGHTNING = {
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "40000", "NODE_RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "4",
}  # fmt: skip


def test_whom_lightning_s_own_launcher_started_is_a_rank_from_its_first_moment() -> None:
    """Each was rank 0 of 1 in a job of its own until all had met, and a start that stood was nobody's."""
    assert world(LIGHTNING)[:3] == (2, 2, 4)
    assert world(LIGHTNING).epoch == world({**LIGHTNING, "LOCAL_RANK": "3"}).epoch
    assert world(LIGHTNING).epoch == world({**LIGHTNING, "RANK": "0"}).epoch, "as torch.distributed tells of rank 0"


@pytest.mark.parametrize(
    "change",
    [
        {"NODE_RANK": "1"},  # how many the first node has is not told
        {"NODE_RANK": ""},  # of another launcher's making
        {"LOCAL_RANK": "0"},  # the script itself, and what it starts besides
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "2"},  # of nodes
    ],
)
def test_where_the_place_on_its_node_is_no_rank_it_is_taken_for_none(change: dict[str, str]) -> None:
    assert not world({**LIGHTNING, **change}).is_ranked


def test_a_rank_without_a_size_has_an_unknown_size() -> None:
    assert world({"RANK": "2"})[:3] == (2, -1, -1)


@pytest.mark.parametrize("text", ["", "-1", "two", "3.0", "²"])
def test_a_rank_that_is_no_number_is_none(text: str) -> None:
    assert not world({"RANK": text}).is_ranked


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({**TORCHRUN, **SLURM, "STALLWATCH_JOB": " mine "}, "mine"),
        ({**TORCHRUN, **SLURM}, "llama-77"),
        ({"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "4"}, "77_4"),
        ({"KUBERNETES_SERVICE_HOST": "h", "PET_RDZV_ID": "trainjob-a", "HOSTNAME": "a-worker-1"}, "trainjob-a"),
        ({"KUBERNETES_SERVICE_HOST": "h", "HOSTNAME": "llama-worker-3", **TORCHRUN}, "llama"),
        ({"KUBERNETES_SERVICE_HOST": "h", "HOSTNAME": "llama-master-0"}, "llama"),
        ({"KUBERNETES_SERVICE_HOST": "h", "HOSTNAME": "llama-7b-12-x8k2p"}, "llama-7b"),
        ({"KUBERNETES_SERVICE_HOST": "h", "POD_NAME": "llama-2", "HOSTNAME": "other"}, "llama"),
        ({"KUBERNETES_SERVICE_HOST": "h", "HOSTNAME": "plain"}, "plain"),
        (TORCHRUN, "llama"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "n0:29500"),
        ({"MASTER_ADDR": "n0", "MASTER_PORT": "1"}, "n0:1"),
    ],
)
def test_the_job_is_named_by_the_first_that_knows(variables: dict[str, str], job: str) -> None:
    assert world(variables).training_job == job


def test_the_store_names_a_world_that_has_no_master_address() -> None:
    found = world_of({"RANK": "1", "WORLD_SIZE": "2"}, PROCESS, ("10.0.0.1", "4000"))
    assert (found.training_job, found.epoch) == ("10.0.0.1:4000", "10.0.0.1:4000/2/0/")


def test_a_restart_is_another_epoch_of_the_same_job() -> None:
    before, after = world(TORCHRUN), world({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert before.training_job == after.training_job
    assert before.epoch != after.epoch


def test_this_process_is_told_from_a_later_one_with_its_pid() -> None:
    me = identity.this_process()
    assert me.pid == os.getpid()
    assert me.start_ticks == identity.start_ticks(me.pid)
    assert me.pid_namespace > 0
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        pass
    assert identity.start_ticks(other.pid) is None


def mark_of_live_parent() -> str:
    return identity.parent_mark(identity.this_process(), world(TORCHRUN))


def child_of(mark: str, environment: dict[str, str]) -> bool:
    namespace = identity.this_process().pid_namespace
    child = ProcessIdentity(pid=1, start_ticks=2, pid_namespace=namespace, node="n1")
    return identity.is_child(mark, child, world_of(environment, child))


def test_a_process_that_a_live_rank_started_with_its_variables_is_its_child() -> None:
    assert child_of(mark_of_live_parent(), TORCHRUN)


@pytest.mark.parametrize("changes", [{"RANK": "4"}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RESTART_COUNT": "3"}])
def test_another_place_in_a_world_is_no_child(changes: dict[str, str]) -> None:
    assert not child_of(mark_of_live_parent(), {**TORCHRUN, **changes})


def test_a_dead_parent_has_no_children() -> None:
    parent = identity.this_process()
    gone = parent._replace(start_ticks=parent.start_ticks + 1)  # the same pid, another process
    assert not child_of(identity.parent_mark(gone, world(TORCHRUN)), TORCHRUN)


def test_nobody_is_its_own_child() -> None:
    me = identity.this_process()
    assert not identity.is_child(mark_of_live_parent(), me, world_of(TORCHRUN, me))


@pytest.mark.parametrize("mark", ["", "1", "a:b:c:d:e", "1:2:3", "-1:2:3:4:x"])
def test_a_mark_that_is_none_is_ignored(mark: str) -> None:
    assert not child_of(mark, TORCHRUN)
