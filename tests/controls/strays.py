"""Processes that look odd from outside: services with a rank's variables, a main thread that is gone."""

import ctypes
import subprocess
import sys

_SYS_EXIT = 60  # x86-64; of a thread alone
_DAEMON = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
"""


def start_daemon(code: str) -> None:
    """Start a program with torch and this rank's variables in a session of its own, which nobody of ours is above."""
    program = f"import os, signal, sys, threading, time, torch\n{code}"
    subprocess.run([sys.executable, "-c", _DAEMON, program], check=True)


def leave_main_thread() -> None:
    """End the calling thread alone, without Python's knowledge; its process lives on in the others."""
    ctypes.CDLL(None).syscall(_SYS_EXIT, 0)
