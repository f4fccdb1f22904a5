"""Child of the py_spy check: starts a process of the training interpreter, lets py-spy read it, ends both."""

import sys
import time

from stallwatch.node.children import start_own
from stallwatch.node.run_once import run_once
from stallwatch.node.worker import Worker

_SECONDS = 2.5
_START_SECONDS = 30.0  # whoever asks ends us before that
_PROGRAM = "import sys; print(1, flush=True); sys.stdin.read()"


def main() -> int:
    """Given py-spy and an interpreter as arguments, return py-spy's exit code, 1 where it does not answer, and pass on
    what it complains of."""
    py_spy, interpreter = sys.argv[1:3]
    target = Worker(start_own((interpreter, "-I", "-c", _PROGRAM), leads_session=False, quiet=True))
    target.start()
    try:
        target.wait(time.monotonic() + _START_SECONDS)  # it runs
        ended = run_once((py_spy, "dump", "--pid", str(target.pid)), _SECONDS, leads_group=False)
        if ended is None:
            sys.stderr.write(f"no answer within {_SECONDS} s")
            return 1
        sys.stderr.write(ended.errors.decode("utf-8", "replace"))
        return ended.code
    finally:
        target.end(patience_seconds=0.0)


if __name__ == "__main__":
    sys.exit(main())
