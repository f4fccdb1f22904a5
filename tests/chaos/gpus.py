"""GPUs that somebody wants for himself for a time. Where there is no driver, a library stands in that opens a device as
NVML does."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stallwatch.node.gpu_release import Holder, holders
from tests.chaos.node import ROOT, Node, told_after

_FOR_SECONDS = 60
_BACK_SECONDS = 60.0  # a look each 20 s, and a child that starts
_DRIVER = Path("/dev/nvidiactl")
_STAND_IN = Path("/dev/nvidia-stand-in")
_LIBRARY = """
import sys
from tests.unit.node.fake_nvml import FakeNvml
class Opening(FakeNvml):
    def __getattr__(self, name):
        if name == "nvmlInit":
            self.device = open({device!r})
        return super().__getattr__(name)
sys.modules[__name__] = Opening()
"""


def released(node: Node) -> Iterator[str]:
    """`stallwatch release-gpus`: no handle of ours while it lasts, also when a rank dies meanwhile; then they are back,
    at its end and on `--for 0`."""
    with _driver(node) as kind:
        node.until(lambda: bool(_ours(node)), "a GPU's device is open")
        yield f"{kind}: open before: {_said(_ours(node))}"
        began, seconds = time.monotonic(), _release(node, f"{_FOR_SECONDS}s")
        yield f"closed {seconds:.1f} s after `release-gpus --for {_FOR_SECONDS}s`"
        looks, told = 0, ""
        while time.monotonic() < began + _FOR_SECONDS - 1:
            assert not _ours(node), f"{_said(_ours(node))} {time.monotonic() - began:.0f} s after the release"
            told = told or f"{told_after(node, 'dies-meanwhile', 'killed'):.1f} s"
            looks += 1
            time.sleep(0.1)
        yield f"{looks} looks until its end: none open; the rank that died meanwhile told after {told}"
        node.until(lambda: bool(_ours(node)), "they are open again at its end", _BACK_SECONDS)
        yield f"open again {time.monotonic() - began - _FOR_SECONDS:.1f} s after its end: {_said(_ours(node))}"
        _release(node, "10m")
        assert not _ours(node)
        began = time.monotonic()
        _release(node, "0")
        node.until(lambda: bool(_ours(node)), "they are open again on --for 0", _BACK_SECONDS)
        yield f"open again {time.monotonic() - began:.1f} s after `--for 0`"


def _release(node: Node, duration: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-P", "-m", "stallwatch.cli", "release-gpus", "--for", duration, "--json"]
    command += ["--config", str(node.config)]
    ended = subprocess.run(command, env=node.daemon.environment, capture_output=True, text=True, timeout=60, check=True)
    others = json.loads(ended.stdout)["others"]
    assert {one["pid"] for one in others} <= {one.pid for one in holders() if not one.is_ours}, others
    return time.monotonic() - began


def _ours(node: Node) -> list[Holder]:
    """By the processes of the node's units, and by what each calls itself."""
    pids = {process.pid for unit in (node.daemon, node.side) for process in unit.processes()}
    return [one for one in holders() if one.is_ours or one.pid in pids]


def _said(held: list[Holder]) -> str:
    return ", ".join(f"pid {one.pid} ({one.name})" for one in held)


@contextlib.contextmanager
def _driver(node: Node) -> Iterator[str]:
    if _DRIVER.exists():
        yield "the driver here"
        return
    site = node.folder / "site"
    site.mkdir()
    (site / "pynvml.py").write_text(_LIBRARY.format(device=str(_STAND_IN)))
    _STAND_IN.touch()
    try:
        for unit in (node.daemon, node.side):
            unit.stop()
            before = unit.environment.get("PYTHONPATH", "")
            unit.environment["PYTHONPATH"] = f"{site}:{ROOT}:{before}".rstrip(":")
        node.until(node.answers, "the daemon runs with the other library")
        yield "a library that stands in"
    finally:
        _STAND_IN.unlink(missing_ok=True)
