"""Whose code a frame is, by kinds of paths: the job's own, a library's, Python's, generated, or a launcher's; and what
the text of its line says."""

import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import Literal, NamedTuple

from stallwatch.model.evidence import CodeFrame, SourceLine
from stallwatch.model.launchers import LAUNCHERS
from stallwatch.model.torch_tree import TORCH_TREE
from stallwatch.model.verdict import Frame


class Origin(Enum):
    """Whose code a file is."""

    JOB = "job"
    LIBRARY = "library"  # installed package that is not machinery: may hold the job's own code
    MACHINERY = "machinery"  # torch and packages that only carry out what others ask
    STDLIB = "stdlib"
    SYNTHETIC = "synthetic"  # <string>, <frozen …>: no file that a person could open
    GENERATED = "generated"  # written by a compiler at run time
    LAUNCHER = "launcher"  # console scripts, torchrun's agent, our own run.py


class CodeOrigin(NamedTuple):
    """Whose code a file is, and its module."""

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
# Packages that carry out what others ask: their lines say how, never where in the job.
_LAUNCHER_CODE = tuple(prefix for launcher in LAUNCHERS for prefix in launcher.code)
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
def code_origin(filename: str) -> CodeOrigin:
    """Say whose file it is. A path that matches no layout is the job's own."""
    path = filename.replace("\\", "/")
    if not path or path.startswith("<"):
        return CodeOrigin(Origin.SYNTHETIC, path)
    if _OWN.search(path):
        return CodeOrigin(Origin.LAUNCHER, "stallwatch")
    if installed := list(_INSTALLED.finditer(path)):  # the last one counts: environments nest
        module = _dotted(path[installed[-1].end() :])
        return CodeOrigin(_installed_origin(module), module)
    if found := _STDLIB.search(path):
        return CodeOrigin(Origin.STDLIB, _dotted(path[found.end() :]))
    if found := TORCH_TREE.search(path):
        module = _dotted(path[found.end() :])
        return CodeOrigin(_installed_origin(module), module)
    if _GENERATED.search(path):
        return CodeOrigin(Origin.GENERATED, _dotted(path))
    if _SCRIPT.search(path):
        return CodeOrigin(Origin.LAUNCHER, _dotted(path))
    return CodeOrigin(Origin.JOB, _dotted(path))


def _installed_origin(module: str) -> Origin:
    if module.startswith(_LAUNCHER_CODE):
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
            if code_origin(frame.filename).origin in wanted:
                return index
    return None


# What the text of a source line says, when the stack ends at a call into C that shows no frame of its own.


Hint = Literal[
    "sleep", "gpu_sync", "store", "lock", "queue", "join", "collective", "socket", "child", "filesystem", "database",
    "input", "print", "signal", "own_store",
]  # fmt: skip

# Order matters: the more specific call first.
_HINTS: tuple[tuple[Hint, re.Pattern[str]], ...] = (
    ("sleep", re.compile(r"\b(?:u|nano|clock_nano)?sleep\s*\(")),
    ("signal", re.compile(r"\bsignal\.(?:pause|sig(?:timed)?wait\w*)\s*\(")),
    ("own_store", re.compile(r"\b(?:TCP|File)Store\s*\(")),
    ("store", re.compile(
        r"store\w*(?:\(\))?\.(?:get|wait|set|add|check|compare_set|multi_get)\s*\(", re.IGNORECASE)),
    ("lock", re.compile(r"\bwith\b.*(?:lock|mutex|semaphore|\bcond)|\.acquire\s*\(|\.lock\s*\(|\bf?lockf?\s*\(",
                        re.I)),
    # A context manager that blocks in C is a lock, whatever it is called.
    ("lock", re.compile(r"^(?:async\s+)?with\b(?!.*\bopen\s*\()")),
    ("join", re.compile(r"\.(?:result|join)\s*\(\s*(?:timeout\b.*)?\)")),
    ("child", re.compile(r"\bos\.(?:system|wait\w*|popen)\s*\(|\bsubprocess\.|\.communicate\s*\(")),
    ("collective", re.compile(
        r"\.wait\s*\(|wait_tensor|all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier|batch_isend_irecv")),
    ("queue", re.compile(r"\b\w*(?:queue|_q|\bq)\w*\.(?:get|put)\s*\(", re.IGNORECASE)),
    ("gpu_sync", re.compile(
        r"\.item\s*\(|\.cpu\s*\(|\.tolist\s*\(|\.numpy\s*\(|synchronize\s*\(|\.to\s*\(|\.nonzero\s*\(")),
    ("database", re.compile(r"\.(?:execute(?:many|script)?|commit|rollback)\s*\(")),
    ("socket", re.compile(r"\.(?:recv\w*|accept|connect|sendall|urlopen)\s*\(|\brequests\.|\bselect\.")),
    # Its own, not those of a program that it started: `child.stdin.write(…)`.
    ("input", re.compile(r"\binput\s*\(|(?:\bsys\.|(?<![\w.]))stdin\b(?!\s*=)|\bgetpass\w*\s*\(")),
    ("print", re.compile(r"\bprint\s*\(|(?:\bsys\.|(?<![\w.]))std(?:out|err)\b(?!\s*=)")),
    ("filesystem", re.compile(
        r"\bopen\s*\(|\.(?:read\w*|write\w*|flush|stat|exists|mkdir|unlink|rename|iterdir|glob)\s*\("
        r"|\bos\.(?:read|write|open|stat|fsync|listdir|scandir|rename|replace|remove|makedirs|path\.\w+)\s*\(|\bshutil\.")),
)  # fmt: skip


# How Python's own library takes a lock with a time-out, and calls that are given one.
_BOUNDED = re.compile(
    r"\.acquire\(True, timeout\)"
    r"|\.(?:get|put|wait|wait_for|acquire|result|join|exception)\s*\(.*\btimeout\s*=\s*(?!None\b)"
    r"|\.(?:wait|result|join)\s*\(\s*[\d.]+\s*\)"
)


# Where torch.distributed hands an operation to its group; what it waits for afterwards is `work.wait()`. torch 2.1 to
# 2.13: `work = group.allreduce([tensor], opts)`, `pg.broadcast(…)`.
_HANDS_OVER = re.compile(r"(?:^|=\s*|\breturn\s+)(?:\w*group|\w*pg)\.[a-z_]+\s*\(")


def hands_over(text: str | None) -> bool:
    """Whether the line hands an operation to its process group: who stands there has not issued it yet."""
    return bool(text and _HANDS_OVER.search(text))


_POSTS_TRANSFER = re.compile(r"\b(?:batch_isend_irecv|i?send|i?recv|P2POp)\s*\(")
_POSTS_COLLECTIVE = re.compile(
    r"\b(?:(?:all_)?reduce|reduce_scatter|(?:all_)?gather|scatter|broadcast|barrier|all_to_all)\w*\s*\("
)


def post_transfers(texts: Collection[str]) -> bool:
    """Whether lines post sends or receives, and no collective."""
    return any(map(_POSTS_TRANSFER.search, texts)) and not any(map(_POSTS_COLLECTIVE.search, texts))


def is_bounded(text: str | None) -> bool:
    """Whether the wait that the line makes has a time-out, as far as it says."""
    return bool(text and _BOUNDED.search(text))


def source_text(sources: tuple[SourceLine, ...], frame: CodeFrame) -> str | None:
    """The text of the frame's line, stripped, where it was captured."""
    found = [line.text.strip() for line in sources if line.file == frame.filename and line.line == frame.line]
    return min(found) if found else None


def hint(text: str | None) -> Hint | None:
    """Which call the line makes, or None when it does not say."""
    if not text:
        return None
    code = re.sub(r"(?:^|\s)#.*$", "", text.strip())
    return next((kind for kind, pattern in _HINTS if pattern.search(code)), None)


def job_frame(frames: tuple[CodeFrame, ...], sources: tuple[SourceLine, ...]) -> Frame | None:
    """The innermost line of the job's own code, with its text where it was captured."""
    index = job_frame_index(frames)
    if index is None:
        return None
    frame = frames[index]
    return Frame(frame.filename, frame.line, frame.name, source_text(sources, frame))
