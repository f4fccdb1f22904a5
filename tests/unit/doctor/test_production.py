"""Environments of clean production nodes: what clouds' guides and schedulers set is no reason for a warning."""

from collections.abc import Mapping

import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.checks import CHECKS
from stallwatch.doctor.surroundings import Interface
from tests.unit.doctor.fakes import FakeResolver, FakeSockets, Node

AWS_EFA = {
    "FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1", "RDMAV_FORK_SAFE": "1",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS": "0", "OFI_NCCL_PROTOCOL": "RDMA", "OFI_NCCL_DISABLE_DMABUF": "1",
    "NCCL_PROTO": "simple", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "^lo,docker0,veth", "NCCL_BUFFSIZE": "8388608",
    "NCCL_P2P_NET_CHUNKSIZE": "524288", "NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so", "NCCL_NET_PLUGIN": "aws-ofi",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288", "NCCL_NET_FORCE_FLUSH": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}  # fmt: skip
AZURE = {
    "UCX_TLS": "rc", "UCX_NET_DEVICES": "mlx5_ib0:1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml", "NCCL_DEBUG": "WARN", "NCCL_NET_GDR_LEVEL": "5",
    "NCCL_MIN_NCHANNELS": "32", "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IGNORE_CPU_AFFINITY": "1",
    "SHARP_SMX_UCX_INTERFACE": "mlx5_ib0:1", "NCCL_COLLNET_ENABLE": "1", "NCCL_ALGO": "CollnetChain,NVLS",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_PXN_DISABLE": "1", "NCCL_IB_TIMEOUT": "22", "NCCL_SHARP_DISABLE": "0",
}  # fmt: skip
GCP_TCPX = {
    "NCCL_SOCKET_IFNAME": "eth0", "NCCL_CROSS_NIC": "0", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
    "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "1", "NCCL_MAX_NCHANNELS": "12", "NCCL_MIN_NCHANNELS": "12",
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288", "NCCL_P2P_PXN_LEVEL": "0", "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2", "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0", "NCCL_CHECK_POINTERS": "0",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV,TUNING,NET,VERSION", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}  # fmt: skip
GCP_FASTRAK = {
    "NCCL_FASTRAK_CTRL_DEV": "eth0", "NCCL_FASTRAK_IFNAME": "eth1,eth2", "NCCL_FASTRAK_USE_LLCM": "1",
    "NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple,LL128", "NCCL_TUNER_PLUGIN": "libnccl-tuner.so",
    "NCCL_TUNER_CONFIG_PATH": "/usr/local/nvidia/lib64/a3plus_tuner_config.textproto", "NCCL_NVLS_ENABLE": "0",
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/usr/local/nvidia/lib64/a3plus_guest_config.textproto",
}  # fmt: skip
GCP_GIB = {
    "NCCL_NET": "gIB", "NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_IB_ADAPTIVE_ROUTING": "1",
    "NCCL_IB_TC": "52", "NCCL_IB_FIFO_TC": "84", "NCCL_WORK_FIFO_BYTES": "4194304",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "16", "MASTER_ADDR": "node1",
    "MASTER_PORT": "29513", "WORLD_SIZE": "16", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1", "NCCL_IB_HCA": "mlx5",
    "NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_ASYNC_ERROR_HANDLING": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "NCCL_CUMEM_ENABLE": "0", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106", "NCCL_IB_SL": "1",
    "NCCL_NVLS_ENABLE": "0", "NCCL_NET_GDR_READ": "1", "NCCL_VERSION": "2.21.5", "CUDA_HOME": "/usr/local/cuda",
    "TORCH_CUDNN_V8_API_ENABLED": "1", "TORCH_CUDA_ARCH_LIST": "9.0",
}  # fmt: skip
KUBERNETES = {
    "MASTER_ADDR": "node1", "MASTER_PORT": "23456", "PET_MASTER_ADDR": "node1", "PET_NNODES": "2", "WORLD_SIZE": "2",
    "PET_NPROC_PER_NODE": "8", "RANK": "0", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "NCCL_SOCKET_IFNAME": "eth0",
    "NVIDIA_VISIBLE_DEVICES": "all", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p",
}  # fmt: skip
ACCELERATE = {
    "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_FSDP": "true", "ACCELERATE_DYNAMO_BACKEND": "no",
    "ACCELERATE_USE_XPU": "false", "ACCELERATE_USE_IPEX": "false", "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage",
    "ACCELERATE_CPU_AFFINITY": "1", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2", "FSDP_SHARDING_STRATEGY": "1",
    "ACCELERATE_FP8_MARGIN": "0",
}  # fmt: skip
NGC_IMAGE = {
    "CUDA_VERSION": "12.9.1.010", "CUDA_DRIVER_VERSION": "575.57.08", "NCCL_VERSION": "2.27.3",
    "CUDA_CACHE_DISABLE": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "PYTORCH_VERSION": "2.8.0a0",
    "PYTORCH_HOME": "/opt/pytorch/pytorch", "PYTORCH_TRITON_VERSION": "3.2", "CUDA_MODULE_LOADING": "LAZY",
}  # fmt: skip

INTERFACES = (
    Interface("lo", True, ("127.0.0.1", "::1")),
    Interface("docker0", False, ("172.17.0.1",)),
    *(Interface(f"eth{number}", True, (f"10.0.{number}.1",)) for number in range(3)),
)


def warnings(node: Node, environment: Mapping[str, str]) -> list[FindingRecord]:
    around = node.around(
        environment, sockets=FakeSockets(listed=INTERFACES), resolver=FakeResolver({"node1": ("10.0.0.1",)})
    )
    found: list[FindingRecord] = []
    for check in CHECKS:
        try:
            found += check.look(around)
        except (Inapplicable, Undetermined):
            continue
    return [one for one in found if one.severity != "info"]


@pytest.mark.parametrize(
    "environment",
    [AWS_EFA, AZURE, GCP_TCPX, GCP_FASTRAK, GCP_GIB, SLURM, KUBERNETES, ACCELERATE, NGC_IMAGE],
    ids=["aws", "azure", "gcp-tcpx", "gcp-fastrak", "gcp-gib", "slurm", "kubernetes", "accelerate", "ngc"],
)
def test_a_production_node_gets_no_warning(node: Node, environment: Mapping[str, str]) -> None:
    assert warnings(node, environment) == []


def test_the_same_choice_of_protocol_without_a_plugin_that_needs_it_is_told(node: Node) -> None:
    assert [one.check for one in warnings(node, {"NCCL_PROTO": "simple"})] == ["debug_left_on"]
