"""Child of the py_spy check: starts a process of the training interpreter, lets py-spy read it, ends both."""

import subprocess
import sys

_PROGRAM = "import sys; print(1, flush=True); sys.stdin.read()"


def main() -> int:
    py_spy, interpreter = sys.argv[1:3]
    target = subprocess.Popen(
        (interpreter, "-I", "-c", _PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert target.stdin is not None
    assert target.stdout is not None
    try:
        target.stdout.readline()  # it runs
        done = subprocess.run((py_spy, "dump", "--pid", str(target.pid)), capture_output=True, timeout=2.5, check=False)
        sys.stderr.write(done.stderr.decode("utf-8", "replace"))
        return done.returncode
    except subprocess.TimeoutExpired:
        sys.stderr.write("no answer within 2.5 s")
        return 1
    finally:
        target.stdin.close()
        target.kill()


if __name__ == "__main__":
    sys.exit(main())
