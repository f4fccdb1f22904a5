"""Self-tests of programs in `programs/`, in a folder of the test's own."""

import os
import sys
from pathlib import Path
from typing import Any

from stallwatch.selftest.result import SelfTestReport
from stallwatch.selftest.self_test import SelfTest, SelfTestOptions

PROGRAMS = Path(__file__).parent / "programs"


def selftest(program: str | None, environment: dict[str, str] | None = None, **options: Any) -> SelfTestReport:
    path = str(PROGRAMS / f"{program}.py") if program else None
    chosen = SelfTestOptions(python=sys.executable, program=path, **options)
    return SelfTest(chosen, dict(os.environ) | (environment or {}), lambda text: None).run()
