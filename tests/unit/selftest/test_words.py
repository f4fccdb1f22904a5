"""The report as a person reads it."""

import msgspec

from stallwatch.selftest.result import (
    Bisection,
    BisectTrial,
    Device,
    Failure,
    NcclTests,
    NodeFinding,
    SelfTestReport,
    StepResult,
    TrialResult,
)
from stallwatch.selftest.words import conclusion, lines

STEPS = (
    StepResult("all_reduce", 8, "ok", (0, 1), 0.1),
    StepResult("all_reduce", 4096, "ok", (0, 1), 0.1),
    StepResult("all_reduce bandwidth", 4096, "ok", (0, 1), 0.1, 2_500_000_000),
    StepResult("reduce_scatter", 8, "unsupported", (0, 1), 0.1, None, "Backend gloo does not support reduce_scatter"),
)
GOOD = SelfTestReport(1, "0", True, "node7", trial=TrialResult("gloo", 2, 1.0, STEPS, ()), seconds=4.0)


def test_one_line_an_operation_with_its_bandwidth() -> None:
    text = list(lines(GOOD))
    (line,) = (line for line in text if line.strip().startswith("all_reduce"))
    assert "8 B to 4 KiB" in line
    assert "2.50 GB/s at 4 KiB" in line
    assert any("not tested: Backend gloo" in line for line in text)
    assert text[-1] == "OK: 3 steps on 2 ranks are right, in 4 s; not tested: reduce_scatter."


def test_a_failure_names_step_and_rank() -> None:
    trial = TrialResult("gloo", 2, 1.0, STEPS, (), Failure("stalled", "gather", 64, (1,), "gather 64 B did not end"))
    report = msgspec.structs.replace(GOOD, ok=False, trial=trial)
    assert conclusion(report) == "NOT OK: stalled at gather 64 B, rank 1, in 4 s."
    assert "What failed: gather 64 B did not end" in list(lines(report))


def test_our_own_failure_says_nothing_about_the_node() -> None:
    report = SelfTestReport(1, "0", None, "node7", problem="the disk is full")
    assert conclusion(report).startswith("No result")
    assert "says nothing about node7" in conclusion(report)
    assert "the disk is full" in conclusion(report)


def test_nccl_tests_alone_can_fail() -> None:
    report = msgspec.structs.replace(GOOD, ok=False, nccl_tests=NcclTests(False, None, "3 values out of bounds"))
    assert "nccl-tests failed" in conclusion(report)
    assert any("FAILED: 3 values" in line for line in lines(report))


def test_trials_of_a_bisection_are_listed() -> None:
    trials = (
        BisectTrial("once more, unchanged", {}, 2, (), "fails", "rank 0 failed"),
        BisectTrial("NVLS off", {"NCCL_NVLS_ENABLE": "0"}, 2, (), "passes"),
    )
    report = msgspec.structs.replace(GOOD, bisection=Bisection(trials, ("It passes with NVLS off.",)))
    text = list(lines(report))
    assert any("once more" in line and "fails: rank 0 failed" in line for line in text)
    assert "It passes with NVLS off." in text


def test_the_report_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(GOOD), type=SelfTestReport) == GOOD


def test_everybody_is_named_with_pid_host_and_device_and_the_place_where_they_meet() -> None:
    devices = (Device(0, "node7", 41, 2, "H100", "GPU-a"), Device(1, "node7", 42))
    trial = msgspec.structs.replace(TrialResult("nccl", 2, 1.0, STEPS, devices), master="127.0.0.1:41234")
    text = list(lines(msgspec.structs.replace(GOOD, trial=trial)))
    assert "  rank 0: pid 41 on node7, GPU 2 H100 GPU-a" in text
    assert "  rank 1: pid 42 on node7, CPU" in text
    assert "  master: 127.0.0.1:41234" in text


def test_what_is_wrong_with_the_node_comes_before_the_failure_that_it_caused() -> None:
    failure = Failure("error", "device", None, (0,), "rank 0 failed in step device")
    trial = TrialResult("nccl", 2, 1.0, STEPS, (), failure)
    found = NodeFinding("driver_answers", "error", "NVIDIA driver", "NVML refuses: mismatch.", "why", "reboot")
    report = msgspec.structs.replace(GOOD, ok=False, trial=trial, node_findings=(found,))
    text = list(lines(report))
    assert text[0] == "This node, error: NVIDIA driver: NVML refuses: mismatch."
    assert "What failed: rank 0 failed in step device" in text
    assert trial.failed_at_start
    assert not GOOD.trial or not GOOD.trial.failed_at_start


def test_a_test_that_did_not_even_begin_asks_for_the_node_s_faults_and_names_them_first() -> None:
    found = NodeFinding("wrong_value", "error", "this shell", "TORCH_DISTRIBUTED_DEBUG=DETAILS is none.", "w", "unset")
    report = SelfTestReport(1, "1", None, "node7", problem="python cannot import torch: must be OFF, INFO, or DETAIL")
    assert report.failed_at_start
    assert "says nothing about node7" in list(lines(report))[-1]
    text = list(lines(msgspec.structs.replace(report, node_findings=(found,))))
    assert text[0].startswith("This node, error: this shell: TORCH_DISTRIBUTED_DEBUG=DETAILS")
    assert "says nothing" not in text[-1]
    assert "cannot import torch" in text[-1]
    assert not GOOD.failed_at_start
