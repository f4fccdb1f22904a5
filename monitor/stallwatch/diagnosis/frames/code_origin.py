"""Whose code a frame is, by kinds of paths: the job's own, a library's, Python's, generated, or a launcher's."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from stallwatch.model.evidence import CodeFrame


class Origin(Enum):
    JOB = "job"
    LIBRARY = "library"  # installed package that is not machinery: may hold the job's own code
    MACHINERY = "machinery"  # torch and packages that only carry out what others ask
    STDLIB = "stdlib"
    SYNTHETIC = "synthetic"  # <string>, <frozen …>: no file that a person could open
    GENERATED = "generated"  # written by a compiler at run time
    LAUNCHER = "launcher"  # console scripts, torchrun's agent, our own run.py


class Place(NamedTuple):
    origin: Origin
    module: str  # dotted: "torch.utils.data.dataloader"; the whole path for the job's own files


# sysconfig's layouts: /usr/lib/python3.11/, lib64, conda envs, pyenv, uv, nix, bazel; free-threaded builds end in "t".
_STDLIB = re.compile(
    r"(?:^|/)lib(?:64|32)?/(?:python|pypy)3?(?:\.\d+)?t?/(?!(?:site|dist)-packages/)|/python3\d+\.zip/"
)
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_GENERATED = re.compile(r"/torchinductor_[^/]*/|/\.triton/|/\.inductor/|/torch_compile_cache/")
# A console script has no suffix and lies in bin: /usr/local/bin/torchrun, .venv/bin/accelerate.
_SCRIPT = re.compile(r"(?:^|/)bin/[^/.]+$")
_OWN = re.compile(r"(?:^|/)stallwatch/(?:hook/[^/]+|run|__init__)\.py$")
# torch built or installed from a source tree lies outside site-packages.
_TORCH_TREE = re.compile(
    r"(?:^|/)(?=torch/(?:_\w+|serialization|functional|storage|random|hub|library)\.py$"
    r"|torch/(?:autograd|cuda|distributed|utils|optim|amp|accelerator|jit|fx|func|multiprocessing|backends"
    r"|nn/(?:modules|parallel|utils)|_\w+)/)"
)
# Packages that carry out what others ask: their lines say how, never where in the job.
_MACHINERY = frozenset({
    "torch", "torchvision", "torchaudio", "functorch", "triton", "numpy", "scipy", "pandas", "pyarrow",
    "typing_extensions", "decorator", "wrapt", "filelock", "fasteners", "portalocker", "fsspec", "s3fs", "gcsfs",
    "urllib3", "requests", "httpx", "httpcore", "aiohttp", "botocore", "boto3", "s3transfer", "google", "grpc",
    "zmq", "redis", "websockets", "anyio", "trio", "certifi", "h5py", "zarr", "PIL", "cv2", "lmdb", "safetensors",
    "tqdm", "rich", "loguru", "multiprocess", "dill", "cloudpickle", "joblib", "psutil", "pynvml", "wandb",
    "mlflow", "tensorboard", "tensorboardX", "sentry_sdk", "ddtrace", "opentelemetry", "debugpy", "pydevd",
    "IPython", "ipykernel", "pluggy", "einops", "jaxtyping", "beartype", "nvtx", "apex", "transformer_engine",
    "flash_attn", "xformers", "bitsandbytes", "huggingface_hub", "tokenizers", "sentencepiece",
})  # fmt: skip


@lru_cache(maxsize=65536)
def place(filename: str) -> Place:
    """Say whose file it is. A path that matches no layout is the job's own."""
    path = filename.replace("\\", "/")
    if not path or path.startswith("<"):
        return Place(Origin.SYNTHETIC, path)
    if _OWN.search(path):
        return Place(Origin.LAUNCHER, "stallwatch")
    if installed := list(_INSTALLED.finditer(path)):  # the last one counts: environments nest
        module = _dotted(path[installed[-1].end() :])
        return Place(_installed_origin(module), module)
    if found := _STDLIB.search(path):
        return Place(Origin.STDLIB, _dotted(path[found.end() :]))
    if found := _TORCH_TREE.search(path):
        module = _dotted(path[found.end() :])
        return Place(_installed_origin(module), module)
    if _GENERATED.search(path):
        return Place(Origin.GENERATED, _dotted(path))
    if _SCRIPT.search(path):
        return Place(Origin.LAUNCHER, _dotted(path))
    return Place(Origin.JOB, _dotted(path))


def _installed_origin(module: str) -> Origin:
    if module.startswith(("torch.distributed.run", "torch.distributed.elastic", "torch.distributed.launcher")):
        return Origin.LAUNCHER
    if module.startswith(("accelerate.commands", "deepspeed.launcher", "torchrun")):
        return Origin.LAUNCHER
    return Origin.MACHINERY if module.split(".", 1)[0] in _MACHINERY else Origin.LIBRARY


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix(".__init__").strip("/").replace("/", ".").removesuffix(".__init__")


def function(name: str) -> str:
    """The bare name: Python 3.11 prints "main.<locals>.train_step" where 3.10 prints "train_step"."""
    return name.rpartition(".")[2]


def job_frame_index(frames: tuple[CodeFrame, ...]) -> int | None:
    """Index of the innermost frame of the job's own code; of an installed framework where the job has no other."""
    for wanted in (
        {Origin.JOB},
        {Origin.LIBRARY},
        {Origin.GENERATED, Origin.MACHINERY},
        {Origin.STDLIB, Origin.LAUNCHER},
    ):
        for index, frame in enumerate(frames):
            if place(frame.filename).origin in wanted:
                return index
    return None
