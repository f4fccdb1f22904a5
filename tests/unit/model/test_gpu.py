import pytest

from stallwatch.model.gpu import Gpu, missing_lanes

Link = tuple[int, int] | None


def gpu(link: Link, maximum: Link = (5, 16), name: str | None = "H100") -> Gpu:
    return Gpu(index=0, name=name, pcie_link=link, pcie_link_maximum=maximum)


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (gpu((5, 8)), gpu((5, 16)), (8, 16)),
        (gpu((5, 8), None), gpu((5, 16)), (8, 16)),  # its own maximum is unknown
        (gpu((5, 4)), gpu((5, 8)), (4, 8)),
        (gpu((5, 8)), gpu((5, 8)), None),  # all alike: the board's design
        (gpu((5, 8), (5, 8)), gpu((5, 16)), None),  # a slot of eight lanes
        (gpu((1, 16)), gpu((5, 16)), None),  # at rest its speed falls
        (gpu((5, 8)), gpu((5, 16), name="L4"), None),
        (gpu((5, 8)), gpu(None), None),  # nothing to compare with
        (gpu((5, 0)), gpu((5, 16)), None),
        (gpu(None), gpu((5, 16)), None),
    ],
)
def test_a_link_lacks_lanes_that_gpu_and_slot_could_have_and_others_have(
    mine: Gpu, other: Gpu, expected: tuple[int, int] | None
) -> None:
    assert missing_lanes(mine, (other, mine)) == expected
