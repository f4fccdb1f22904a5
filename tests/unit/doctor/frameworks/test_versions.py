import json
import platform
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.frameworks.versions import (
    Compatible,
    DriverSupportsCuda,
    KnownBugs,
    NewerThanTested,
    TorchPresent,
)
from stallwatch.doctor.surroundings import Question
from stallwatch.doctor.version_numbers import in_range, parse_version
from tests.unit.doctor.fakes import FakeGpus, FakeTraining, Node, gpus, one, training

ASKED = Question(python_given=True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.6.0+cu124", (2, 6, 0)), ("2.29.7-1", (2, 29, 7)), ("v0.19", (0, 19)), ("2.8.0a0", (2, 8, 0)), ("", ())],
)
def test_versions_are_numbers_before_their_build(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers


def test_a_range_holds_its_first_and_not_the_fixed_one() -> None:
    assert in_range("2.29.2", "2.29.2", "2.29.3")
    assert not in_range("2.29.3", "2.29.2", "2.29.3")
    assert in_range("2.99", "2.26.2", "")
    assert not in_range("", "", "")  # unknown is nowhere


def test_no_torch_is_an_error_where_the_interpreter_was_named(node: Node) -> None:
    around = node.around(training=FakeTraining(training(torch="")), question=ASKED)
    assert "not installed" in one(TorchPresent().look(around)).seen
    with pytest.raises(Inapplicable):
        TorchPresent().look(node.around(training=FakeTraining(training(torch=""))))


def test_an_interpreter_that_does_not_answer_is_told_when_named(node: Node) -> None:
    silent = FakeTraining("/venv/bin/python has not answered for 3.5 s")
    assert "has not answered" in one(TorchPresent().look(node.around(training=silent, question=ASKED))).seen
    with pytest.raises(Undetermined):
        TorchPresent().look(node.around(training=silent))


def test_a_build_without_cuda_is_an_error_on_a_node_with_gpus(node: Node) -> None:
    around = node.around(training=FakeTraining(training(cuda="")), gpus=FakeGpus(gpus()))
    assert "has no CUDA, and the node has 2 GPUs" in one(TorchPresent().look(around)).seen
    assert TorchPresent().look(node.around(training=FakeTraining(training(cuda="")))) == ()
    assert TorchPresent().look(node.around(gpus=FakeGpus(gpus()))) == ()


def test_a_driver_older_than_cuda_is_an_error_across_majors_only(node: Node) -> None:
    state = FakeGpus(gpus())  # driver for CUDA 13.0
    assert DriverSupportsCuda().look(node.around(gpus=state, training=FakeTraining(training(cuda="13.2")))) == ()
    found = one(DriverSupportsCuda().look(node.around(gpus=state, training=FakeTraining(training(cuda="14.0")))))
    assert "built with CUDA 14.0, the driver supports CUDA 13.0" in found.seen


def test_conflicts_two_nccls_and_a_preloaded_one_are_told(node: Node) -> None:
    conflict = training(conflicts=("deepspeed 0.12 needs pydantic<2, here is 2.9",))
    assert one(Compatible().look(node.around(training=FakeTraining(conflict)))).remedy.endswith(
        "(`pip check` shows all)"
    )
    two = training(**{"nvidia-nccl-cu11": "2.19.3", "nvidia-nccl-cu12": "2.28.9"})
    assert "Two NCCLs" in one(Compatible().look(node.around(training=FakeTraining(two)))).seen
    preload = node.around({"LD_PRELOAD": "/opt/libnccl.so.2"})
    assert one(Compatible().look(preload)).severity == "info"
    assert Compatible().look(node.around()) == ()


@pytest.mark.parametrize(
    ("torch", "nccl", "variables", "source"),
    [
        ("2.7.0", "2.26.2", {}, "pytorch#154055"),
        ("2.11.0", "2.28.9", {}, "nccl#1762"),
        ("2.8.0", "2.27.3", {}, "large scale"),
        ("2.7.1", "2.25.1", {}, "pytorch#149351"),
        ("2.2.0", "2.19.3", {}, "nccl#1116"),
        ("2.0.1", "2.14.3", {"CUDA_LAUNCH_BLOCKING": "1"}, "nccl#750"),
        ("2.8.0", "2.27.3", {"NCCL_CUMEM_ENABLE": "0"}, "nccl#1721"),
        ("2.6.0+cu124", "2.21.5", {}, "pytorch#150690"),
    ],
)
def test_versions_with_bugs_that_hang_are_told(
    node: Node, torch: str, nccl: str, variables: dict[str, str], source: str
) -> None:
    around = node.around(variables, training=FakeTraining(training(torch, nccl)))
    assert source in " ".join(record.source for record in KnownBugs().look(around))


def test_nvls_counts_on_gpus_that_have_it(node: Node) -> None:
    old = FakeTraining(training("2.0.0", "2.17.1"))
    hopper, ampere = FakeGpus(gpus()), FakeGpus(gpus({"compute_capability": (8, 0)}, {"compute_capability": (8, 0)}))
    told = [
        any("JAX-Toolbox#331" in found.source for found in KnownBugs().look(node.around(training=old, gpus=here)))
        for here in (hopper, ampere)
    ]
    assert told == [True, False]


@pytest.mark.parametrize(("machine", "told"), [("aarch64", True), ("x86_64", False)])
@pytest.mark.parametrize("nccl", ["2.28.9", "2.29.2"])
def test_a_bug_of_one_kind_of_processor_is_told_on_such_nodes(
    node: Node, monkeypatch: pytest.MonkeyPatch, machine: str, told: bool, nccl: str
) -> None:
    """x86's compare-and-swap never fails without a reason: 2.29.2 has nothing there that 2.29.3 has not."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = KnownBugs().look(node.around(training=FakeTraining(training("2.12.0", nccl))))
    assert any("nccl#2353" in record.source for record in found) == told


def test_versions_without_known_bugs_are_silent(node: Node) -> None:
    assert KnownBugs().look(node.around(gpus=FakeGpus(gpus()))) == ()


def test_what_was_not_compared_is_unknown_and_never_right(node: Node) -> None:
    without_packaging = FakeTraining(training(not_compared="ImportError: neither packaging nor pip is installed"))
    with pytest.raises(Undetermined, match="was not compared: ImportError"):
        Compatible().look(node.around(training=without_packaging))
    without_nccl = FakeTraining(training(nccl=""))
    with pytest.raises(Undetermined, match="NCCL's version is not known"):
        KnownBugs().look(node.around(training=without_nccl))
    assert KnownBugs().look(node.around(training=FakeTraining(training(nccl="", cuda="")))) == ()


def test_a_build_that_could_not_be_read_is_unknown_and_not_one_without_cuda(node: Node) -> None:
    unread = FakeTraining(training(cuda="", nccl="", build_unread="PermissionError: torch/version.py"))
    for check in (TorchPresent(), DriverSupportsCuda(), KnownBugs()):
        with pytest.raises(Undetermined, match="PermissionError"):
            check.look(node.around(training=unread, gpus=FakeGpus(gpus())))


def test_an_interpreter_whose_torch_cannot_be_read_says_so(tmp_path: Path) -> None:
    program = resources.files("stallwatch.doctor.frameworks").joinpath("versions_probe.py").read_text(encoding="utf-8")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()  # and no version.py
    done = subprocess.run(
        (sys.executable, "-c", program), env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True, timeout=60
    )
    assert "version.py" in json.loads(done.stdout)["build_unread"]


def test_an_interpreter_without_packaging_says_that_it_compared_nothing(tmp_path: Path) -> None:
    """As training's interpreter runs it, with the three that know requirements hidden."""
    program = resources.files("stallwatch.doctor.frameworks").joinpath("versions_probe.py").read_text(encoding="utf-8")
    for name in ("packaging", "pip", "setuptools"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden')\n")
    done = subprocess.run(
        (sys.executable, "-c", program), env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True, timeout=60
    )
    assert "neither packaging nor pip" in json.loads(done.stdout)["not_compared"]


@pytest.mark.parametrize(
    ("torch", "nccl", "subjects"),
    [("2.14.1+cu130", "2.28.9", []), ("2.99.0", "2.28.9", ["torch 2.99.0"]), ("2.11.0", "2.99.1", ["NCCL 2.99.1"])],
)
def test_versions_that_nobody_has_tried_are_told(node: Node, torch: str, nccl: str, subjects: list[str]) -> None:
    found = NewerThanTested().look(node.around(training=FakeTraining(training(torch, nccl=nccl))))
    assert [record.subject for record in found] == subjects
    assert all(record.severity == "info" for record in found)
