"""Takes the network from a process that holds capabilities: what reads other people's processes sends nothing."""

import ctypes
import platform
import socket
import struct

# linux/prctl.h, linux/seccomp.h, linux/audit.h, linux/filter.h
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_ERRNO_EPERM = 0x00050000 | 1
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _FIRST_ARGUMENT_OFFSET = 0, 4, 16
_IO_URING_SETUP = 425  # it can make sockets too; the same number everywhere
# machine: (AUDIT_ARCH_…, number of socket)
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def give_up_network() -> bool:
    """Allow no new socket but those of AF_UNIX, for this process and all that it starts, for ever; capabilities stay.

    Return whether it took effect: on another architecture, or without seccomp, nothing is changed.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    architecture, socket_number = known
    filter_ = ctypes.create_string_buffer(
        b"".join(
            struct.pack("<HBBI", *instruction)
            for instruction in (
                (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
                (_JUMP_EQUAL, 0, 6, architecture),  # another ABI has other numbers: refused as a whole
                (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
                (_JUMP_EQUAL, 4, 0, _IO_URING_SETUP),
                (_JUMP_EQUAL, 0, 2, socket_number),
                (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_OFFSET),
                (_JUMP_EQUAL, 0, 1, socket.AF_UNIX),
                (_RETURN, 0, 0, _ALLOW),
                (_RETURN, 0, 0, _ERRNO_EPERM),
            )
        )
    )
    program = _Program(9, ctypes.cast(filter_, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
