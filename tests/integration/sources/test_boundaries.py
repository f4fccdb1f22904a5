"""Namespaces, cgroups, users and capabilities for real: what is seen across each, and what is said where nothing is."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle.reader import load
from stallwatch.captures.capture_run import CaptureRun, CaptureState
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection
from stallwatch.diagnosis.activity.threads import main_thread
from stallwatch.formats import py_spy
from stallwatch.loop.privileged import settings_of
from stallwatch.model.evidence import Attempt, ProcessLook
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import ProcessEnd, RankSample
from stallwatch.node.heartbeat_file import prepare
from stallwatch.node.known_ranks import known_file
from stallwatch.node.privileged_client import COMMAND, start_side
from stallwatch.sensors.host import HostSensor
from stallwatch.sensors.ranks import NO_HOOK
from tests.integration.sources.ranks import HOOKED, can, hooked, seen, sensor_of, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces, cgroups and capabilities need root")
CONFIG = Config(capture=CaptureSection(dump_seconds=8.0, stack_seconds=10.0, seconds=60.0))
NOBODY = 65534


@pytest.fixture
def directory(folder_for_all: Path) -> Path:
    folder = folder_for_all / "ranks"  # other users' ranks come here
    prepare(folder)
    return folder


def take(bundle: Path, sample: RankSample, prefix: tuple[str, ...] = (), config: Config = CONFIG) -> CaptureState:
    """By a privileged side that is started with `prefix` before it."""
    known = known_file([sample])
    with open(known, "rb"):
        side = start_side(settings_of(config), known, (*prefix, *COMMAND))
    try:
        run = CaptureRun(bundle, [sample], 1, config, node="node0", side=side)

        def state() -> CaptureState | None:
            return one if (one := run.poll()).done else None

        return until(state, "the look is done")
    finally:
        side.close()


def functions(bundle: Path) -> list[str]:
    stacks = py_spy.parse((bundle / "ranks/0/stacks.json").read_bytes(), "stacks.json")
    return [frame.name for thread in stacks.threads for frame in thread.frames]


def attempts(bundle: Path, what: str) -> list[Attempt]:
    known = msgspec.json.decode((bundle / "ranks/0/attempts.json").read_bytes(), type=list[Attempt])
    return [attempt for attempt in known if attempt.what == what]


def process_of(bundle: Path) -> ProcessLook:
    return msgspec.json.decode((bundle / "ranks/0/process.json").read_bytes(), type=ProcessLook)


def test_rank_in_a_pid_namespace_is_found_by_its_outer_pid_and_looked_at(directory: Path, tmp_path: Path) -> None:
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if not can(*prefix):
        pytest.skip("no PID namespaces here")
    with hooked(directory, *prefix) as rank, sensor_of(directory) as sensor:
        sample = seen(sensor)
        assert isinstance(sample.heartbeat, Known)
        inner = sample.heartbeat.value.pid
        assert inner != sample.pid
        assert os.readlink(f"/proc/{sample.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
        assert sample.pid != rank.process.pid  # that is unshare
        state = take(tmp_path / "b", sample)
        assert state.evidence_complete
        assert process_of(tmp_path / "b").namespace_pid == inner
        assert any(name.endswith("read_shard") for name in functions(tmp_path / "b"))
        (read,) = load([tmp_path / "b"]).ranks
        main = main_thread(read.stacks[0].threads, sample.pid)
        assert main is not None
        assert (main.os_thread_id, main.active) == (sample.pid, False), "it sleeps, whatever py-spy says of its thread"
        os.kill(sample.pid, signal.SIGKILL)

        def end() -> ProcessEnd | None:
            return next(one for one in sensor.read().ranks if one.pid == sample.pid).end

        assert until(end, "its end is seen").exit_signal == signal.SIGKILL


def test_private_shared_memory_that_is_full_is_seen_and_hurts_nobody(directory: Path, tmp_path: Path) -> None:
    fill = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 64k /dev/zero >/dev/shm/full; exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", fill, "sh")
    if not can(*prefix):
        pytest.skip("no mount namespaces here")
    with hooked(directory, *prefix), sensor_of(directory) as sensor:
        take(tmp_path / "b", seen(sensor))
    assert process_of(tmp_path / "b").shared_memory_bytes == (65536, 65536)


def test_hook_whose_own_directory_is_full_lets_the_rank_run(tmp_path: Path) -> None:
    fill = (
        'mount -t tmpfs -o size=64k tmpfs "$STALLWATCH_DIR" && head -c 64k /dev/zero >"$STALLWATCH_DIR"/full; exec "$@"'
    )
    prefix = ("unshare", "--mount", "sh", "-c", fill, "sh")
    if not can("unshare", "--mount"):
        pytest.skip("no mount namespaces here")
    (tmp_path / "full").mkdir()
    with hooked(tmp_path / "full", *prefix) as rank:
        assert rank.process.poll() is None  # it said "ready" after its first step


@contextlib.contextmanager
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 48 MiB. Skip where none can be made."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent = version_1 if (version_1 / "memory.limit_in_bytes").exists() else version_2
    group = parent / f"stallwatch-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if parent is version_1 else "memory.max"
        (group / limit).write_text(str(48 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()


HUNGRY = HOOKED.replace("sys.stdin.read()", "sys.stdin.readline(); held = bytearray(200 << 20)")


def test_rank_that_the_kernel_kills_for_memory_is_told_as_that(directory: Path, tmp_path: Path) -> None:
    with small_cgroup() as group:
        join = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        host = HostSensor()
        before = len(host.read().notices)
        with hooked(directory, *join, program=HUNGRY) as rank, sensor_of(directory) as sensor:
            sample = seen(sensor)
            take(tmp_path / "b", sample)
            look = process_of(tmp_path / "b")
            assert look.memory_bytes is not None and look.memory_bytes[1] == 48 << 20
            assert look.out_of_memory_kills == 0
            assert rank.process.stdin is not None
            rank.process.stdin.write(b"\n")
            rank.process.stdin.flush()

            def end() -> ProcessEnd | None:
                return next(one for one in sensor.read().ranks if one.pid == sample.pid).end

            told = until(end, "its end is seen")
        assert (told.exit_signal, told.out_of_memory) == (signal.SIGKILL, True)
        if not dict(host.read().missing).get("kernel log"):

            def notice() -> bool | None:
                mine = [n for n in host.read().notices[before:] if n.kind == "oom_kill" and n.pid == sample.pid]
                return True if mine and mine[0].constraint == "memcg" else None

            assert until(notice, "the kernel's notice")


def without(*capabilities: str) -> tuple[str, ...]:
    names = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", f"--bounding-set={names}", f"--inh-caps={names}")


def test_reader_without_ptrace_gets_the_stacks_from_the_hook(directory: Path, tmp_path: Path) -> None:
    if not can(*without("sys_ptrace")):
        pytest.skip("no setpriv here")
    with hooked(directory), sensor_of(directory) as sensor:
        state = take(tmp_path / "b", seen(sensor), without("sys_ptrace"))
    assert state.evidence_complete
    assert any(name.endswith("read_shard") for name in functions(tmp_path / "b"))
    *refused, own = attempts(tmp_path / "b", "stacks")
    assert all("CAP_SYS_PTRACE" in attempt.detail for attempt in refused[:1])
    assert own.answered and "by its own hook" in own.detail
    assert not (tmp_path / "b/ranks/0/stacks.error.json").exists()


def test_lines_that_only_the_hook_names_are_read_as_well(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOOKED)
    config = Config(capture=msgspec.structs.replace(CONFIG.capture, py_spy="/nowhere/py-spy"))
    program = f"import runpy; runpy.run_path({str(tmp_path / 'train.py')!r})"
    with hooked(directory, program=program), sensor_of(directory) as sensor:
        take(tmp_path / "b", seen(sensor), config=config)
    assert "sys.stdin.read()" in (tmp_path / "b/ranks/0/sources.json").read_text()


def test_reader_without_ptrace_and_rank_without_hook_say_what_either_needs(directory: Path, tmp_path: Path) -> None:
    if not can(*without("sys_ptrace")):
        pytest.skip("no setpriv here")
    with hooked(directory), sensor_of(directory) as sensor:
        sample = msgspec.structs.replace(seen(sensor), heartbeat=Unavailable(NO_HOOK, 0))
        state = take(tmp_path / "b", sample, without("sys_ptrace"))
    assert not state.evidence_complete
    details = " ".join(attempt.detail for attempt in attempts(tmp_path / "b", "stacks"))
    assert "CAP_SYS_PTRACE" in details
    assert "stallwatch.attach()" in details


def runs_python(prefix: tuple[str, ...], module: str) -> bool:
    command = [*prefix, sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def may_run_again(prefix: tuple[str, ...]) -> bool:
    """Whether such a user may start our interpreter, not only go on in it."""
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    return subprocess.run([*prefix, sys.executable, "-c", again], capture_output=True, check=False).returncode == 0


def test_rank_of_another_user_is_found_and_looked_at(directory: Path, tmp_path: Path) -> None:
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if not can(
        *as_nobody, sys.executable, "-c", "import stallwatch.hook.attachment; import os; os.execlp('true', 'true')"
    ):
        pytest.skip("another user cannot run our interpreter here")
    with hooked(directory, *as_nobody), sensor_of(directory) as sensor:
        sample = seen(sensor)
        assert isinstance(sample.process, Known) and os.stat(f"/proc/{sample.pid}").st_uid == NOBODY
        state = take(tmp_path / "b", sample)
    assert state.evidence_complete
    assert any(name.endswith("read_shard") for name in functions(tmp_path / "b"))


def test_look_by_a_user_without_rights_says_which_it_needs(directory: Path, tmp_path: Path) -> None:
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    bundle = tmp_path / "b"
    if not runs_python(as_nobody, "stallwatch.captures.child") or not may_run_again(as_nobody):
        pytest.skip("another user cannot run our interpreter here")
    with hooked(directory), sensor_of(directory) as sensor:
        also_root = Config(capture=msgspec.structs.replace(CONFIG.capture, ranks_of_root=True))
        take(bundle, seen(sensor), as_nobody, also_root)
    assert "CAP_SYS_PTRACE" in attempts(bundle, "stacks")[0].detail
