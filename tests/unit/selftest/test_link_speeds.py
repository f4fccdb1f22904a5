"""What links should give is said only where it is sure."""

from stallwatch.model.gpu import Gpu
from stallwatch.selftest.link_speeds import expected_bytes_per_second, warnings
from stallwatch.selftest.result import Device, StepResult, TrialResult

RATE = 478_000_000_000


def gpus(count: int, *, switches: bool = True, rate: int | None = RATE) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(n, f"GPU-{n}", nvlinks=(18, 0), nvlinks_to_switches=switches, nvlink_bytes_per_second=rate)
        for n in range(count)
    )


def trial(rate: int, size: int = 256 << 20) -> TrialResult:
    step = StepResult("all_reduce bandwidth", size, "ok", (0, 1), bus_bytes_per_second=rate)
    return TrialResult("nccl", 2, 1.0, (step,), tuple(Device(n, "node", 1, n, "H100", str(n)) for n in range(2)))


def test_switched_links_are_sure() -> None:
    assert expected_bytes_per_second(gpus(8), ["0", "5"]) == RATE


def test_bridges_are_sure_only_between_the_two_gpus_of_a_node() -> None:
    assert expected_bytes_per_second(gpus(2, switches=False), ["0", "1"]) == RATE
    assert expected_bytes_per_second(gpus(4, switches=False), ["0", "1"]) is None


def test_nothing_is_expected_of_what_is_not_known() -> None:
    assert expected_bytes_per_second(gpus(2, rate=None), ["0", "1"]) is None
    assert expected_bytes_per_second((), ["0", "1"]) is None
    assert expected_bytes_per_second(gpus(2), ["0", ""]) is None
    assert expected_bytes_per_second(gpus(1), ["0"]) is None


def test_less_than_half_is_a_warning() -> None:
    assert "less than half" in warnings(trial(40_000_000_000), gpus(2))[0]
    assert warnings(trial(350_000_000_000), gpus(2)) == ()


def test_small_sizes_and_unknown_links_warn_of_nothing() -> None:
    assert warnings(trial(1_000_000, size=4096), gpus(2)) == ()
    assert warnings(trial(1_000_000), ()) == ()
