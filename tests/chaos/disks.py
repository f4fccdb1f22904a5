"""Disks under the state directory that are full, read-only, frozen or gone."""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.node import ROOT, Node, RankProcesses, told_after

_FREEZE_SECONDS = 40.0
_RHYTHM_SECONDS = 10.0  # in which limits are learned
_PATIENCE_SECONDS = 240.0
_SECOND_SECONDS = 20.0  # how long a second message is waited for
SAVES = ROOT / "tests" / "programs" / "saves_often.py"


def full(node: Node) -> Iterator[str]:
    with mounted(node, "-t", "tmpfs", "-o", "size=256k", "tmpfs"):
        filler = node.state / "filler"
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 1024)
        yield f"told after {told_after(node, 'full', 'stopped'):.1f} s with a full disk"
        filler.unlink()
        yield from _caught_up(node, "full")
        node.daemon.stop()


def read_only(node: Node) -> Iterator[str]:
    with mounted(node, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        subprocess.run(["mount", "-o", "remount,ro", str(node.state)], check=True)
        yield f"told after {told_after(node, 'read-only', 'stopped'):.1f} s with a disk that is read-only"
        subprocess.run(["mount", "-o", "remount,rw", str(node.state)], check=True)
        yield from _caught_up(node, "read-only")
        node.daemon.stop()


def hanging(node: Node) -> Iterator[str]:
    """A frozen file system: who writes there waits in the kernel, where no signal reaches him."""
    with mounted(node, "-o", "loop", str(_image(node))):
        subprocess.run(["fsfreeze", "-f", str(node.state)], check=True, timeout=30)
        try:
            yield f"told after {told_after(node, 'frozen', 'stopped'):.1f} s with a disk that hangs"
            ticks = _ticks(node)
            until = time.monotonic() + _FREEZE_SECONDS
            while time.monotonic() < until:
                assert node.client.healthy(), "the loop waits for the disk"
                time.sleep(0.5)
            yield f"{_ticks(node) - ticks:.0f} ticks in {_FREEZE_SECONDS:.0f} s of it"
        finally:
            subprocess.run(["fsfreeze", "-u", str(node.state)], check=True, timeout=30)
        yield from _caught_up(node, "frozen")
        node.daemon.stop()


def shared(node: Node) -> Iterator[str]:
    """Three jobs save to one file system, which stops answering and comes back: one message names it and them."""
    names, folder = ("train-a", "train-b", "train-c"), node.folder / "checkpoints"
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", str(_image(node)), str(folder)], check=True, timeout=30)
    try:
        for name in names:
            program = (str(SAVES), str(node.folder / f"{name}.store"), str(folder))
            node.jobs.append(RankProcesses(node, name, program=program))
        steps = ["stepping"] * 2
        node.until(lambda: all([rank.state for rank in node.ranks(name)] == steps for name in names), "all step")
        time.sleep(_RHYTHM_SECONDS)
        subprocess.run(["fsfreeze", "-f", str(folder)], check=True, timeout=30)
        began = time.monotonic()
        try:
            node.until(lambda: len(_told_jobs(node)) == len(names), "all are told of", _PATIENCE_SECONDS)
            yield f"all told {time.monotonic() - began:.1f} s after it froze"
            time.sleep(_SECOND_SECONDS)
            node.told()
            said = [json.loads(text)["text"] for text in node.slack_texts]
            assert len(said) == 1, f"{len(said)} messages: {said}"
            assert all(name in said[0] for name in ("3 jobs wait for ext4", *names)), said[0]
            yield f"one message: {said[0].splitlines()[0]}"
        finally:
            subprocess.run(["fsfreeze", "-u", str(folder)], check=True, timeout=30)
        node.until(lambda: all(one.state == "resolved" for one in node.incidents()), "all move again")
        node.until(lambda: node.told() is not None and len(node.slack_texts) > 1, "the end is told")
        time.sleep(_SECOND_SECONDS)
        node.told()
        assert len(node.slack_texts) == 2, node.slack_texts[1:]
        yield f"one message of its end: {json.loads(node.slack_texts[1])['text'].splitlines()[0]}"
    finally:
        node.end_jobs()
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=30)


def _told_jobs(node: Node) -> set[str]:
    """By the webhook, which tells of each incident."""
    return {one.job for one in node.told() if one.step == "told"}


def _image(node: Node) -> Path:
    image = node.folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=60)
    return image


def vanished(node: Node) -> Iterator[str]:
    for name, directory in (("state", node.state), ("ranks", node.ranks_directory), ("run", node.run)):
        shutil.rmtree(directory)
        if name == "ranks":  # as systemd-tmpfiles makes it again; hooks and daemon find it
            directory.mkdir()
            directory.chmod(0o1777)
        if name == "run":
            node.daemon.stop()  # its socket is gone with it, for good: whoever removes that starts it again
            directory.mkdir()
            node.until(node.answers, "the daemon is there again")
        yield f"told after {told_after(node, f'without-{name}', 'killed'):.1f} s without its {name} directory"


def _caught_up(node: Node, job: str) -> Iterator[str]:
    """The disk is well again: what it missed is written, and a daemon that starts anew knows it."""
    node.until(
        lambda: any(sensor.sensor == "state_directory" and sensor.up for sensor in node.client.ranks().sensors),
        "the disk is known to be well",
    )
    (incident,) = node.incidents(job)
    file = node.state / "incidents" / incident.incident_id / "incident.json"
    node.until(file.exists, "what the disk has missed is written", 150)
    node.daemon.kill()
    node.until(node.answers, "the daemon is there again")
    node.until(lambda: bool(node.incidents(job)), "it knows of the incident")
    (after,) = node.incidents(job)
    assert after.incident_id == incident.incident_id
    told = [one for one in node.told() if one.job == job and one.step == "told"]
    assert len(told) == 1, f"told {len(told)} times"
    yield "written when the disk was well again, known after a restart, told once"


def _ticks(node: Node) -> float:
    line = next(line for line in node.client.metrics().splitlines() if line.startswith("stallwatch_ticks_total "))
    return float(line.split()[1])


@contextlib.contextmanager
def mounted(node: Node, *arguments: str) -> Iterator[Path]:
    """The state directory on a file system of its own, with the daemon started on it."""
    node.daemon.stop()
    subprocess.run(["mount", *arguments, str(node.state)], check=True, timeout=30)
    try:
        node.daemon.start()
        node.until(node.answers, "the daemon is ready")
        yield node.state
    finally:
        node.end_jobs()
        node.daemon.stop()
        subprocess.run(["umount", "--lazy", str(node.state)], check=False, timeout=30)
