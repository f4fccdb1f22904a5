"""The self-test's own ranks over gloo, whole and with something planted; every rank imports torch: seconds each."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stallwatch.selftest.result import SelfTestReport
from tests.integration.selftest.jobs import PROGRAMS, selftest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the ranks run torch"),
]

_SMALL = 4096


def test_every_step_is_right_on_gloo() -> None:
    report = selftest(None, ranks=2, backend="gloo", most_bytes=_SMALL)
    assert report.ok is True, (report.problem, report.trial and report.trial.failure)
    assert report.trial is not None
    names = {step.step for step in report.trial.steps}
    assert {"store", "init", "all_reduce", "reduce_scatter", "all_to_all", "exchange +1", "sub-groups halves"} <= names
    assert {step.bytes for step in report.trial.steps if step.step == "all_reduce"} == {8, 64, 512, 4096}
    assert any(step.bus_bytes_per_second for step in report.trial.steps)


def test_a_stalling_rank_is_named_by_evidence() -> None:
    report = selftest("stalls", ranks=4, backend="gloo", most_bytes=_SMALL, step_seconds=4.0)
    assert report.trial is not None
    failure = report.trial.failure
    assert failure is not None
    assert failure.kind == "stalled"
    assert failure.step == "all_reduce"
    assert failure.culprits == (2,)
    assert failure.verdict is not None
    assert failure.verdict.cause == "not_entered"
    assert "wait_for_a_reply" in failure.summary


def test_a_broken_collective_is_wrong_where_it_is_broken() -> None:
    report = selftest("corrupts", ranks=2, backend="gloo", most_bytes=_SMALL)
    assert report.trial is not None
    failure = report.trial.failure
    assert failure is not None
    assert (failure.kind, failure.step, failure.bytes, failure.culprits) == ("wrong", "all_to_all", 4096, (1,))
    assert {step.outcome for step in report.trial.steps if step.step == "all_reduce"} == {"ok"}


def test_a_rank_that_never_arrives_is_named() -> None:
    report = selftest("never_arrives", ranks=4, backend="gloo", start_seconds=25.0, step_seconds=4.0)
    assert report.trial is not None
    failure = report.trial.failure
    assert failure is not None
    assert (failure.kind, failure.step, failure.culprits) == ("absent", "meeting", (3,))


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_a_rank_in_another_network_cannot_reach_the_store() -> None:
    report = selftest("other_network", ranks=2, backend="gloo", step_seconds=4.0)
    assert report.trial is not None
    failure = report.trial.failure
    assert failure is not None
    assert failure.culprits == (1,)
    assert "store" in failure.summary


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_ports_that_are_blocked_between_ranks_fail_at_init(tmp_path: Path) -> None:
    # A firewall that lets the store's port through and nothing else: the rule knows ports without any netfilter.
    script = tmp_path / "blocked.sh"
    script.write_text(
        "set -e\n"
        "ip link set lo up\n"
        "echo '20000 20999' > /proc/sys/net/ipv4/ip_local_port_range\n"
        "ip rule add pref 100 lookup local\n"
        "ip rule del pref 0\n"
        "ip rule add pref 10 ipproto tcp sport 30000-31000 dport 30000-31000 unreachable\n"
        f"exec {sys.executable} -m stallwatch.cli selftest --json --python {sys.executable} --ranks 2 --backend gloo "
        f"--step-seconds 10 --rank-program {PROGRAMS / 'other_ports.py'}\n",
        encoding="ascii",
    )
    done = subprocess.run(["unshare", "-n", "sh", str(script)], capture_output=True, check=False, timeout=100)
    if not done.stdout:
        pytest.skip(f"no network namespace with rules here: {done.stderr.decode(errors='replace')[-200:]}")
    report = msgspec.json.decode(done.stdout, type=SelfTestReport)
    assert done.returncode == 10
    assert report.trial is not None
    assert report.trial.failure is not None
    assert report.trial.failure.step == "init"
    assert "unreachable" in report.trial.failure.summary


def test_bisection_finds_a_bad_interface_of_the_environment() -> None:
    report = selftest(None, {"GLOO_SOCKET_IFNAME": "nosuch0"}, ranks=2, backend="gloo", bisect=True, step_seconds=10.0)
    assert report.trial is not None
    assert report.trial.failure is not None
    assert report.trial.failure.step == "init"
    assert report.bisection is not None
    outcomes = {trial.change: trial.outcome for trial in report.bisection.trials}
    assert outcomes["once more, unchanged"] == "fails"
    assert outcomes["without GLOO_SOCKET_IFNAME=nosuch0"] == "passes"
    assert "GLOO_SOCKET_IFNAME=nosuch0 of this environment is what breaks" in " ".join(report.bisection.conclusions)
