import pytest

from stallwatch.doctor.check_result import count
from stallwatch.doctor.environment.combinations import Contradictions
from stallwatch.doctor.environment.known_variables import catalogue
from stallwatch.doctor.environment.syntax import WrongSyntax
from stallwatch.doctor.environment.values import DebugLeftOn, OutOfRange
from tests.unit.doctor.fakes import Node, one


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_TIMEOUT", "0"),
        ("NCCL_IB_TIMEOUT", "32"),
        ("NCCL_IB_RETRY_CNT", "15"),
        ("NCCL_SOCKET_FAMILY", "IPv4"),
        ("NCCL_P2P_DISABLE", "true"),
        ("NCCL_DEBUG", "VERBOSE"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETWORK"),
        ("TORCH_NCCL_BLOCKING_WAIT", "always"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4"),
        ("TORCH_DISTRIBUTED_DEBUG", "ALL"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "64"),
        ("NCCL_SOCKET_NTHREADS", "many"),
        ("NCCL_BUFFSIZE", "4M"),
        ("NCCL_NTHREADS", "1000"),
        ("NCCL_IB_GID_INDEX", "auto"),
        ("NCCL_ALGO", "Rng"),
        ("NCCL_ALGO", "allreduce:tree,fast;broadcast:ring"),
        ("NCCL_PROTO", "LL64"),
        ("NCCL_P2P_LEVEL", "nvl"),  # by strcmp
        ("NCCL_NET_GDR_LEVEL", "phb"),
        ("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "on"),
    ],
)
def test_values_that_the_owner_does_not_accept_are_told(node: Node, name: str, value: str) -> None:
    assert f"{name}={value} " in one(OutOfRange().look(node.around({name: value}))).seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_IB_RETRY_CNT", "7"),
        ("NCCL_SOCKET_FAMILY", "AF_INET6"),
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^COLL,P2P"),
        ("NCCL_CUMEM_ENABLE", "0x1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "False"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "PXN"),
        ("NCCL_NET_GDR_LEVEL", "C2C"),
        ("NCCL_IB_TC", "-1"),
        ("NCCL_IB_SL", "-1"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_ALGO", "allreduce:tree,collnetchain;broadcast:ring"),
        ("NCCL_ALGO", "^NVLS,NVLSTree"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_PROTO", "simple"),
        ("NCCL_IB_TIMEOUT", ""),
        ("TORCH_FR_BUFFER_SIZE", "20000"),
    ],
)
def test_values_that_the_owner_accepts_are_silent(node: Node, name: str, value: str) -> None:
    assert OutOfRange().look(node.around({name: value})) == ()


def test_debugging_left_on_costs_a_warning(node: Node) -> None:
    found = one(DebugLeftOn().look(node.around({"NCCL_P2P_DISABLE": "1"})))
    assert found.severity == "warning"
    assert found.remedy.startswith("unset NCCL_P2P_DISABLE")
    assert one(DebugLeftOn().look(node.around({"CUDA_LAUNCH_BLOCKING": "1"}))).severity == "error"
    assert one(DebugLeftOn().look(node.around({"TORCH_DISTRIBUTED_DEBUG": "detail"}))).severity == "warning"
    assert one(DebugLeftOn().look(node.around({"NCCL_ALGO": "Tree"}))).severity == "warning"


def test_debugging_turned_off_is_silent(node: Node) -> None:
    off = {"NCCL_P2P_DISABLE": "0", "CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF", "NCCL_DEBUG": "WARN"}
    assert DebugLeftOn().look(node.around(off)) == ()


def test_infiniband_switched_off_counts_where_there_is_infiniband(node: Node) -> None:
    assert DebugLeftOn().look(node.around({"NCCL_IB_DISABLE": "1"})) == ()
    node.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    assert one(DebugLeftOn().look(node.around({"NCCL_IB_DISABLE": "1"}))).severity == "warning"


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("GLOO_SOCKET_IFNAME", "^lo", "error"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "error"),
        ("NCCL_IB_HCA", "mlx5_1,mlx5_2", "info"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.log", "warning"),
        ("NCCL_DEBUG_FILE", "~/nccl.%p", "warning"),
        ("CUDA_VISIBLE_DEVICES", "0, 1", "error"),
        ("MASTER_PORT", "29500/tcp", "error"),
        ("MASTER_PORT", "70000", "error"),
        ("MASTER_ADDR", "node1:29500", "error"),
        ("MASTER_ADDR", "tcp://node1", "error"),
        ("NCCL_DEBUG", '"INFO"', "error"),
        ("NCCL_SOCKET_IFNAME", "'eth0'", "error"),
        ("NCCL_SOCKET_IFNAME", "eth0\r", "error"),
        ("WORLD_SIZE", "eight", "error"),
        ("LOCAL_RANK", "0,1", "error"),
    ],
)
def test_wrong_syntax_is_told(node: Node, name: str, value: str, severity: str) -> None:
    found = one(WrongSyntax().look(node.around({name: value})))
    assert (found.severity, found.check) == (severity, "wrong_syntax")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("NCCL_IB_HCA", "=mlx5_1,mlx5_2"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("MASTER_PORT", "29500"),
        ("MASTER_ADDR", "fd00::1"),
        ("MASTER_ADDR", "node-1.cluster"),
    ],
)
def test_right_syntax_is_silent(node: Node, name: str, value: str) -> None:
    assert WrongSyntax().look(node.around({name: value})) == ()


def test_a_value_in_quotes_is_told_once_and_with_the_bare_value(node: Node) -> None:
    around = node.around({"NCCL_DEBUG": '"INFO"'})
    assert OutOfRange().look(around) == ()
    assert "NCCL_DEBUG=INFO " in one(WrongSyntax().look(around)).remedy


def test_a_number_with_a_unit_says_what_nccl_reads(node: Node) -> None:
    assert "NCCL reads 4" in one(OutOfRange().look(node.around({"NCCL_BUFFSIZE": "4M"}))).seen


def test_quotes_in_values_that_may_hold_them_are_silent(node: Node) -> None:
    assert WrongSyntax().look(node.around({"PROMPT": '"x"', "JSON": '"a"'})) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_LAUNCH_MODE", "GROUP"), ("NCCL_P2P_LEVEL", "3"), ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1")],
)
def test_what_is_merely_outdated_is_only_mentioned(node: Node, name: str, value: str) -> None:
    assert one(DebugLeftOn().look(node.around({name: value}))).severity == "info"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size:128", "max_split_size_mb"),
        ("PYTORCH_ALLOC_CONF", "backend:native,expandable_segment:True", "backend:native,expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments=True", "write PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("NCCL_RAS_ADDR", "28029", "localhost:28029"),
        ("CUDA_VISIBLE_DEVICES", "cuda:0,cuda:1", "nvidia-smi -L"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", "--gpus-per-node"),
        ("OMP_NUM_THREADS", "auto", "OMP_NUM_THREADS=1"),
    ],
)
def test_values_that_their_reader_cannot_take_apart_are_told(node: Node, name: str, value: str, remedy: str) -> None:
    assert remedy in one(WrongSyntax().look(node.around({name: value}))).remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:128"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("NCCL_RAS_ADDR", "localhost:28029"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8f6d1b2c-1,MIG-GPU-8f6d/3/0"),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("OMP_NUM_THREADS", "4,2"),
    ],
)
def test_values_that_their_reader_takes_apart_are_not(node: Node, name: str, value: str) -> None:
    assert WrongSyntax().look(node.around({name: value})) == ()


@pytest.mark.parametrize("name", ["export NCCL_DEBUG", "NCCL_DEBUG ", " NCCL_DEBUG"])
def test_a_line_of_nccl_conf_that_only_a_shell_would_understand_is_told(node: Node, name: str) -> None:
    found = one(WrongSyntax().look(node.around(files={"/etc/nccl.conf": {name: "WARN"}})))
    assert found.remedy == "write NCCL_DEBUG=WARN"
    assert WrongSyntax().look(node.around(files={"/etc/nccl.conf": {"NCCL_DEBUG": "WARN"}})) == ()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"DS_ACCELERATOR": "cdua"}, "(cuda?)"),
        ({"DS_ACCELERATOR": "gpu"}, "(cuda?)"),
        ({"DS_ACCELERATOR": "CUDA"}, "(cuda?)"),
        ({"DS_ACCELERATOR": "Nvidia"}, "(cuda?)"),
        ({"DS_ACCELERATOR": "abacus"}, "a value that DeepSpeed accepts"),
        ({"NCCL_DEBUG": "INF0"}, "(INFO?)"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETIAL"}, "(DETAIL?)"),
    ],
)
def test_a_misspelt_choice_is_told_with_the_nearest(node: Node, values: dict[str, str], words: str) -> None:
    assert words in one(OutOfRange().look(node.around(values))).remedy
    for right in ({"DS_ACCELERATOR": "cuda"}, {"DS_ACCELERATOR": "cpu"}, {"NCCL_DEBUG": "info"}):
        assert OutOfRange().look(node.around(right)) == ()


@pytest.mark.parametrize("name", ["TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", "TORCH_NCCL_BLOCKING_WAIT"])
@pytest.mark.parametrize("value", ["banana", "on", "2"])
def test_a_switch_of_torch_that_is_none_is_an_error(node: Node, name: str, value: str) -> None:
    assert "is neither 0 nor 1" in one(OutOfRange().look(node.around({name: value}))).seen
    assert OutOfRange().look(node.around({name: "true"})) == ()


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG"])
def test_why_a_misspelt_word_matters_is_not_why_a_right_one_should_not_be_left_on(node: Node, name: str) -> None:
    assert one(OutOfRange().look(node.around({name: "ABC"}))).why != catalogue().variables[name].why


def test_a_number_without_an_upper_bound_is_below_its_least(node: Node) -> None:
    assert "NCCL_MAX_NRINGS=0 is below 1" in one(OutOfRange().look(node.around({"NCCL_MAX_NRINGS": "0"}))).seen


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("expandable_segments:Ture", "takes True or False"),
        ("expandable_segments=True", "has no colon"),
        ("backend:cudaMallocAsnyc", "takes native or cudaMallocAsync"),
        ("max_split_size_mb:128MB", "whole number above 20"),
        ("garbage_collection_threshold:80", "between 0 and 1"),
        ("expandable_segment:True", "the nearest is expandable_segments"),
    ],
)
def test_settings_of_the_allocator_that_it_refuses_are_told(node: Node, value: str, words: str) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert words in one(WrongSyntax().look(node.around({name: value}))).seen


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True", "max_split_size_mb:128,garbage_collection_threshold:0.8",
        "backend:cudaMallocAsync", "roundup_power2_divisions:[256:1,512:2,>:8]", "expandable_segments: True",
        "pinned_max_cached_size_mb:64", "",
    ],
)  # fmt: skip
def test_settings_of_the_allocator_that_are_right_are_silent(node: Node, value: str) -> None:
    assert WrongSyntax().look(node.around({"PYTORCH_ALLOC_CONF": value})) == ()


def test_subsystems_of_a_log_that_is_off_are_mentioned(node: Node) -> None:
    for level in ({}, {"NCCL_DEBUG": "WARN"}):
        found = one(Contradictions().look(node.around({"NCCL_DEBUG_SUBSYS": "INIT,NET"} | level)))
        assert found.severity == "info"
    assert Contradictions().look(node.around({"NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG": "INFO"})) == ()


@pytest.mark.parametrize(
    ("number", "noun", "words"), [(1, "rank", "1 rank"), (2, "GPU", "2 GPUs"), (0.5, "CPU", "0.5 CPUs"),
     (3, "process", "3 processes")]
)  # fmt: skip
def test_numbers_go_with_their_nouns(number: float, noun: str, words: str) -> None:
    assert count(number, noun) == words
