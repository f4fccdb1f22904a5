import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, socket, subprocess, sys
from stallwatch.node.no_network import give_up_network
if not give_up_network():
    sys.exit(77)
socket.socket(socket.AF_UNIX).close()
os.close(os.open("/proc/self/stat", os.O_RDONLY))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    try:
        socket.socket(family)
    except PermissionError:
        continue
    sys.exit(f"family {family} is open")
child = "import socket; socket.socket(socket.AF_INET)"
sys.exit(0 if subprocess.run([sys.executable, "-c", child], stderr=subprocess.DEVNULL).returncode else "child is open")
"""


def test_process_without_network_has_unix_sockets_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no seccomp filter for this machine")
    assert (done.returncode, done.stderr) == (0, "")
