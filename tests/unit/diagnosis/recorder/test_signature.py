"""What makes two calls the same call, by the rule of each operation."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis.recorder import signature
from stallwatch.model.evidence import CodeFrame, Operation
from tests.builders.job import Call, operations, world


def _operation(name: str, **fields: Any) -> Operation:
    first = operations(0, (Call(world(2), name),), 0)[0]
    return msgspec.structs.replace(first, **fields)


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "_reduce_scatter_base", "reduce"])
def test_inputs_of_reductions_are_compared_by_number_not_by_shape(name: str) -> None:
    flat = _operation(name, input_sizes=((64,),))
    square = _operation(name, input_sizes=((8, 8),))
    assert signature.elements(flat) == signature.elements(square) == 64


def test_outputs_of_gathers_are_compared() -> None:
    short = _operation("all_gather", input_sizes=((3,),), output_sizes=((3,), (5,)))
    long = _operation("all_gather", input_sizes=((5,),), output_sizes=((3,), (5,)))
    assert signature.elements(short) == signature.elements(long) == 8


@pytest.mark.parametrize("name", ["alltoall_base", "all_to_all", "gather", "scatter", "barrier", "send 0->1"])
def test_operations_that_may_differ_are_not_compared_by_size(name: str) -> None:
    assert signature.elements(_operation(name)) is None


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "size"),
    [
        ("all_gather", ((4,),), ((2, 4),), 2),
        ("_reduce_scatter_base", ((12,),), ((4,),), 3),
        ("all_reduce", ((4,),), ((4,),), None),
        ("all_gather", ((3,),), ((8,),), None),
    ],
)
def test_the_size_of_a_group_is_read_from_equal_parts(
    name: str, inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...], size: int | None
) -> None:
    operation = _operation(name, input_sizes=inputs, output_sizes=outputs)
    assert signature.group_size_by_shape(operation) == size


@pytest.mark.parametrize(
    ("name", "synchronises"), [("all_reduce_barrier", True), ("broadcast", False), ("send", False)]
)
def test_only_some_completions_prove_that_all_have_entered(name: str, synchronises: bool) -> None:
    assert signature.is_synchronising(name) is synchronises


def test_the_call_site_is_the_jobs_own_innermost_line() -> None:
    torch = CodeFrame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000)
    own = CodeFrame("step", "/srv/job/train.py", 12)
    assert signature.site((torch, own)) == "/srv/job/train.py:12 step"
    assert signature.site(()) == ""
