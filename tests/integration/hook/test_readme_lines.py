"""Every line that the README prints for who trains runs as it is printed."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.everybody import PythonForEverybody, python_for_everybody
from tests.readme import README

SECONDS = 120.0  # a machine that tests run on may be busy
USER = 64213
# What a training script has besides the lines that the README prints.
TRAINING = """\
import torch.distributed as dist
loader, save, train_step = range(3), (lambda: None), (lambda batch: dist.barrier())
"""
STEPS = """\
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
while not os.path.exists("stop"):
    dist.barrier()
    optimizer.step()
    time.sleep(0.05)
"""
FRAMEWORKS = """\
import sys, types
for name, base in (("lightning.pytorch", "Callback"), ("transformers", "TrainerCallback")):
    sys.modules[name] = module = types.ModuleType(name)
    setattr(module, base, type(base, (), {}))
class Trainer:
    def __init__(self, *_, callbacks): assert callbacks[0].on_train_end is not None
transformers, model, arguments = sys.modules["transformers"], None, None
transformers.Trainer = Trainer
"""


def section(title: str) -> str:
    text = README.read_text(encoding="utf-8")
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def blocks(title: str, language: str = "bash") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    return [text for of, text in found if of == language]


def apart(ranks: Path) -> dict[str, str]:
    """What keeps a job of ours from meeting another one of this machine: a port and a rank directory of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {"PET_MASTER_PORT": str(port), "STALLWATCH_DIR": str(ranks)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def run_python(directory: Path, text: str, **variables: str) -> str:
    (directory / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False,
        env=os.environ | {"STALLWATCH_DIR": str(directory / "ranks")} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_lines_of_a_training_script_run(directory: Path) -> None:
    script, _ = blocks("Use it in training", "python")
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    script = script.replace(
        "init_process_group()", 'init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)'
    )
    said = run_python(directory, f"{TRAINING}{script}\nprint(beat)\n", **one)
    assert f"record {directory}/ranks/rank-0-" in said


def test_the_lines_for_lightning_and_hugging_face_run(directory: Path) -> None:
    _, script = blocks("Use it in training", "python")
    assert "stallwatch.hook.lightning" in script
    assert "stallwatch.hook.transformers" in script
    run_python(directory, FRAMEWORKS + script)


def test_the_commands_that_need_no_edit_run(directory: Path) -> None:
    (commands,) = blocks("Use it in training")
    (directory / "train.py").write_text("import sys, stallwatch\nprint(sys.argv[1:], stallwatch.attach())\n")
    for line in commands.splitlines():
        done = subprocess.run(
            line, shell=True, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False,
            env=os.environ | apart(directory / "ranks") | {"PATH": path_with_python()},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ranks = 4 if line.startswith("torchrun") else 1
        assert done.stdout.count("['--epochs', '3']") == ranks  # ranks write into each other's lines
        assert done.stdout.count("<stallwatch: rank ") == ranks, done.stdout


def path_with_python() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


@pytest.fixture
def somebody() -> PythonForEverybody:
    """A user without root."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")
    python = python_for_everybody()
    if python is None:
        pytest.skip("no Python here that other users may run")
    return python


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Below /tmp and not below pytest's own folder, which is closed to others; a socket's path must be short, too.
    made = Path("/tmp") / f"stallwatch-{os.getpid()}"
    made.mkdir(mode=0o755)
    os.chown(made, USER, USER)
    yield made
    shutil.rmtree(made)


def commands_of(python: PythonForEverybody, folder: Path) -> None:
    """The two commands as an environment has them that this user may run."""
    folder.mkdir()
    for name, module in (("stallwatch", "stallwatch.cli"), ("torchrun", "torch.distributed.run")):
        (folder / name).write_text(f'#!/bin/sh\nexec {python.command[0]} -m {module} "$@"\n')
        (folder / name).chmod(0o755)


def test_a_user_without_root_watches_his_own_job_with_the_two_lines(somebody: PythonForEverybody, home: Path) -> None:
    (lines,) = blocks("Watch your own job, without root")
    assert len(lines.splitlines()) == 2
    commands_of(somebody, home / "bin")
    (home / "train.py").write_text(STEPS)
    path = f"{home}/bin{os.pathsep}{somebody.environment['PATH']}"
    environment = {**somebody.environment, **apart(home / "ranks"), "HOME": str(home), "PATH": path}
    as_user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    out = (home / "out").open("wb")
    shell = subprocess.Popen(
        [*as_user, "bash", "-c", f"{lines}wait"], cwd=home, env=environment, start_new_session=True,
        stdout=out, stderr=subprocess.STDOUT,
    )  # fmt: skip

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*as_user, "stallwatch", *words], cwd=home, env=environment, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip

    try:
        until = time.monotonic() + SECONDS
        while (shown := ask("status")).stdout.count("stepping") < 4:
            assert time.monotonic() < until, f"{shown}\n{(home / 'out').read_text()}"
            time.sleep(0.5)
        assert ask("status", "--url").stdout.startswith("http://127.0.0.1:")
        assert "No incident" in ask("incidents").stdout
        assert (home / ".stallwatch" / os.uname().nodename / "run" / "control.sock").is_socket()
    finally:
        (home / "stop").touch()
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(SECONDS)
        out.close()
