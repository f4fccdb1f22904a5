import subprocess
import sys

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
