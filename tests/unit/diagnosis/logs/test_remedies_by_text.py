"""What PyTorch's own text of a GPU without memory means, and of one that does not answer."""

import pytest

from stallwatch.diagnosis.logs.remedies_of_gpus import gpu_words
from stallwatch.diagnosis.logs.remedies_of_memory import memory_words

OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}."


def test_a_size_that_no_machine_has_came_from_another_call() -> None:
    words = memory_words(OUT.format("more than 1EB memory"))
    assert "is no size" in words.why and "TORCH_DISTRIBUTED_DEBUG=DETAIL" in words.remedy
    assert "smaller batch" not in words.remedy
    assert "smaller batch" in memory_words(OUT.format("2.00 GiB")).remedy


SHARES = "60.00 GiB is allocated by PyTorch, and {} is reserved by PyTorch but unallocated."
OLD = " (GPU 0; 79 GiB total; 50.00 GiB already allocated; 1 GiB free; {} GiB reserved in total by PyTorch) set {}"


@pytest.mark.parametrize(
    ("told", "allocator"),
    [
        (SHARES.format("1.00 GiB"), ""),
        (SHARES.format("20.00 GiB"), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (f"{SHARES.format('20.00 GiB')} See PYTORCH_ALLOC_CONF", "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        (OLD.format("75.00", "max_split_size_mb"), "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"),
        (OLD.format("50.00", "max_split_size_mb"), ""),
    ],
)
def test_another_allocator_is_advised_only_where_much_is_held_and_not_given_out(told: str, allocator: str) -> None:
    remedy = memory_words(f"{OUT.format('2.00 GiB')} {told}").remedy
    assert ("against fragments" in remedy) == bool(allocator)
    assert allocator in remedy


def test_other_processes_on_the_gpu_are_named_with_what_they_hold() -> None:
    others = "Process 4711 has 3.00 GiB memory in use."
    own = "Including non-PyTorch memory, this process has 70.00 GiB memory in use."
    words = memory_words(f"{OUT.format('2.00 GiB')} {others} {own}")
    assert "Other processes hold memory of this GPU: 4711 (3.00 GiB)." in words.why
    assert "ps -o pid,user,args -p 4711" in words.remedy
    # Up to torch 2.1 a process' own share is printed in the same words.
    assert "4711" not in memory_words(f"{OUT.format('2.00 GiB')} {others}").why


def test_a_report_of_memory_that_failed_itself_points_at_nvml() -> None:
    words = memory_words("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp")
    assert "asks NVML who holds it" in words.why
    assert words.remedy.startswith("nvidia-smi where the rank runs")


def test_a_gpu_that_does_not_answer_for_a_reason_that_nobody_knows_is_looked_at_on_its_host() -> None:
    assert "nvidia-smi" in gpu_words("CUDA driver error 12345").remedy
