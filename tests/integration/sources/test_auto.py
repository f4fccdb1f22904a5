"""An environment that was enabled: ranks of mp.spawn attach by themselves, and their launcher does not."""

import contextlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import psutil
import pytest

from stallwatch.cli.app import run
from stallwatch.demo.job import end_processes
from stallwatch.hook import layout
from stallwatch.node.heartbeat_file import LayoutError, read_heartbeat
from stallwatch.selftest.launching import free_port

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAM = Path(__file__).parents[2] / "programs" / "spawned.py"
SECONDS = 100.0


def test_ranks_of_mp_spawn_attach_by_themselves(tmp_path: Path) -> None:
    venv.create(tmp_path / "jobs", with_pip=False, symlinks=True)
    python = tmp_path / "jobs/bin/python"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    site = next((tmp_path / "jobs/lib").glob("python*/site-packages"))
    (site / "theirs.pth").write_text("".join(f"{path}\n" for path in [*ours, str(Path(layout.__file__).parents[2])]))
    assert run(["auto", "enable", "--python", str(python)]) == 0
    records = tmp_path / "ranks"
    records.mkdir()
    process = subprocess.Popen([python, PROGRAM, str(free_port())], env={**os.environ, "STALLWATCH_DIR": str(records)})
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None
            beats = []
            for path in records.glob("*.beat"):
                with contextlib.suppress(LayoutError):  # it is being created
                    beats.append(read_heartbeat(path))
            found = sorted((beat.rank, beat.world_size, beat.is_child) for beat in beats if beat.world_size > 1)
            if found == [(0, 2, False), (1, 2, False)]:
                break
            assert time.monotonic() < deadline, f"{found} {sorted(records.iterdir())}"
            time.sleep(0.5)
        pids = {read_heartbeat(path).pid for path in records.glob("*.beat")}
        assert process.pid not in pids, "the launcher makes no group"
    finally:
        below = set(psutil.Process(process.pid).children(recursive=True))
        process.kill()
        process.wait()
        end_processes(below)
