import subprocess
import sys
import venv
from pathlib import Path

import pytest

from stallwatch.cli.app import run
from stallwatch.errors import EXIT_USAGE
from stallwatch.hook.auto import PTH_LINE, PTH_NAME

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment of the jobs that has the hook, and nothing else."""
    venv.create(tmp_path / "jobs", with_pip=False, symlinks=True)
    python = tmp_path / "jobs/bin/python"
    (site(python) / "stallwatch.pth").write_text(f"{ROOT / 'monitor'}\n")
    return python


def site(python: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / version / "site-packages"


def test_enabled_and_disabled_again(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = site(environment) / PTH_NAME
    assert run(["auto", "enable", "--python", str(environment)]) == 0
    assert path.read_text() == PTH_LINE
    armed = "import sys; print(any(type(finder).__name__ == '_Finder' for finder in sys.meta_path))"
    done = subprocess.run([environment, "-c", armed], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert run(["auto", "disable", "--python", str(environment)]) == 0
    assert not path.exists()
    assert run(["auto", "disable", "--python", str(environment)]) == 0
    assert "It was not enabled" in capsys.readouterr().out


def test_environment_without_the_hook_says_what_to_do(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site(environment) / "stallwatch.pth").unlink()
    assert run(["auto", "enable", "--python", str(environment)]) == EXIT_USAGE
    assert "-m pip install ." in capsys.readouterr().err
    assert not (site(environment) / PTH_NAME).exists()
