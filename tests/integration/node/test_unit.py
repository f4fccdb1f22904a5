"""The systemd unit: what it grants is what the daemon uses, and nothing in it takes away what the daemon needs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.node.service import UNIT, unit

SYSUSERS = UNIT.with_suffix(".sysusers")
NEEDED = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_KILL", "CAP_SYSLOG"}


def test_systemd_reads_the_unit_without_a_complaint(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    program = tmp_path / "stallwatch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    # It insists that the program is there; everything else is the unit as it ships.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/stallwatch/bin/stallwatch", str(program))
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_user_is_made_by_sysusers(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("no systemd-sysusers here")
    (tmp_path / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(SYSUSERS)], check=True, capture_output=True)
    users = [line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    service = unit("Service")
    assert service["User"] == service["Group"] == ["stallwatch"]
    assert users == ["stallwatch"]


def test_it_grants_four_capabilities_and_no_way_to_more() -> None:
    service = unit("Service")
    assert set(service["AmbientCapabilities"][0].split()) == NEEDED
    assert set(service["CapabilityBoundingSet"][0].split()) == NEEDED
    assert service["NoNewPrivileges"] == ["yes"]


def test_the_loop_feeds_the_watchdog_and_the_run_directory_outlives_a_restart() -> None:
    service = unit("Service")
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert int(service["WatchdogSec"][0]) >= 10, "a loaded node may skip ticks"
    assert service["RuntimeDirectoryPreserve"] == ["yes"]
    assert {"RuntimeDirectory", "StateDirectory"} <= service.keys()


@pytest.mark.parametrize(
    ("directive", "takes"),
    [
        ("PrivateDevices", "GPUs and the kernel log"),
        ("ProtectClock", "the same, before systemd 253"),
        ("DeviceAllow", "every device that it does not name"),
        ("ProtectKernelLogs", "the kernel log"),
        ("PrivateTmp", "records in /dev/shm, py-spy's look at files in /tmp"),
        ("ProtectProc", "other users' processes, where hidepid is not"),
        ("PrivateUsers", "every capability over other users"),
        ("PrivateNetwork", "alerts and metrics"),
        ("MemoryDenyWriteExecute", "ctypes"),
    ],
)
def test_it_does_not_take_away_what_the_daemon_needs(directive: str, takes: str) -> None:
    assert directive not in unit("Service"), takes
