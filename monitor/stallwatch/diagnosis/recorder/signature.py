"""What makes two recorded calls "the same call": operation, size by the operation's own rule, dtype, call site."""

from stallwatch.diagnosis.frames.code_origin import job_frame_index
from stallwatch.model.evidence import CodeFrame, Operation

# Input elements are equal on every rank of a healthy job.
_INPUT_EQUAL = frozenset(
    {"all_reduce", "allreduce", "_allreduce_base", "all_reduce_barrier", "all_reduce_coalesced", "allreduce_coalesced"}
    | {"all_reduce_sparse", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop"}
    | {"_reduce_scatter_base", "reduce_scatter_base", "reduce_scatter_tensor_coalesced"}
    | {"reduce_scatter"}  # a list of uneven chunks: the whole list is the same everywhere
)
# Output elements are: an all_gather of uneven tensors has uneven inputs, yet one list of outputs.
_OUTPUT_EQUAL = frozenset(
    {"all_gather", "allgather", "_all_gather_base", "all_gather_base", "_allgather_base"}
    | {"all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced"}
)
# Completion on one rank proves that every rank of the group has entered. Roots and non-roots of the others part early.
_SYNCHRONISING = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall")
_BARRIERS = ("barrier",)


def is_transfer(operation: str) -> bool:
    """ "send 0->1", "recv 1<-?" and "send" alone; a coalesced collective is "all_reduce (batch of 2)"."""
    return operation.partition(" ")[0] in ("send", "recv")


def names_transfer(name: str) -> bool:
    """Whether a name is of sends or receives, in whatever words: a recorder's, those of a stack, or our own."""
    return any(part in name.lower() for part in ("send", "recv", "p2p", "point-to-point"))


def elements(operation: Operation) -> int | None:
    """Return the number of elements that must be equal on all ranks, or None where health allows differences."""
    name = operation.name
    if name in _INPUT_EQUAL:
        return _total(operation.input_sizes) if operation.input_sizes else None
    if name in _OUTPUT_EQUAL:
        return _total(operation.output_sizes) if operation.output_sizes else None
    return None


def transferred(operation: Operation) -> int | None:
    """Return the number of elements of a send or receive, None where none were recorded. Both ends of one have equal
    numbers; from one to the next they may differ."""
    sizes = operation.input_sizes or operation.output_sizes
    return _total(sizes) if sizes else None


def dtype(operation: Operation) -> str:
    """Return the element type, "" where nothing was recorded: scatter's non-roots have no input."""
    if is_barrier(operation.name):
        return ""
    kinds = operation.input_dtypes or operation.output_dtypes
    return kinds[0] if kinds else ""


def member(operation: Operation) -> str:
    """What one member of a coalesced collective is, as far as it must be the same on all ranks."""
    return as_member(operation.name, elements(operation), dtype(operation))


def as_member(name: str, count: int | None, dtype: str) -> str:
    """What a call would be as one member of a coalesced collective."""
    return f"{name} of {'any size' if count is None else count} {dtype}".strip()


def shape(operation: Operation) -> str:
    """Sizes of the first tensor as text, "[8, 16] and 2 more"; "" where none are recorded."""
    sizes = operation.input_sizes or operation.output_sizes
    return "" if not sizes else str(list(sizes[0])) + (f" and {len(sizes) - 1} more" if len(sizes) > 1 else "")


def is_synchronising(name: str) -> bool:
    """Whether an operation can end nowhere before all members have entered it."""
    return any(part in name for part in (*_SYNCHRONISING, *_BARRIERS))


# The most telling first: NCCL's barrier is recorded as "all_reduce_barrier".
_CALLS = ("barrier", "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "gather", "scatter", "reduce")


def are_different(operation: str, name: str) -> bool:
    """Whether an operation that was recorded, "all_gather", is another one than a call of torch.distributed by its
    public name, "barrier"; where one of them says nothing they may be the same."""
    own, other = (
        next((call for call in _CALLS if call in text.lower().replace("_", "")), None) for text in (operation, name)
    )
    return None not in (own, other) and own != other


def is_barrier(name: str) -> bool:
    """Whether an operation is one of torch's barriers."""
    return any(part in name for part in _BARRIERS)


def group_size_by_shape(operation: Operation) -> int | None:
    """Return the group's size where a gather from or a scatter into equal parts shows it."""
    scatters = "reduce_scatter" in operation.name
    if not (scatters or operation.name in _OUTPUT_EQUAL) or not operation.input_sizes or not operation.output_sizes:
        return None
    part, whole = _total(operation.input_sizes), _total(operation.output_sizes)
    if scatters:
        part, whole = whole, part
    return whole // part if part and whole % part == 0 else None


def site(frames: tuple[CodeFrame, ...]) -> str:
    """Return "file:line function" of the innermost frame of the job's own code, "" without one."""
    index = job_frame_index(frames)
    return "" if index is None else f"{frames[index].filename}:{frames[index].line} {frames[index].name}"


def _total(sizes: tuple[tuple[int, ...], ...]) -> int:
    total = 0
    for dimensions in sizes:
        count = 1
        for dimension in dimensions:
            count *= dimension
        total += count
    return total
