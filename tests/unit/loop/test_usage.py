import resource
import subprocess
import sys

import pytest

from stallwatch.loop.usage import own_usage


def test_children_count() -> None:
    alone = own_usage()
    program = "import sys; x = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        together = own_usage()
        child.kill()
    assert alone.resident_bytes > 1 << 20
    assert together.resident_bytes - alone.resident_bytes > 48 << 20
    assert together.cpu_seconds >= alone.cpu_seconds > 0


def test_without_handles_it_is_unknown_and_no_part_of_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            own_usage()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
