"""Starts a command as a systemd unit's sandbox would, where nobody may start systemd: `sandbox.py UNIT [--listen FD] --
COMMAND`. Its SystemCallFilter=, RestrictAddressFamilies= and MemoryDenyWriteExecute= become a seccomp filter and a flag
of the process, as systemd makes them; with --listen the socket FD is handed over as sd_listen_fds(3) says. Standard
library only: it runs as the unit's user, by any Python."""

import ctypes
import os
import platform
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EAFNOSUPPORT = 1, 97
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_MDWE = 22, 2, 65
ARCHITECTURE = 0xC000003E


def is_possible() -> bool:
    """Names of system calls come from systemd, their numbers from the C library's headers."""
    found = any((Path(folder) / "systemd-analyze").exists() for folder in ("/usr/bin", "/bin"))
    return found and HEADER.exists() and platform.machine() == "x86_64"


def directives(unit: Path, key: str) -> list[str]:
    found = re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    return [str(value).strip() for value in found]


def group(name: str) -> set[str]:
    """The calls of a group, those of groups in it too."""
    if not name.startswith("@"):
        return {name}
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout
    calls: set[str] = set()
    for line in said.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            calls |= group(word)
    return calls


def allowed(unit: Path) -> set[str]:
    calls = group("@default")
    for line in directives(unit, "SystemCallFilter"):
        words = line.lstrip("~").split()
        these = set().union(*map(group, words))
        calls = calls - these if line.startswith("~") else calls | these
    return calls


def program(unit: Path) -> list[tuple[int, int, int, int]]:
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    families = directives(unit, "RestrictAddressFamilies")[0].split()
    known = [] if families == ["none"] else [int(getattr(socket, family)) for family in families]
    instructions = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCHITECTURE), (RETURN, 0, 0, ERRNO | EPERM), (LOAD, 0, 0, 0)]
    instructions.append((EQUAL, 0, 2 + 2 * len(known), int(numbers["socket"])))
    instructions.append((LOAD, 0, 0, 16))
    for family in known:
        instructions += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    instructions.append((RETURN, 0, 0, ERRNO | EAFNOSUPPORT))
    for name in sorted(allowed(unit) & numbers.keys() - {"socket"}):
        instructions += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    return [*instructions, (RETURN, 0, 0, ERRNO | EPERM)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def confine(unit: Path) -> None:
    code = b"".join(struct.pack("<HBBI", *each) for each in program(unit))
    buffer = ctypes.create_string_buffer(code)
    filter_ = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if directives(unit, "MemoryDenyWriteExecute") == ["yes"]:
        libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)  # Linux 6.3
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    place = sys.argv.index("--")
    options, command = sys.argv[1:place], sys.argv[place + 1 :]
    if "--listen" in options:
        os.dup2(int(options[options.index("--listen") + 1]), 3)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    confine(Path(options[0]))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
