"""What runs in the training interpreter needs nothing but the standard library until it imports torch itself."""

import subprocess
import sys
from pathlib import Path

import stallwatch

PACKAGE_PARENT = Path(stallwatch.__file__).parents[1]


def test_it_imports_without_any_installed_package() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE_PARENT)!r}); import stallwatch.selftest.rank; "
        "assert not {'torch', 'msgspec', 'click', 'psutil'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_without_a_launcher_it_is_wrong_usage_and_no_failure() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stallwatch.selftest.rank"],
        env={"PYTHONPATH": str(PACKAGE_PARENT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 64
    assert b"torchrun" in done.stderr
