"""What PyTorch's own text of a GPU without memory means."""

from stallwatch.diagnosis.logs.remedies_by_text import memory_words

OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}."


def test_a_size_that_no_machine_has_came_from_another_call() -> None:
    words = memory_words(OUT.format("more than 1EB memory"))
    assert "is no size" in words.why and "TORCH_DISTRIBUTED_DEBUG=DETAIL" in words.remedy
    assert "smaller batch" not in words.remedy
    assert "smaller batch" in memory_words(OUT.format("2.00 GiB")).remedy
