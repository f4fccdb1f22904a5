"""`python -m tests.fuzz.coverage_guided TARGET FOLDER …`: libFuzzer's loop around one target (atheris)."""

import importlib
import sys
from typing import Any


def main(argv: list[str]) -> None:
    atheris: Any = importlib.import_module("atheris")
    name = argv.pop(1)
    with atheris.instrument_imports(include=["stallwatch"]):
        targets: Any = importlib.import_module("tests.fuzz.targets")
    engine: Any = importlib.import_module("tests.fuzz.engine")
    target = targets.TARGETS[name]
    atheris.Setup(argv, lambda data: engine.once(target, bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
