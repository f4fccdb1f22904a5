from typing import Any

import pytest

from stallwatch.sensors.nvml import DriverError, load_nvml
from stallwatch.sensors.sensor import Absent
from tests.unit.sensors.fake_nvml import FakeNvml


@pytest.mark.parametrize(("code", "text"), [(12, "libnvidia-ml.so.1 not found"), (9, "error 9")])
def test_node_without_a_driver_is_normal_and_said(code: int, text: str) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": code}
    with pytest.raises(Absent, match=f"no GPU on this node: {text}"):
        load_nvml(lambda name: nvml)


def test_node_without_the_binding_is_normal_and_said() -> None:
    def find(name: str) -> Any:
        raise ImportError("No module named 'pynvml'")

    with pytest.raises(Absent, match="pynvml"):
        load_nvml(find)


@pytest.mark.parametrize(("code", "words"), [(999, "internal error"), (18, "different versions"), (17, "error 17")])
def test_driver_that_is_sick_is_an_error_that_says_how(code: int, words: str) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": code}
    with pytest.raises(DriverError, match=words):
        load_nvml(lambda name: nvml)
