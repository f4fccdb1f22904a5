import pytest

from stallwatch.hook import identity
from stallwatch.hook.attachment import attach
from stallwatch.hook.auto import PTH_LINE
from stallwatch.sensors.environ import is_disabled, parse_environment, rank_names

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
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "a", "MASTER_PORT": "2"},
        {"PMIX_RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "2"},
    ],
)
def test_rank_without_a_hook_has_the_names_that_its_hook_would_give(environment: dict[str, str]) -> None:
    names = rank_names(parse_environment("\0".join(map("=".join, environment.items())).encode()))
    world = identity.world_of(environment, identity.this_process())
    assert names is not None
    assert names.epoch == world.epoch
    assert names == (world.rank, world.local_rank, world.world_size, world.training_job, world.epoch)


RANDOM = TORCHRUN | {"TORCHELASTIC_RUN_ID": "0f8e3c1a-5b1d-4c0e-9a57-1f2e3d4c5b6a"}


@pytest.mark.parametrize(
    ("arguments", "job"),
    [
        (("python", "-u", "-m", "stallwatch.run", "/srv/pretrain.py", "--lr", "1"), "pretrain"),
        (("python", "-u", "train.py", "x.py"), "train"),
        (("python", "-X", "dev", "-W", "ignore", "train.py"), "train"),
        (("python", "-m", "llm.train", "--x"), "train"),
        (("python", "-m", "llm.pretrain.__main__"), "pretrain"),
        (("python", "-m", "stallwatch.run", "-m", "llm.sft"), "sft"),
        (("/srv/bin/trainer",), RANDOM["TORCHELASTIC_RUN_ID"]),
        (("python", "-c", "import x"), RANDOM["TORCHELASTIC_RUN_ID"]),
        ((), RANDOM["TORCHELASTIC_RUN_ID"]),
    ],
)
def test_a_job_whose_run_id_is_random_has_its_script_s_name(
    arguments: tuple[str, ...], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_own_arguments", lambda: list(arguments))
    names = rank_names(RANDOM, lambda: arguments)
    world = identity.world_of(RANDOM, identity.this_process())
    assert names is not None
    assert names.training_job == world.training_job == job
    assert names.epoch == world.epoch  # two runs of one script are two all the same
    assert RANDOM["TORCHELASTIC_RUN_ID"] in names.epoch


@pytest.mark.parametrize("value", ["1", "true", " Yes ", "on", "anything"])
def test_the_switch_is_read_as_the_hook_reads_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLWATCH_DISABLE", value)
    assert is_disabled({"STALLWATCH_DISABLE": value})
    assert not attach()


@pytest.mark.parametrize("value", ["", "0", "no", "False", " off "])
def test_a_switch_that_says_no_turns_nothing_off(value: str) -> None:
    assert not is_disabled({"STALLWATCH_DISABLE": value})
    assert not is_disabled({})
    line = PTH_LINE.replace("exec(", "said.append(").replace("import os; ", "")
    said: list[str] = []
    exec(line, {"os": type("os", (), {"environ": {"STALLWATCH_DISABLE": value}}), "said": said})
    assert said


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
