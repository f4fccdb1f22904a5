"""A fresh machine, its first verdict: `python -m tests.bench.bench_demo`.

A clone of this revision in an empty folder, no cache of pip's, and `bash deploy/demo.sh` as the README has it. Beside
it the same packages are installed by pip alone, from the same registry into an environment of their own: what is left
is ours. The time of downloads belongs to the network, so the ratio is what counts.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import Figure

ROOT = Path(__file__).parents[2]
NONE_OF = ("VIRTUAL_ENV", "PYTHONPATH", "STALLWATCH_")


def measure(folder: Path) -> tuple[float, float, float | None]:
    """Return the seconds of the demo, of pip alone, and of the demo's own words from fault to verdict."""
    clone, home = folder / "stallwatch", folder / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NONE_OF)}
    environment = kept | {"HOME": str(home), "PIP_NO_CACHE_DIR": "1", "XDG_CACHE_HOME": str(home / "cache")}
    began = time.monotonic()
    said = subprocess.run(
        ["bash", "deploy/demo.sh"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    taken = time.monotonic() - began
    print(said.stderr[-2000:], said.stdout[-3000:], flush=True)
    if said.returncode:
        raise RuntimeError(f"the demo ended with exit code {said.returncode}")
    told = re.search(r"(\d+\.\d) s after the fault", said.stdout)
    python = clone / ".venv/bin/python"
    freeze = [str(python), "-m", "pip", "freeze", "--exclude-editable"]
    frozen = subprocess.run(freeze, capture_output=True, text=True, check=True)
    wanted = [line for line in frozen.stdout.splitlines() if "==" in line]
    shutil.rmtree(clone / ".venv")
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(folder / "alone")], env=environment, check=True)
    subprocess.run(
        [folder / "alone/bin/python", "-m", "pip", "install", "-qq", "--no-deps", *wanted],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return taken, time.monotonic() - began, float(told[1]) if told else None


def figures(quick: bool) -> list[Figure]:
    """Once: what an installation takes varies by its downloads more than by anything of ours."""
    with tempfile.TemporaryDirectory(prefix="sw-demo-") as name:
        taken, alone, told = measure(Path(name))
    found = [
        Figure("installed and told", taken, "s", detail=f"pip alone, the same packages: {alone:.1f} s"),
        Figure("against pip alone", taken / alone, "×"),
    ]
    return [*found, *([Figure("from fault to verdict", told, "s")] if told else [])]


if __name__ == "__main__":
    for figure in figures(quick=False):
        print(figure)
