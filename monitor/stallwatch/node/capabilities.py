"""Capabilities of this process, by the system call itself: the standard library has no word for them."""

import ctypes

# linux/capability.h
_VERSION_3 = 0x20080522
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop(*numbers: int) -> None:
    """Give up these capabilities for good; all of them without arguments. Raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for half in range(2):
        gone = sum(1 << (number - 32 * half) for number in numbers if number // 32 == half) if numbers else 0xFFFFFFFF
        data[half].effective &= ~gone & 0xFFFFFFFF
        data[half].permitted &= ~gone & 0xFFFFFFFF
        data[half].inheritable &= ~gone & 0xFFFFFFFF
    if libc.capset(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
