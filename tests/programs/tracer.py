"""Stands for a py-spy that hangs in the middle of its pause: attaches to the process after `--pid` as py-spy does
(PTRACE_ATTACH, wait for the stop of each thread), prints "paused" and stays. With TRACER=attaches it has not waited for
the stops yet; with TRACER=ends it lets go after a line on standard input, and ends."""

import ctypes
import os
import sys
import time

PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000


def main() -> None:
    if "--nonblocking" in sys.argv:
        sys.exit(1)
    pid = int(sys.argv[sys.argv.index("--pid") + 1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    for tid in tids:
        if libc.ptrace(PTRACE_ATTACH, tid, None, None) != 0:
            sys.exit(os.strerror(ctypes.get_errno()))
        # Stopped, and not waited for: as one that is killed just before its wait.
        kept = os.WNOWAIT if os.environ.get("TRACER") == "attaches" else 0
        os.waitid(os.P_PID, tid, os.WSTOPPED | WALL | kept)
    print("paused", flush=True)
    if os.environ.get("TRACER") == "ends":
        sys.stdin.readline()
        for tid in tids:
            libc.ptrace(PTRACE_DETACH, tid, None, None)
        return
    time.sleep(600)


if __name__ == "__main__":
    main()
