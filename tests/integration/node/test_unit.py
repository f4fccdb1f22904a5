"""The systemd units: what they grant is what each side uses, and nothing in them takes away what it needs."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.integration.node.service import (
    ALICE,
    PRIVILEGED_UNIT,
    SERVICE,
    UNIT,
    UNITS,
    as_unit,
    as_user,
    need_root,
    unit,
)
from tests.programs.everybody import PythonForEverybody

SYSUSERS, TMPFILES = UNIT.with_suffix(".sysusers"), UNIT.with_suffix(".tmpfiles")
RANKS = Path("/run/stallwatch/ranks")
NEEDED = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_KILL", "CAP_SYSLOG"}
NAMES = ("stallwatch.service", "stallwatch-privileged.service", "stallwatch-privileged.socket")


def test_systemd_reads_the_units_without_a_complaint(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    program = tmp_path / "stallwatch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in NAMES:
        # It insists that the program is there; everything else is the unit as it ships.
        text = (UNITS / name).read_text(encoding="utf-8").replace("/opt/stallwatch/bin/stallwatch", str(program))
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in NAMES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("path", "most"), [(UNIT, 2.0), (PRIVILEGED_UNIT, 2.6)])
def test_systemd_finds_little_that_a_unit_leaves_open(path: Path, most: float) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= most


def test_the_users_are_made_by_sysusers(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("no systemd-sysusers here")
    (tmp_path / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(SYSUSERS)], check=True, capture_output=True)
    users = [line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    assert sorted(users) == ["stallwatch", "stallwatch-privileged"]
    assert unit("Service")["User"] == unit("Service")["Group"] == ["stallwatch"]
    assert unit("Service", PRIVILEGED_UNIT)["User"] == ["stallwatch-privileged"]
    assert unit("Service", PRIVILEGED_UNIT)["Group"] == ["stallwatch"], "it reads the configuration"


def test_one_has_four_capabilities_and_the_other_none_and_neither_a_way_to_more() -> None:
    service = unit("Service", PRIVILEGED_UNIT)
    assert set(service["AmbientCapabilities"][0].split()) == NEEDED
    assert set(service["CapabilityBoundingSet"][0].split()) == NEEDED
    assert "AmbientCapabilities" not in unit("Service")
    assert unit("Service")["CapabilityBoundingSet"] == [""]
    for path in (UNIT, PRIVILEGED_UNIT):
        assert unit("Service", path)["NoNewPrivileges"] == ["yes"]
    assert unit("Service", PRIVILEGED_UNIT)["RestrictAddressFamilies"] == ["none"]


def test_the_daemon_finds_the_socket_that_only_its_user_may_use() -> None:
    listening = unit("Socket", UNITS / "stallwatch-privileged.socket")
    path = listening["ListenSequentialPacket"][0]
    assert unit("Service")["Environment"] == [f"STALLWATCH_DAEMON_PRIVILEGED_SOCKET={path}"]
    assert (listening["SocketUser"], listening["SocketMode"]) == (unit("Service")["User"], ["0600"])
    assert "--user stallwatch" in unit("Service", PRIVILEGED_UNIT)["ExecStart"][0]


def test_the_loop_feeds_the_watchdog_and_the_run_directories_outlive_a_restart() -> None:
    service = unit("Service")
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert int(service["WatchdogSec"][0]) >= 10, "a loaded node may skip ticks"
    assert service["RuntimeDirectoryPreserve"] == ["yes"]
    assert service["RuntimeDirectory"] == ["stallwatch/daemon"]
    assert "StateDirectory" in service


def test_no_unit_is_given_the_files_of_jobs_when_its_user_changes() -> None:
    """systemd makes all that lies below a directory of a unit its user's."""
    bases = {"RuntimeDirectory": "/run", "StateDirectory": "/var/lib", "CacheDirectory": "/var/cache"}
    given = [
        f"{base}/{name}"
        for path in (UNIT, PRIVILEGED_UNIT)
        for key, base in bases.items()
        for names in unit("Service", path).get(key, [])
        for name in names.split()
    ]
    assert not [one for one in given if RANKS.is_relative_to(one)]
    assert unit("Service", PRIVILEGED_UNIT)["ReadWritePaths"] == [str(RANKS)]
    assert unit("Unit", PRIVILEGED_UNIT)["AssertPathIsDirectory"] == [str(RANKS)]


@pytest.mark.skipif(os.geteuid() != 0, reason="plays several users")
def test_an_upgrade_in_place_leaves_the_records_of_running_jobs_to_their_users(folder_for_all: Path) -> None:
    """From a daemon of one unit, whose user had it all."""
    if shutil.which("systemd-tmpfiles") is None or shutil.which("systemd-sysusers") is None:
        pytest.skip("no systemd-tmpfiles here")
    before = 990
    (folder_for_all / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={folder_for_all}", str(SYSUSERS)], check=True, capture_output=True)
    users = {line.split(":")[0]: line.split(":") for line in (folder_for_all / "etc/passwd").read_text().splitlines()}
    privileged = int(users["stallwatch-privileged"][2])
    ranks = folder_for_all / RANKS.relative_to("/")
    (ranks / ".daemon").mkdir(parents=True)
    for path in (ranks.parent, ranks, ranks / ".daemon"):
        os.chown(path, before, before)
    ranks.chmod(0o1777)
    record = ranks / "rank-0-7-0123456789abcdef.beat"
    record.touch()
    os.chown(record, ALICE, ALICE)
    for _ in range(2):  # and at every boot
        subprocess.run(["systemd-tmpfiles", "--create", f"--root={folder_for_all}", str(TMPFILES)], check=True)
        assert (ranks.parent.stat().st_uid, stat.S_IMODE(ranks.parent.stat().st_mode)) == (0, 0o755)
        assert (ranks.stat().st_uid, stat.S_IMODE(ranks.stat().st_mode)) == (privileged, 0o1777)
        assert record.stat().st_uid == ALICE
    prepares = "import pathlib, stallwatch.node.heartbeat_file as h, sys; h.prepare(pathlib.Path(sys.argv[1]))"
    python = need_root()
    done = subprocess.run(
        [*as_user(privileged), *python.command, "-c", prepares, str(ranks)],
        env=python.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (ranks / ".daemon").stat().st_uid == privileged, "requests are its own"


@pytest.mark.parametrize(
    ("directive", "takes"),
    [
        ("PrivateDevices", "GPUs and the kernel log"),
        ("ProtectKernelLogs", "the kernel log"),
        ("ProtectProc", "other users' processes, where hidepid is not"),
        ("ProcSubset", "what NVML reads of the driver"),
        ("PrivateUsers", "every capability over other users"),
        ("PrivateNetwork", "the node's network counters, and whose network a rank has"),
    ],
)
def test_the_privileged_side_keeps_what_it_reads(directive: str, takes: str) -> None:
    assert directive not in unit("Service", PRIVILEGED_UNIT), takes
    assert f"# {directive}=" in PRIVILEGED_UNIT.read_text(encoding="utf-8"), "said where it is missed"


@pytest.mark.parametrize(
    ("directive", "takes"),
    [
        ("PrivateNetwork", "alerts and metrics"),
        ("IPAddressDeny", "the same"),
        ("PrivateUsers", "who asks at the control socket"),
        ("ProcSubset", "its own memory limits"),
    ],
)
def test_the_daemon_keeps_its_network_and_knows_who_asks(directive: str, takes: str) -> None:
    assert directive not in unit("Service"), takes
    assert directive in UNIT.read_text(encoding="utf-8"), "said where it is missed"


@pytest.mark.parametrize("path", [UNIT, PRIVILEGED_UNIT])
def test_a_unit_with_a_tmp_of_its_own_still_finds_a_stallwatch_that_was_cloned_below_tmp(
    path: Path, python: PythonForEverybody
) -> None:
    with tempfile.TemporaryDirectory(prefix="sw-clone-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "cloned.py").write_text("import os\nprint(sorted(os.listdir('/tmp')))\n")
        environment = {**python.environment, "PYTHONPATH": f"{python.environment['PYTHONPATH']}:{folder}"}
        there = python._replace(environment=environment)
        done = subprocess.run(
            [*as_unit(path, SERVICE, there), *there.command, "-c", "import cloned"],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.stderr == ""
        assert Path(folder).name in done.stdout
