import pytest

from stallwatch.hook import identity
from stallwatch.sensors.environ import parse_environment, rank_names

TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "llama", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN,
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "run7"},
        TORCHRUN | {"STALLWATCH_JOB": "mine"},
        SLURM,
        SLURM | TORCHRUN,
        SLURM | {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4", "SLURM_STEP_NUM_TASKS": "6"},
        TORCHRUN | {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-worker-3"},
        TORCHRUN | {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "x-0", "PET_RDZV_ID": "kubeflow"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        | {"MASTER_ADDR": "a", "MASTER_PORT": "2"},
    ],
)
def test_rank_without_a_hook_has_the_names_that_its_hook_would_give(environment: dict[str, str]) -> None:
    names = rank_names(environment)
    world = identity.world_of(environment, identity.this_process())
    assert names is not None
    assert names.epoch == world.epoch
    assert names == (world.rank, world.local_rank, world.world_size, world.training_job, world.epoch)


@pytest.mark.parametrize(
    "environment",
    [{}, {"RANK": "0"}, TORCHRUN | {"RANK": "x"}, TORCHRUN | {"RANK": "4"}, {"RANK": "0", "WORLD_SIZE": "2"}],
)
def test_environment_that_names_no_rank(environment: dict[str, str]) -> None:
    assert rank_names(environment) is None


def test_batch_script_of_slurm_is_no_rank() -> None:
    script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert rank_names(script) is None


def test_only_names_that_tell_a_rank_are_kept() -> None:
    assert parse_environment(b"RANK=1\0AWS_SECRET=x\0broken\0MASTER_ADDR=a=b\0") == {"RANK": "1", "MASTER_ADDR": "a=b"}
