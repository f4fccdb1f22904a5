"""Values in another program's syntax, or marred on their way here: quotes, line ends, blanks."""

import difflib
import re
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.known_variables import catalogue
from stallwatch.doctor.environment.values import complaint, integer, is_left_on
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

_NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
# Options of the caching allocator, PyTorch 2.0 to 2.14.1, and what those take that are often set.
_ALLOCATOR = (
    "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions", "roundup_bypass_threshold_mb",
    "expandable_segments", "backend", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "graph_capture_record_stream_reuse",
    "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "max_non_split_rounding_mb",
    "per_process_memory_fraction", "large_segment_size_mb", "throw_on_cudamalloc_oom",
)  # fmt: skip
_ALLOCATOR_VALUES = {
    "expandable_segments": ("True|False", "True or False"),
    "backend": ("native|cudaMallocAsync|hipMallocAsync", "native or cudaMallocAsync"),
    "max_split_size_mb": (r"2[1-9]|[3-9]\d|\d{3,}", "MiB as a whole number above 20"),
    "garbage_collection_threshold": (r"0?\.\d+", "a share between 0 and 1"),
    "pinned_use_background_threads": ("True|False", "True or False"),
}
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)


class WrongSyntax:
    """Judges each value by the syntax of who reads it, whatever the variable means."""

    name: ClassVar[str] = "wrong_syntax"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "values in another program's syntax (GLOO_SOCKET_IFNAME=^lo), files that ranks overwrite"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """At most one kind of finding for each value: a file that ranks overwrite, a marred value, else a foreign
        syntax."""
        return tuple(
            record
            for environment in surroundings.environments
            for name, value in sorted(environment.values.items())
            for record in self._of_file(environment, name, value)
            or self._marred(environment.place, name, value)
            or self._one(environment.place, name, value.strip())
        )

    def _of_file(self, environment: NamedEnvironment, name: str, value: str) -> tuple[FindingRecord, ...]:
        """NCCL takes what stands before and after "=" as it is."""
        clean = name.strip().removeprefix("export ").strip()
        if not environment.is_file or name == clean or clean not in catalogue().real:
            return ()
        return (
            finding(
                self, "error", environment.place,
                seen=f"\"{name}={value}\" sets a variable of that name, blanks included.",
                why="NCCL reads the file as it is, not as a shell would: the setting has no effect.",
                remedy=f"write {clean}={value.strip()}",
                source="NCCL user guide, configuration files",
            ),
        )  # fmt: skip

    def _marred(self, place: str, name: str, value: str) -> tuple[FindingRecord, ...]:
        """Quotes and carriage returns that have become a part of the value."""
        if name not in catalogue().real and name not in _NUMBERS and name not in ("MASTER_ADDR", "MASTER_PORT"):
            return ()
        quoted = _QUOTED.fullmatch(value.strip())
        if "\r" not in value and not quoted:
            return ()
        clean = (quoted[2] if quoted else value).strip()
        rules = catalogue().rules_of(name)
        right = f"{name}={clean}"
        if rules is not None and (complaint(rules, clean) or is_left_on(rules, clean)):
            right = f"unset {name}"
        what = "quotes" if quoted else "a carriage return at its end"
        return (
            finding(
                self, "error", place,
                seen=f"{name}={value!r}: {what} {'are' if quoted else 'is'} part of the value.",
                why="docker --env-file, nccl.conf and Kubernetes' values keep quotes, files from Windows their line "
                "ends; the value then names nothing that its reader knows.",
                remedy=f"{right}  (without quotes)"
                if quoted
                else f"sed -i 's/\\r$//' on the file that sets it; {right}",
            ),
        )  # fmt: skip

    def _one(self, place: str, name: str, value: str) -> Iterator[FindingRecord]:
        variable = catalogue().variables.get(name)
        if variable is not None and variable.plain and value[:1] in ("^", "="):
            yield finding(
                self, "error", place,
                seen=f"{name}={value}: the {value[0]!r} is NCCL's syntax, not {variable.owner}'s.",
                why=variable.why,
                remedy=f"unset {name}, or export {name}=<one existing interface by its plain name: ip -br addr>",
                source=variable.source,
            )  # fmt: skip
        else:
            yield from self._of_nccl(place, name, value)
            yield from self._of_gpus(place, name, value)
            yield from self._of_launch(place, name, value)

    def _of_nccl(self, place: str, name: str, value: str) -> Iterator[FindingRecord]:
        """What NCCL takes in another way than it looks."""
        if name == "NCCL_IB_HCA" and (prefix := _matches_more(value)):
            yield finding(
                self, "info", place,
                seen=f"{name}={value}: without \"=\" each name is a prefix, so {prefix} also means {prefix}0 to "
                f"{prefix}9.",
                why="Adapters that were not meant, storage ones for example, carry the job's traffic.",
                remedy="export NCCL_IB_HCA==" + value.lstrip("="),
                source="NCCL user guide, NCCL_IB_HCA",
            )  # fmt: skip
        elif name == "NCCL_DEBUG_FILE" and value not in ("stdout", "stderr") and "%p" not in value:
            yield finding(
                self, "warning", place,
                seen=f"{name}={value} has no %p.",
                why="Every rank of a node writes the same file over the others' lines.",
                remedy="export NCCL_DEBUG_FILE=" + re.sub("^~", "$HOME", value.replace(".%h", "")) + ".%h.%p",
                source="NCCL user guide, NCCL_DEBUG_FILE",
            )  # fmt: skip
        elif name == "NCCL_DEBUG_FILE" and value.startswith("~"):
            yield finding(
                self, "warning", place,
                seen=f"{name}={value}: NCCL does not know ~.",
                why="The file is not written.",
                remedy="export NCCL_DEBUG_FILE=$HOME" + value[1:],
                source="NCCL user guide, NCCL_DEBUG_FILE",
            )  # fmt: skip
        elif name == "NCCL_RAS_ADDR" and not re.fullmatch(r".+:\d+", value):
            yield finding(
                self, "warning", place,
                seen=f"{name}={value} is not host:port.",
                why="NCCL's RAS does not listen, and nobody can ask which rank has not launched.",
                remedy=f"export {name}=localhost:{value if value.isdecimal() else 28028}",
                source="NCCL user guide, NCCL_RAS_ADDR",
            )  # fmt: skip

    def _of_gpus(self, place: str, name: str, value: str) -> Iterator[FindingRecord]:
        """Lists of devices, and options of the allocator."""
        if name == "CUDA_VISIBLE_DEVICES" and re.search(r"\s", value):
            yield finding(
                self, "error", place,
                seen=f"{name}={value!r} holds blanks.",
                why="CUDA stops reading at the first entry that it does not understand: later GPUs are invisible.",
                remedy="export CUDA_VISIBLE_DEVICES=" + ",".join(re.split(r"[,\s]+", value)),
                source="CUDA programming guide",
            )  # fmt: skip
        elif name == "CUDA_VISIBLE_DEVICES" and (device := _no_device(value)):
            yield finding(
                self, "error", place,
                seen=f"{name}={value}: {device} is no device.",
                why="Slurm writes it where a step was given no GPU."
                if device == "NoDevFiles"
                else "CUDA stops reading at the first entry that it does not understand: this and later GPUs are "
                "invisible.",
                remedy="ask for GPUs: srun --gpus-per-node=8 (or --gres=gpu:8)"
                if device == "NoDevFiles"
                else "numbers, or UUIDs of `nvidia-smi -L`: export CUDA_VISIBLE_DEVICES=0,1",
                source="CUDA programming guide",
            )  # fmt: skip
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") and (unknown := _unknown_options(value)):
            near = difflib.get_close_matches(unknown, _ALLOCATOR, 1)
            yield finding(
                self, "error", place,
                seen=f"{name}={value}: there is no option {unknown}"
                + (f"; the nearest is {near[0]}." if near else "."),
                why="PyTorch raises at the first use of the GPU, on the ranks that have it.",
                remedy=_repaired(name, re.sub(rf"\b{unknown}\b", near[0], value) if near else ""),
                source="PyTorch documentation, CUDA semantics",
            )  # fmt: skip
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") and (problem := _wrong_option(value)):
            yield finding(
                self, "error", place,
                seen=f"{name}={value}: {problem}.",
                why="PyTorch raises at the first use of the GPU, on the ranks that have it.",
                remedy=_repaired(name, value.replace("=", ":")),
                source="PyTorch documentation, CUDA semantics",
            )  # fmt: skip

    def _of_launch(self, place: str, name: str, value: str) -> Iterator[FindingRecord]:
        """Numbers, and the address of rank 0."""
        if name == "OMP_NUM_THREADS" and not re.fullmatch(r"[1-9]\d*(?:,[1-9]\d*)*", value):
            yield finding(
                self, "warning", place,
                seen=f"{name}={value} is no number of threads.",
                why="OpenMP ignores it and takes all CPUs for each rank: ranks slow each other down.",
                remedy="export OMP_NUM_THREADS=1",
                source="OpenMP specification, OMP_NUM_THREADS",
            )  # fmt: skip
        elif name == "MASTER_PORT" and (integer(value) is None or not 0 <= (integer(value) or 0) <= 65535):
            yield finding(
                self, "error", place,
                seen=f"MASTER_PORT={value} is no port.",
                why="The rendezvous cannot begin.",
                remedy="export MASTER_PORT=<a free port from 1024 to 65535>",
            )  # fmt: skip
        elif name in _NUMBERS and value and not value.isdecimal():
            yield finding(
                self, "error", place,
                seen=f"{name}={value} is no number.",
                why="init_process_group takes it as one and fails on the rank that has it; the others wait.",
                remedy="start by torchrun, which sets it, or export the number itself",
            )  # fmt: skip
        elif name == "MASTER_ADDR" and ("://" in value or re.fullmatch(r"[\w.-]+:\d+", value)):
            yield finding(
                self, "error", place,
                seen=f"MASTER_ADDR={value} is not a bare host name or address.",
                why="It is looked up as one name and found nowhere; the job waits for its rendezvous until it times "
                "out.",
                remedy="put the host into MASTER_ADDR and the port into MASTER_PORT",
            )  # fmt: skip


def _no_device(value: str) -> str:
    """The first entry of a list of devices that CUDA does not understand."""
    known = re.compile(r"-?\d+|(?:GPU|MIG)-[\w/-]+")
    return next((one for one in value.split(",") if one and not known.fullmatch(one)), "")


def _unknown_options(value: str) -> str:
    """The first option of the caching allocator that no PyTorch knows."""
    names = re.findall(r"(?:^|,)\s*([A-Za-z_]\w*)\s*:", value)
    return next((name for name in names if name not in _ALLOCATOR), "")


def _wrong_option(value: str) -> str:
    """What the caching allocator does not accept of a setting; "" when it is right."""
    for part in re.sub(r"\[[^\]]*\]", "", value.replace(" ", "")).split(","):
        option, colon, given = part.partition(":")
        if part and not colon:
            return f"{part!r} has no colon"
        accepted, words = _ALLOCATOR_VALUES.get(option, (".*", ""))
        if part and not re.fullmatch(accepted, given):
            return f"{option} takes {words}, not {given!r}"
    return ""


def _repaired(name: str, value: str) -> str:
    """What to do about a setting of the allocator: what it was meant to be, where that is accepted."""
    if value and not _unknown_options(value) and not _wrong_option(value):
        return f"write {name}={value}, or unset {name}"
    return f"unset {name}, or option:value, several with commas (expandable_segments:True)"


def _matches_more(value: str) -> str:
    """The first name of a prefix list that ends in a digit ("mlx5_1" is also mlx5_10)."""
    if value.startswith(("=", "^=")):
        return ""
    names = (entry.split(":")[0] for entry in value.removeprefix("^").split(","))
    return next((name for name in names if re.fullmatch(r"\w+_[1-9]", name)), "")
