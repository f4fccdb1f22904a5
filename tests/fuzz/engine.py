"""Real bytes, spoiled: by hypothesis, which shrinks what it finds; or by atheris, where it is installed, which looks
for ways through the code that nothing has taken yet."""

import hashlib
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target

_TOKENS = (
    b"", b"\0", b"\xff", b"\xff\xff\xff\x7f", b"\x80", b"-1", b"0", b"99999999999999999999", b"1e999", b"NaN", b"null",
    b"{}", b"[]", b'""', b"[" * 300, b'{"a":' * 300, b"[" * 9000, b"\x91" * 9000, b"\n", b"\r\n\r\n", b",", b":",
    b"\xed\xa0\x80", b"\\ud800", b"\x1b[31m", b"..", b"/../", b"true", b" " * 100, b"%s", b"\xe2\x80\xa8",
)  # fmt: skip
_MOST_BYTES = 1 << 17
_BATCH = 500


class Found(NamedTuple):
    executions: int
    seconds: float
    crash: bytes | None
    trace: str


@st.composite
def spoiled(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with a few edits; now and then any bytes at all."""
    if draw(st.integers(0, 30)) == 0:
        return draw(st.binary(max_size=400))
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 6))):
        kind, at = draw(st.integers(0, 5)), draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(1, 40))
        if kind == 0:
            data = data[:at] + draw(st.sampled_from(_TOKENS)) + data[at:]
        elif kind == 1:
            data = data[:at] + draw(st.sampled_from(_TOKENS)) + data[at + length :]
        elif kind == 2:
            data = data[:at] + data[at + length :]
        elif kind == 3:
            data = data[:at] + data[at : at + length] * 3 + data[at + length :]
        elif kind == 4:
            data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at + 8 :]
        else:
            data = data[:at] + draw(st.sampled_from(seeds))[at:]
    return data[:_MOST_BYTES]


def once(target: Target, data: bytes) -> None:
    """Raise what is no answer to bytes of others."""
    try:
        target.run(data)
    except target.may_raise:
        pass


def fuzz(name: str, seconds: float, first_seed: int, most: int | None = None) -> Found:
    """Until the time is over, `most` inputs were tried, or one broke something."""
    target = TARGETS[name]
    logging.disable()  # what is unreadable is said each time
    seeds = target.seeds()
    assert seeds, f"{name} has no seeds"
    count, last, began = 0, b"", time.monotonic()
    batch = 0
    while time.monotonic() < began + seconds and (most is None or count < most):

        @seed(first_seed + batch)
        @settings(
            max_examples=_BATCH if most is None else min(_BATCH, most),
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(data=spoiled(seeds))
        def batch_of(data: bytes) -> None:
            nonlocal count, last
            if time.monotonic() > began + seconds:
                return
            count += 1
            last = data
            once(target, data)

        batch += 1
        try:
            batch_of()
        except Exception:  # whatever it is, it is what was looked for; `last` is the smallest
            return Found(count, time.monotonic() - began, last, traceback.format_exc(limit=-6))
    return Found(count, time.monotonic() - began, None, "")


def with_atheris(name: str, seconds: float, folder: Path) -> int:
    """In a process of its own, for it instruments what is imported. `folder` keeps the inputs that go a new way."""
    seeds = folder / name
    seeds.mkdir(parents=True, exist_ok=True)
    for data in TARGETS[name].seeds():
        (seeds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    command = [sys.executable, "-m", "tests.fuzz.coverage_guided", name, str(seeds), f"-max_total_time={int(seconds)}"]
    arguments = [f"-artifact_prefix={folder}/crash-{name}-", "-print_final_stats=1", f"-max_len={_MOST_BYTES}"]
    return subprocess.run([*command, *arguments], check=False, env=os.environ).returncode


def said(name: str, found: Found) -> str:
    rate = found.executions / max(found.seconds, 1e-9)
    line = f"{name}: {found.executions} executions in {found.seconds:.0f} s ({rate:.0f}/s)"
    return line if found.crash is None else f"{line}: CRASH of {found.crash[:200]!r}\n{found.trace}"


def keep(name: str, data: bytes) -> Path:
    path = Path(__file__).with_name("corpus") / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
