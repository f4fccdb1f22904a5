"""Files of the daemon's own that are not as it left them."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.node import Node, told_after


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), 7):
        data[place] ^= 0x55
    path.write_bytes(bytes(data))


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


SPOILINGS: tuple[Callable[[Path], None], ...] = (_truncated, _emptied, _flipped, _a_directory, _a_fifo, _a_link)


def corrupt(node: Node) -> Iterator[str]:
    """Every file that a daemon has left, spoiled in every way: the next one starts, knows the other incidents, and
    tells of what happens next."""
    told_after(node, "first", "killed")
    told_after(node, "second", "killed")
    node.until(lambda: not node.uncommitted(), "it is written down that they were told")
    (first,), (second,) = node.incidents("first"), node.incidents("second")
    node.daemon.stop()
    node.end_jobs()
    good = node.folder / "good"
    shutil.copytree(node.state, good / "state")
    shutil.copytree(node.run, good / "run", ignore=lambda folder, names: [n for n in names if "sock" in n])
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    spoiled_bundle = Path("state") / "incidents" / first.incident_id
    chosen = [path for path in files if spoiled_bundle not in path.parents or path.name in _OF_A_BUNDLE]
    chosen = [path for path in chosen if second.incident_id not in path.parts]
    count = 0
    for spoil in SPOILINGS:
        _restore(node, good)
        for path in chosen:
            spoil(node.folder / path)
        node.daemon.start()
        node.until(node.answers, f"the daemon starts with everything {spoil.__name__.strip('_')}")
        known = {one.incident_id for one in node.incidents()}
        assert second.incident_id in known, f"{spoil.__name__}: the incident whose files are whole is not known"
        seconds = told_after(node, f"after{spoil.__name__.replace('_', '-')}", "killed")
        yield f"{len(chosen)} files {spoil.__name__.strip('_')}: the rest is known, and told after {seconds:.1f} s"
        count += len(chosen)
        node.daemon.stop()
        node.end_jobs()
    yield f"{count} spoiled files"


_OF_A_BUNDLE = ("incident.json", "bundle.json", "verdict.json", "timeline.jsonl", "config.json")


def _restore(node: Node, good: Path) -> None:
    for name, folder in (("state", node.state), ("run", node.run)):
        shutil.rmtree(folder)
        shutil.copytree(good / name, folder)


# In every process of ours, first of all: the wall clock is off by what a file says.
_OTHER_CLOCK = """
import os, time
_now = time.time_ns
def time_ns():
    try:
        with open(os.environ["CHAOS_CLOCK"]) as file:
            return _now() + int(float(file.read() or 0) * 1e9)
    except (OSError, ValueError):
        return _now()
time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9
"""


def clock_jumps(node: Node) -> Iterator[str]:
    """The wall clock of daemon and privileged side, by hours in both directions, while they run."""
    file, site = node.folder / "clock", node.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_OTHER_CLOCK)
    file.write_text("0")
    for unit in (node.daemon, node.side):
        unit.stop()
        before = unit.environment.get("PYTHONPATH", "")
        unit.environment |= {"CHAOS_CLOCK": str(file), "PYTHONPATH": f"{site}:{before}".rstrip(":")}
    node.until(node.answers, "the daemon runs by another clock")
    for hours in (5, -7, 23, 0):
        file.write_text(str(hours * 3600))
        yield f"told after {told_after(node, f'clock{hours}', 'stopped'):.1f} s with the clock {hours:+d} h off"
        opened = node.incidents(f"clock{hours}")[0].opened_at
        yield f"opened at {opened}, as that clock says"
    open_jobs = {one.training_job for one in node.incidents() if one.state == "open"}
    assert len(open_jobs) == 4, f"open incidents of {open_jobs}"
