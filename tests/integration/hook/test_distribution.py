"""Wheel and source distribution as they are built: what they hold, and that an installed one works."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from stallwatch import __version__
from tests.readme import ROOT

SECONDS = 100.0


def run(*command: str, cwd: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STALLWATCH_"))}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False, env=kept | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target), cwd=source)
    (made,) = [path for path in target.iterdir() if path.suffix == {"wheel": ".whl", "sdist": ".gz"}[kind]]
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel that was built from a source distribution, as an index or a packager does it."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "tests", "dashboards")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    sdist = build(checkout, folder / "sdist", "sdist")
    run("tar", "-xzf", str(sdist), cwd=folder)  # Debian 12's Python has no filters yet
    return sdist, build(folder / f"stallwatch-{__version__}", folder / "wheel", "wheel")


def test_the_version_is_the_changelogs_and_the_tags() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "deploy/docs/changelog.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert tags.stdout.split() in ([], [f"v{__version__}"])


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    package = ROOT / "monitor" / "stallwatch"
    ours = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built[1]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == ours


def test_an_installed_wheel_attaches_and_says_its_version(built: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    run(
        sys.executable, "-m", "pip", "--python", str(tmp_path / "env"), "install", "--no-index", "--no-deps", "-q",
        str(built[1]), cwd=tmp_path,
    )  # fmt: skip
    (tmp_path / "ranks").mkdir()
    program = "import stallwatch; print(stallwatch.__version__, stallwatch.__file__); print(stallwatch.attach())"
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "STALLWATCH_DIR": str(tmp_path / "ranks")}
    said = run(str(tmp_path / "env/bin/python"), "-c", program, cwd=tmp_path, **rank)
    assert said.startswith(f"{__version__} {tmp_path}/env/lib/")
    assert "record " in said
    without = subprocess.run(
        [tmp_path / "env/bin/stallwatch", "status"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert without.returncode == 69  # the hook alone: the command says what to install
    assert "stallwatch[daemon]" in without.stderr or "[daemon]" in without.stderr
