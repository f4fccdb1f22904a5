import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.environment.by_version import NotReadByThisVersion, RecorderOff
from stallwatch.doctor.environment.combinations import Contradictions
from stallwatch.doctor.environment.rank_settings import _MUST_MATCH, RanksDiffer
from stallwatch.doctor.surroundings import Question
from stallwatch.model.rank_variables import is_alike_in_health
from tests.unit.doctor.fakes import FakeTraining, Node, one, rank, training


@pytest.mark.parametrize(
    "values",
    [
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "=mlx5_0"},
        {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        {"NCCL_IB_TIMEOUT": "25"},
        {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "node1"},
        {"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"},
        {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "4"},
        {"MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
        {"NCCL_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "0"},
        {"MASTER_ADDR": "0.0.0.0", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
        {"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "8"},
        {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_USE_FSDP": "true"},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_settings_that_defeat_each_other_are_told_once(node: Node, values: dict[str, str]) -> None:
    one(Contradictions().look(node.around(values)))


def test_settings_that_agree_are_silent(node: Node) -> None:
    values = {
        "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_TIMEOUT": "22",
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "localhost",
        "NCCL_SOCKET_IFNAME": "lo", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }  # fmt: skip
    assert Contradictions().look(node.around(values)) == ()


def test_a_running_rank_had_all_that_it_needed(node: Node) -> None:
    """Of ranks with the same settings only the first is said whole."""
    around = node.around(ranks=(rank(0), rank(1)))
    environments = tuple(replace(one, values={"RANK": str(one.rank)}) for one in around.environments)
    assert Contradictions().look(dataclasses.replace(around, environments=environments[:2])) == ()


def test_a_recorder_turned_off_is_a_warning(node: Node) -> None:
    found = one(RecorderOff().look(node.around({"TORCH_FR_BUFFER_SIZE": "0"})))
    assert found.severity == "warning"
    assert found.remedy.startswith("unset TORCH_FR_BUFFER_SIZE")


@pytest.mark.parametrize(
    ("torch", "is_told"), [("2.0.1", False), ("2.6.0+cu124", True), ("2.10.0", True), ("2.11.0", False)]
)
def test_a_recorder_off_by_default_is_mentioned_for_the_versions_that_do_so(
    node: Node, torch: str, is_told: bool
) -> None:
    around = node.around(training=FakeTraining(training(torch)))
    assert [record.severity for record in RecorderOff().look(around)] == (["info"] if is_told else [])


def test_a_recorder_that_the_user_turned_on_is_silent(node: Node) -> None:
    around = node.around({"TORCH_FR_BUFFER_SIZE": "2000"}, training=FakeTraining(training("2.9.1")))
    assert RecorderOff().look(around) == ()


def test_a_variable_newer_than_the_library_is_told(node: Node) -> None:
    old = node.around({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, training=FakeTraining(training(nccl="2.21.5")))
    assert "since NCCL 2.26; here is 2.21.5" in one(NotReadByThisVersion().look(old)).seen
    new = node.around({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, training=FakeTraining(training(nccl="2.26.2")))
    assert NotReadByThisVersion().look(new) == ()
    unknown = node.around({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, training=FakeTraining(training(nccl="")))
    with pytest.raises(Undetermined, match="NCCL's version"):
        NotReadByThisVersion().look(unknown)


def test_ranks_that_must_agree_and_do_not_are_an_error(node: Node) -> None:
    ranks = (rank(0, environment={"NCCL_ALGO": "Ring"}), rank(1))
    found = one(RanksDiffer().look(node.around(ranks=ranks)))
    assert found.severity == "error"
    assert found.seen == "NCCL_ALGO differs: Ring on rank 0; not set on rank 1."


def test_different_libraries_on_ranks_are_an_error(node: Node) -> None:
    ranks = (rank(0, versions={"nccl": "2.27.3"}), rank(1, versions={"nccl": "2.28.9"}))
    assert "Versions of nccl differ" in one(RanksDiffer().look(node.around(ranks=ranks))).seen


def test_ranks_may_differ_in_what_is_theirs(node: Node) -> None:
    ranks = tuple(
        rank(number, environment={"CUDA_VISIBLE_DEVICES": str(number), "NCCL_DEBUG_FILE": f"/tmp/{number}"})
        for number in range(2)
    )
    assert RanksDiffer().look(node.around(ranks=ranks)) == ()


def test_ranks_that_cannot_be_counted_are_unknown(node: Node) -> None:
    with pytest.raises(Undetermined):
        RanksDiffer().look(node.around(ranks_unknown="/proc has not answered for 1.5 s"))


def test_ranks_of_different_jobs_are_not_compared(node: Node) -> None:
    ranks = (rank(0, environment={"NCCL_ALGO": "Ring"}), rank(0, pid=7, environment={"MASTER_PORT": "1"}))
    with pytest.raises(Inapplicable):
        RanksDiffer().look(node.around(ranks=ranks))


def test_a_world_size_that_differs_between_ranks_is_an_error(node: Node) -> None:
    ranks = (rank(0, environment={"WORLD_SIZE": "2"}), rank(1, environment={"WORLD_SIZE": "4"}))
    found = one(RanksDiffer().look(node.around(ranks=ranks)))
    assert (found.severity, "WORLD_SIZE differs" in found.seen) == ("error", True)


def test_two_processes_that_are_one_rank_are_told_with_their_pids(node: Node) -> None:
    found = one(RanksDiffer().look(node.around(ranks=(rank(0, 100), rank(0, 900)))))
    assert "Processes 100, 900 both are rank 0" in found.seen


@pytest.mark.parametrize(
    "other",
    [
        {"network": "net:[2]"},
        {"uid": 1001},
        {"environment": {"TORCHELASTIC_RUN_ID": "b"}},
        {"environment": {"SLURM_JOB_ID": "8"}},
        {"environment": {"MASTER_PORT": "29501"}},
    ],
)
def test_ranks_of_two_jobs_are_not_compared(node: Node, other: dict[str, Any]) -> None:
    ranks = [rank(number, environment={"NCCL_ALGO": "Ring"}) for number in range(2)]
    changes = {name: value for name, value in other.items() if name != "environment"}
    environment = {"NCCL_ALGO": "Tree"} | other.get("environment", {})
    ranks += [rank(number, 500 + number, environment=environment, **changes) for number in range(2)]
    assert RanksDiffer().look(node.around(ranks=tuple(ranks))) == ()


@pytest.mark.parametrize(
    ("values", "several"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, True),
        ({"PMI_SIZE": "16", "MPI_LOCALNRANKS": "8"}, True),
        ({"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"}, True),
        ({"SLURM_STEP_NUM_NODES": "2"}, True),
        ({"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "8"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, False),
        ({"PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"PMI_SIZE": "16"}, False),
    ],
)
def test_every_launchers_own_names_tell_of_several_nodes(node: Node, values: dict[str, str], several: bool) -> None:
    found = Contradictions().look(node.around({"NCCL_SOCKET_IFNAME": "lo", **values}))
    assert [record.severity for record in found] == ["error"] * several


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
def test_the_loopback_interface_is_wrong_for_several_nodes_however_they_are_told(node: Node, name: str) -> None:
    several = node.around({name: "lo"}, question=Question(nodes=2))
    assert one(Contradictions().look(several)).seen == f"{name}=lo and the job spans nodes."
    by_slurm = node.around({name: "lo", "SLURM_JOB_NUM_NODES": "2"})
    assert one(Contradictions().look(by_slurm)).severity == "error"
    assert Contradictions().look(node.around({name: "lo"}, question=Question(nodes=1))) == ()
    assert Contradictions().look(node.around({name: "lo"})) == ()


def test_what_must_match_is_compared() -> None:
    assert {name for name in _MUST_MATCH if not is_alike_in_health(name)} == {"WORLD_SIZE"}


def test_one_rank_that_prints_more_is_a_habit(node: Node) -> None:
    ranks = (rank(0, environment={"NCCL_DEBUG": "INFO"}), rank(1))
    assert RanksDiffer().look(node.around(ranks=ranks)) == ()
