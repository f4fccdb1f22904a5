"""torch's RPC among the ranks of a control."""

import os

import torch.distributed.rpc as rpc  # noqa: TID251

from tests.controls.common import RANK, WORLD

__all__ = ["joined", "rpc"]


def joined(threads: int = 16) -> None:
    """Every rank becomes worker<rank>, with so many threads to answer with; calls end after an hour."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}",
        num_worker_threads=threads,
        rpc_timeout=3600,
    )
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
