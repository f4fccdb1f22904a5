"""What does not change while a process runs: versions, the part of the environment that shapes communication, command
line. Everything is scrubbed here, before it leaves the process."""

import os
import sys
from collections.abc import Mapping, Sequence

from stallwatch.hook.secrets import HIDDEN, is_secret, scrubbed_argv, scrubbed_value

# Prefixes of variables that configure communication, launchers and the recorder; nothing else of the environment is
# written.
_PREFIXES = (
    *("NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "TP_SOCKET_", "UCX_", "UCC_", "FI_", "CUDA_"),
    *("MASTER_", "LOCAL_", "GROUP_", "ROLE_", "PET_", "OMP_", "OMPI_COMM_WORLD_", "PMI_", "PYTORCH_"),
    *("SLURM_JOB_", "SLURM_STEP_", "SLURM_ARRAY_"),
)
_NAMES = (
    *("STALLWATCH_JOB", "STALLWATCH_DIR", "STALLWATCH_NOTIFY"),
    *("RANK", "WORLD_SIZE", "NODE_RANK", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "LD_PRELOAD"),
    *("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_RESTART_COUNT", "SLURMD_NODENAME", "JOB_COMPLETION_INDEX", "POD_NAME", "NODE_NAME"),
)
# Libraries that change how a job communicates; only those already loaded are named.
_LIBRARIES = (
    *("torch", "accelerate", "apex", "datasets", "deepspeed", "flash_attn", "lightning", "megatron", "numpy"),
    *("pytorch_lightning", "ray", "torchdata", "transformer_engine", "transformers", "triton", "trl", "vllm"),
)


def collect(environment: "Mapping[str, str]", argv: "Sequence[str]", recorder_set_by_us: bool) -> "dict[str, object]":
    """Facts of this process as JSON values."""
    return {
        "schema_version": 1,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "working_directory": _working_directory(),
        "argv": scrubbed_argv(argv),
        "environment": chosen_environment(environment),
        "versions": _versions(),
        "recorder_set_by_stallwatch": recorder_set_by_us,
    }


def chosen_environment(environment: "Mapping[str, str]") -> "dict[str, str]":
    """The variables worth comparing between ranks, scrubbed."""
    return {
        name: HIDDEN if is_secret(name) else scrubbed_value(value)
        for name, value in sorted(environment.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    }


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _versions() -> "dict[str, str]":
    versions = {"stallwatch": _version_of("stallwatch")}
    versions.update((name, _version_of(name)) for name in _LIBRARIES if name in sys.modules)
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    for name in ("cuda", "hip", "git_version"):
        value = getattr(version, name, None)
        if isinstance(value, str):
            versions[name] = value
    versions["nccl"] = _nccl_version(torch)
    return {name: value for name, value in versions.items() if value}


def _version_of(name: str) -> str:
    version = getattr(sys.modules.get(name), "__version__", "")
    return str(version) if version else ""


def _nccl_version(torch: object) -> str:
    """As torch was linked with it; asking starts no CUDA."""
    try:
        number = torch._C._nccl_version()  # type: ignore[attr-defined]
        return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}"
    except Exception:  # a private function, absent in builds without NCCL
        return ""
