"""Data whose right result is known exactly, and the comparison with it.

Element i of rank r is `i % 97 + 3 r`: small whole numbers, which every reduction adds without rounding in float32, and
which show a chunk that went to the wrong rank or the wrong place.
"""

from typing import Any

from stallwatch.selftest.worker.step_lines import Wrong

ELEMENT_BYTES = 4
_PERIOD = 97
_OF_RANK = 3


def pattern(torch: Any, device: Any, count: int, rank: int = 0, start: int = 0) -> Any:
    """`count` elements from element `start` on."""
    numbers = torch.arange(start, start + count, dtype=torch.int32, device=device)
    return numbers.remainder_(_PERIOD).to(torch.float32).add_(_OF_RANK * rank)


def pattern_sum(torch: Any, device: Any, count: int, ranks: int, start: int = 0) -> Any:
    """What the sum over `ranks` ranks must be."""
    return pattern(torch, device, count, 0, start).mul_(ranks).add_(_OF_RANK * ranks * (ranks - 1) // 2)


def compare(torch: Any, found: Any, expected: Any, what: str = "element") -> None:
    """Raise Wrong, with the first place and how many, when the two differ."""
    if torch.equal(found, expected):
        return
    different = (found != expected).nonzero()
    first = int(different[0])
    raise Wrong(
        f"{len(different)} of {expected.numel()} elements are wrong: {what} {first} is {float(found[first]):g}, "
        f"must be {float(expected[first]):g}"
    )
