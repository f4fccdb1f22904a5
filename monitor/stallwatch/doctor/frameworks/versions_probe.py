# Runs in the training interpreter (3.7 and newer, nothing of ours installed): versions as one line of JSON.
# Distributions are read, not imported: importing torch takes seconds. torch's build facts stand in torch/version.py.
import json
import os
import re
import sys
from typing import Any

NAMES = (
    "torch",
    "deepspeed",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "transformers",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "torchft",
    "megatron-core",
    "ray",
    "vllm",
    "stallwatch",
    "py-spy",
)


def main() -> None:
    """Print one line of JSON: interpreter, versions of NAMES that are installed, torch's build and conflicts, each with
    the error where it could not be read."""
    from importlib import metadata

    versions: dict[str, str] = {}
    answer: dict[str, Any] = {"executable": sys.executable, "python": sys.version.split()[0], "versions": versions}
    for name in NAMES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        answer.update(torch_build(metadata))
    except Exception as error:
        answer["build_unread"] = "%s: %s" % (type(error).__name__, error)
    try:
        answer["conflicts"] = conflicts(metadata, versions)
    except Exception as error:
        answer["not_compared"] = "%s: %s" % (type(error).__name__, error)
    print(json.dumps(answer))


def torch_build(metadata: Any) -> "dict[str, str]":
    """Return the versions of CUDA, HIP and NCCL that torch was built with, "" for those without; empty without
    torch."""
    from importlib import util

    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = spec.submodule_search_locations[0]
    with open(os.path.join(folder, "version.py")) as file:
        text = file.read()
    said = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", text, re.M))
    build = {"cuda": said.get("cuda", ""), "hip": said.get("hip", ""), "nccl": ""}
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            build["nccl"] = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            continue
    if build["cuda"] and not build["nccl"]:
        build["nccl"] = linked_nccl(folder)
    return build


def linked_nccl(folder: str) -> str:
    """NCCL built into torch, or of the system: its version string stands in the library."""
    import ctypes

    for name in ("libnccl.so.2", os.path.join(folder, "lib", "libnccl.so.2")):
        try:
            number = ctypes.c_int()
            ctypes.CDLL(name).ncclGetVersion(ctypes.byref(number))
            value = number.value
            if value >= 10000:
                return "%d.%d.%d" % (value // 10000, value % 10000 // 100, value % 100)
            return "%d.%d.%d" % (value // 1000, value % 1000 // 100, value % 100)
        except (OSError, AttributeError):
            continue
    return ""


def requirement_class() -> Any:
    """packaging's, else the copy that pip or setuptools brings."""
    from importlib import import_module

    for name in ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging"):
        try:
            return import_module(name + ".requirements").Requirement
        except ImportError:
            continue
    raise ImportError("neither packaging nor pip nor setuptools is installed")


def conflicts(metadata: Any, have: "dict[str, str]") -> "list[str]":
    """What the frameworks ask of each other and do not get."""
    requirement = requirement_class()
    found = []
    for name in ("torch", "deepspeed", "lightning", "pytorch-lightning", "accelerate"):
        if name not in have:
            continue
        for text in metadata.requires(name) or ():
            need = requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            try:
                version = metadata.version(need.name)
            except metadata.PackageNotFoundError:
                if need.name.startswith(("nvidia-nccl", "torch")):
                    found.append("%s %s needs %s, which is not installed" % (name, have[name], need))
                continue
            if not need.specifier.contains(version, prereleases=True):
                found.append("%s %s needs %s, here is %s" % (name, have[name], need, version))
    return found


main()
