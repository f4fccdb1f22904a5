"""Scripts of deploy/ are sound, and the one for Slurm drains for a proof and for nothing less."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    assert SHELLCHECK is not None
    # SC2154: what is assigned in a file that is sourced by a path of its own.
    command = [SHELLCHECK, "--severity=warning", "--exclude=SC2154", "-x", str(path)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


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
