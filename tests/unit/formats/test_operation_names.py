import pytest

from stallwatch.formats.operation_names import operation_name


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("_all_gather_base", "_allgather_base", "_ALLGATHER_BASE", "ALLGATHER_BASE"), "all_gather_into_tensor"),
        (("_reduce_scatter_base", "reduce_scatter_base", "_REDUCE_SCATTER_BASE"), "reduce_scatter_tensor"),
        (("alltoall_base", "ALLTOALL_BASE", "all_to_allv"), "all_to_all_single"),
        (("all_to_all", "ALLTOALL"), "all_to_all"),
        (("all_reduce", "allreduce", "ALLREDUCE"), "all_reduce"),
        (("all_reduce_barrier",), "barrier"),
        (("BROADCAST", "broadcast"), "broadcast"),
        (("_REDUCE_OOP",), "reduce_oop"),
        (("send 0->1",), "send 0->1"),
        (("all_reduce (batch of 2)",), "all_reduce (batch of 2)"),
        ((None, ""), ""),
    ],
)
def test_recorders_and_logs_of_one_call_are_told_in_one_word(names: tuple[str | None, ...], words: str) -> None:
    assert {operation_name(name) for name in names} == {words}
