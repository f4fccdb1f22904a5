"""Takes the network from a process that holds capabilities: what reads other people's processes sends nothing."""

import ctypes
import platform
import socket
import struct
from typing import NamedTuple

# linux/prctl.h, linux/seccomp.h, linux/audit.h, linux/filter.h
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_ERRNO_EPERM = 0x00050000 | 1
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _FIRST_ARGUMENT_OFFSET = 0, 4, 16
_IO_URING_SETUP = 425  # it can make sockets too; the same number everywhere


class _Machine(NamedTuple):
    architecture: int  # AUDIT_ARCH_…
    socket: int  # numbers of system calls
    connect: int


_MACHINES = {"x86_64": _Machine(0xC000003E, 41, 42), "aarch64": _Machine(0xC00000B7, 198, 203)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def give_up_network(*, connecting: bool = False) -> bool:
    """Allow no new socket but those of AF_UNIX, for this process and all that it starts, for ever; capabilities stay.
    With `connecting` no socket can be connected any more either: those that are connected now are all it ever has.

    Return whether it took effect: on another architecture, or without seccomp, nothing is changed.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    refused = (_IO_URING_SETUP, machine.connect) if connecting else (_IO_URING_SETUP,)
    instructions = _instructions(machine, refused)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in instructions))
    program = _Program(len(instructions), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _instructions(machine: _Machine, refused: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(code, jump if equal, jump if not, operand); a jump counts the instructions that it passes over."""
    tail = [
        (_JUMP_EQUAL, 0, 2, machine.socket),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_OFFSET),
        (_JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO_EPERM),
    ]
    tests = [(_JUMP_EQUAL, len(refused) - place - 1 + len(tail) - 1, 0, number) for place, number in enumerate(refused)]
    return [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        # Another ABI has other numbers: refused as a whole.
        (_JUMP_EQUAL, 0, 1 + len(tests) + len(tail) - 1, machine.architecture),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        *tests,
        *tail,
    ]
