"""Scripts of deploy/ are sound, and the one for Slurm drains for a proof and for nothing less."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

DEPLOY = Path(__file__).parents[3] / "deploy"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    assert SHELLCHECK is not None
    # SC2154: what is assigned in a file that is sourced by a path of its own.
    command = [SHELLCHECK, "--severity=warning", "--exclude=SC2154", "-x", str(path)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize(
    "path", [*sorted(DEPLOY.rglob("*.sh")), DEPLOY.parent / "tests" / "run.sh"], ids=lambda path: path.name
)
def test_who_asks_a_script_for_help_gets_it_and_nothing_is_done(path: Path, tmp_path: Path) -> None:
    shell = path.read_text().splitlines()[0].rpartition("/")[2].removeprefix("env ")
    for asked in ("--help", "-h"):
        # No command but those that print, so that nothing else can be called.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [f"/bin/{shell}", str(path), asked]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=10)
        assert (done.returncode, done.stderr) == (0, "")
        first = path.read_text().splitlines()[1].removeprefix("# ")
        assert done.stdout.startswith(first)
        assert not [line for line in done.stdout.splitlines() if line.startswith(("#", "set ", "case "))]
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [["--nonsense"], [], ["a", "b"]])
def test_wheels_are_put_into_no_folder_of_an_options_name(wrong: list[str], tmp_path: Path) -> None:
    done = subprocess.run(["/bin/bash", str(DEPLOY / "wheels.sh"), *wrong], cwd=tmp_path, capture_output=True)
    assert done.returncode == 64
    assert list(tmp_path.iterdir()) == []


def test_wheels_made_by_one_python_are_enough_for_an_earlier_of_its_minor_version() -> None:
    """pip takes what the Python needs that runs it, and Debian 12 has 3.11.2."""
    lines = (DEPLOY / "requirements.lock").read_text().splitlines()
    asked = [Requirement(line.removesuffix("\\")) for line in lines if "==" in line]
    some = [
        one.name
        for one in asked
        if one.marker and one.marker.evaluate({"python_full_version": "3.11.0"})
        if not one.marker.evaluate({"python_full_version": "3.11.9"})
    ]
    assert some
    script = (DEPLOY / "wheels.sh").read_text()
    assert [name for name in some if f" {name}" not in script] == []


@pytest.mark.parametrize(
    ("wheel", "links", "is_there"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "{}", True),
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "https://index.example/x file://{}", True),
        ("torch-2.13.0+cu130-cp311-cp311-linux_x86_64.whl", "{}", False),
        ("numpy-2.0.0-cp311-cp311-linux_x86_64.whl", "{}", False),
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "", False),
    ],
)
def test_a_cpu_build_of_torch_that_is_at_hand_is_seen(wheel: str, links: str, is_there: bool, tmp_path: Path) -> None:
    (tmp_path / wheel).touch()
    asked = f"source {DEPLOY / 'environment.sh'}; has_torch ${{PIP_FIND_LINKS:-}}"
    environment = {"PATH": "/usr/bin:/bin", "PIP_FIND_LINKS": links.format(tmp_path)}
    assert (subprocess.run(["/bin/bash", "-c", asked], env=environment).returncode == 0) == is_there


class Node:
    """A node whose stallwatch and scontrol are scripts of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "asked"
        self.answers("echo 'n1: no certain hardware verdict'; exit 0", "echo 'NodeName=n1 State=IDLE'")

    def answers(self, stallwatch: str, scontrol: str) -> None:
        for name, body in (("stallwatch", stallwatch), ("scontrol", scontrol)):
            script = self.folder / name
            script.write_text(f'#!/bin/sh\nprintf "%s|" {name} "$@" >>"{self.log}"; echo >>"{self.log}"\n{body}\n')
            script.chmod(0o755)

    def run(self, **more: str) -> list[str]:
        """Return what was asked of scontrol but for looks."""
        self.log.write_text("")
        environment = {
            "PATH": "/usr/bin:/bin",
            "STALLWATCH": str(self.folder / "stallwatch"),
            "STALLWATCH_SCONTROL": str(self.folder / "scontrol"),
            "SLURMD_NODENAME": "n1",
            **more,
        }
        done = subprocess.run(
            [str(DEPLOY / "slurm" / "health-check.sh")], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, "another code of an epilog drains the node by itself"
        self.said = done.stdout
        return [line for line in self.log.read_text().splitlines() if line.startswith("scontrol|update")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


REASON = 'gpu_fault in a-1: Rank 3 has lost GPU 2 (XID 79) $(reboot) "quoted"'
UNFIT = f"echo '{REASON}'\n[ $1 = node-check ] && exit 10\nexit 0"


def test_a_proof_drains_the_node_once_and_says_why(node: Node) -> None:
    node.answers(UNFIT, "echo 'NodeName=n1 State=IDLE'")
    (asked,) = node.run()
    assert "NodeName=n1|State=DRAIN|Reason=stallwatch: gpu_fault in a-1: Rank 3 has lost GPU 2 (XID 79)" in asked
    assert "$" not in asked
    assert '"' not in asked
    assert "stallwatch|maintenance|--for|12h" in node.log.read_text()
    assert "release-gpus" not in node.log.read_text(), "other jobs may run, and what their GPUs say is wanted"


def test_after_the_job_the_gpus_of_a_node_that_is_drained_are_let_go_for_their_reset(node: Node) -> None:
    node.answers(UNFIT, "echo 'NodeName=n1 State=IDLE'")
    assert len(node.run(SLURM_JOB_ID="7")) == 1
    assert "stallwatch|release-gpus|--for|12h" in node.log.read_text()


def test_one_that_is_drained_already_keeps_its_reason(node: Node) -> None:
    node.answers(UNFIT, "echo 'NodeName=n1 State=IDLE+DRAIN'")
    assert node.run() == []


@pytest.mark.parametrize("code", [0, 1, 64, 69, 70])
def test_no_other_end_drains(node: Node, code: int) -> None:
    node.answers(f"echo whatever; exit {code}", "exit 0")
    assert node.run() == []


def test_where_it_is_not_installed_nothing_happens(node: Node) -> None:
    assert node.run(STALLWATCH="/nowhere") == []


def test_it_can_be_tried(node: Node) -> None:
    node.answers(UNFIT, "exit 0")
    assert node.run(STALLWATCH_DRY_RUN="1") == []
    assert node.said.startswith("would drain n1: stallwatch: gpu_fault")
