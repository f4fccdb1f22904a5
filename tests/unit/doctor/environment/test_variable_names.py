import pytest

from stallwatch.doctor.environment.by_version import NotReadByThisVersion
from stallwatch.doctor.environment.known_variables import catalogue
from stallwatch.doctor.environment.variable_names import (
    InventedVariables,
    RemovedVariables,
    RenamedVariables,
    UnknownVariables,
)
from tests.unit.doctor.fakes import SHELL, FakeTraining, Node, one, training


def test_a_renamed_variable_gets_its_new_name_and_keeps_its_value(node: Node) -> None:
    found = one(RenamedVariables().look(node.around({"NCCL_DESYNC_DEBUG": "0"})))
    assert (found.severity, found.subject) == ("info", SHELL)
    assert found.remedy == "unset NCCL_DESYNC_DEBUG; export TORCH_NCCL_DESYNC_DEBUG=0"


def test_an_old_name_whose_new_one_would_be_refused_is_only_taken_away(node: Node) -> None:
    found = one(RenamedVariables().look(node.around({"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_CTAS": "8"})))
    assert found.remedy == "unset NCCL_MIN_NCHANNELS"


def test_an_old_name_whose_new_one_takes_other_values_gets_those(node: Node) -> None:
    found = RenamedVariables().look(node.around({"NCCL_CHECK_POINTERS": "0"}))
    assert one(found).remedy == "unset NCCL_CHECK_POINTERS"


def test_a_name_that_the_installed_version_does_not_know_yet_is_not_asked_for(node: Node) -> None:
    old = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert RenamedVariables().look(node.around(old, training=FakeTraining(training("2.6.0")))) == ()
    assert one(RenamedVariables().look(node.around(old, training=FakeTraining(training("2.8.0"))))).severity == "info"


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_MIN_NRINGS", "4"), ("NCCL_DESYNC_DEBUG", "0"), ("NCCL_ENABLE_TIMING", "1")]
)
def test_an_old_name_that_is_still_read_is_no_warning(node: Node, name: str, value: str) -> None:
    """PyTorch's: the second name in the lists of ProcessGroupNCCL.hpp, up to 2.14.1."""
    assert one(RenamedVariables().look(node.around({name: value}))).severity == "info"


def test_an_old_name_that_is_read_no_more_is_a_warning(node: Node) -> None:
    assert one(RenamedVariables().look(node.around({"NCCL_USE_COMM_NONBLOCKING": "0"}))).severity == "warning"


@pytest.mark.parametrize("name", ["TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_FR_DUMP_ON_TIMEOUT"])
def test_names_of_the_release_after_are_said_to_be_too_new_for_the_one_before(node: Node, name: str) -> None:
    told = NotReadByThisVersion().look(node.around({name: "1"}, training=FakeTraining(training("2.14.1"))))
    assert "read since PyTorch 2.15" in one(told).seen
    assert NotReadByThisVersion().look(node.around({name: "1"}, training=FakeTraining(training("2.15.0")))) == ()


def test_names_that_came_with_torch_2_14_and_nccl_2_30_are_known(node: Node) -> None:
    values = {
        "TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P": "1",
        "NCCL_PARAM_DUMP_ALL": "1",
        "NCCL_EP_HOME": "/opt/ep",
    }
    assert UnknownVariables().look(node.around(values)) == ()


def test_both_names_with_one_value_are_silent_as_our_hook_sets_them(node: Node) -> None:
    both = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert RenamedVariables().look(node.around(both)) == ()


def test_a_removed_variable_is_told(node: Node) -> None:
    assert "2.5" in one(RemovedVariables().look(node.around({"NCCL_TREE_THRESHOLD": "0"}))).seen
    assert RemovedVariables().look(node.around({"NCCL_ALGO": "Ring"})) == ()


def test_an_invented_variable_is_told_with_what_works(node: Node) -> None:
    found = one(InventedVariables().look(node.around({"NCCL_TIMEOUT": "3600"})))
    assert found.severity == "warning"
    assert "init_process_group(timeout=" in found.remedy
    assert InventedVariables().look(node.around({"NCCL_DEBUG": "INFO"})) == ()


def test_a_misspelt_variable_in_a_file_is_told_with_the_file(node: Node) -> None:
    found = one(UnknownVariables().look(node.around(files={"/etc/nccl.conf": {"NCCL_IB_HCAS": "mlx5"}})))
    assert (found.severity, found.subject) == ("warning", "/etc/nccl.conf")
    assert found.remedy == "unset NCCL_IB_HCAS; export NCCL_IB_HCA=mlx5"


def test_a_name_like_no_other_is_only_mentioned(node: Node) -> None:
    assert one(UnknownVariables().look(node.around({"NCCL_QUANTUM_LINK": "1"}))).severity == "info"


def test_real_names_of_builds_plugins_and_programs_are_silent(node: Node) -> None:
    fine = {
        "NCCL_VERSION": "2.21.5-1", "NCCL_DEBUG": "WARN", "NCCL_FASTRAK_CTRL_DEV": "eth0",
        "TORCH_NCCL_ENABLE_TIMING": "1", "NCCL_PROFILE_EVENT_MASK": "8", "NCCL_INSPECTOR_ENABLE": "1",
        "CUDA_HOME": "/usr/local/cuda", "CUDA_MY_OWN_THING": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "ACCELERATE_USE_FSDP": "true", "DS_ACCELERATOR": "cuda", "PATH": "/bin",
    }  # fmt: skip
    assert UnknownVariables().look(node.around(fine)) == ()


@pytest.mark.parametrize(
    ("misspelt", "real"),
    [
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCC_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("DEEPSPEED_TIMEOUTS", "DEEPSPEED_TIMEOUT"),
        ("MASTER_ADR", "MASTER_ADDR"),
        ("WORLDSIZE", "WORLD_SIZE"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_well_known_names_are_recognised_when_misspelt(node: Node, misspelt: str, real: str) -> None:
    assert f"the nearest real name is {real}." in one(UnknownVariables().look(node.around({misspelt: "1"}))).seen


@pytest.mark.parametrize(
    "name",
    [
        "RCCL_DEBUG", "HCCL_DEBUG", "MCCL_DEBUG", "CUDA_DEVICES", "MY_CUDA_VISIBLE_DEVICES", "NODE_RANK",
        "LOCAL_RANKS_PER_NODE",
        "WORLD_SIZES_TO_TEST", "MASTER_HOST", "OMP_NUM_TEAMS", "http_proxy", "CUDA_ARCH_LIST",
        "ACCELERATE_USE_XPU",
    ],
)  # fmt: skip
def test_names_of_other_programs_are_not_taken_for_misspelt_ones(node: Node, name: str) -> None:
    assert UnknownVariables().look(node.around({name: "1"})) == ()


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("TORCH_NCCL_TRACE_BUFFER", "TORCH_NCCL_TRACE_BUFFER_SIZE"), ("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLE"),
        ("TORCH_NCCL_IB_DISABLE", "NCCL_IB_DISABLE"), ("NCCL_IB_GID", "NCCL_IB_GID_INDEX"),
        ("TORCH_DISTRIBUTED_DEBUG_LEVEL", "TORCH_DISTRIBUTED_DEBUG"), ("TORCH_FR_BUFFER", "TORCH_FR_BUFFER_SIZE"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"), ("NCCL_MYPLUGIN_OPTION", ""),
        ("NCCL_SOCKET", ""), ("TORCH_NCCL_TRACE_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ],
)  # fmt: skip
def test_a_name_with_a_word_too_few_or_too_many_or_in_another_place_is_the_real_one_misspelt(
    name: str, real: str
) -> None:
    assert catalogue().nearest(name) == real
