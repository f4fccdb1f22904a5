import pytest

from stallwatch.model.rank_variables import is_alike_in_health


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA",
     "NCCL_HOSTID", "TORCHELASTIC_ERROR_FILE", "TORCH_LOGS", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "POD_NAME",
     "CUDA_MPS_PIPE_DIRECTORY"],
)  # fmt: skip
def test_what_is_each_rank_s_own_is_not_compared(name: str) -> None:
    assert not is_alike_in_health(name)


@pytest.mark.parametrize(
    "name",
    ["NCCL_ALGO", "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "FI_PROVIDER", "CUDA_DEVICE_MAX_CONNECTIONS"],
)
def test_what_shapes_communication_is_alike_in_health(name: str) -> None:
    assert is_alike_in_health(name)
