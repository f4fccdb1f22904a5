"""Capabilities of this process, by the system call itself: the standard library has no word for them."""

import ctypes
import os

# linux/capability.h
_VERSION_3 = 0x20080522
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2
_MOST = 63
# linux/prctl.h
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop(*numbers: int) -> None:
    """Give up these capabilities for good; all of them without arguments. Raise OSError."""
    data = _get()
    if not any(half.permitted | half.inheritable for half in data):
        return  # a service that never had any may not even make the call
    for half in range(2):
        gone = sum(1 << (number - 32 * half) for number in numbers if number // 32 == half) if numbers else 0xFFFFFFFF
        data[half].effective &= ~gone & 0xFFFFFFFF
        data[half].permitted &= ~gone & 0xFFFFFFFF
        data[half].inheritable &= ~gone & 0xFFFFFFFF
    _set(data)


def drop_unless_root() -> None:
    """For a child of the service that needs none. Root keeps his: he runs it by hand, for himself. Raise OSError."""
    if os.geteuid() != 0:
        drop()


def any_permitted() -> bool:
    """Whether this process may use any. Raise OSError."""
    return any(half.permitted for half in _get())


def give_up_for_good() -> None:
    """Have none and get none again, whatever this process executes. Call it before threads start. Raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    for number in range(_MOST + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # needs CAP_SETPCAP; without, the line above is as good
    drop()


def has(number: int) -> bool:
    """Whether this capability is in force. Raise OSError."""
    return bool(_get()[number // 32].effective >> number % 32 & 1)


def _get() -> "ctypes.Array[_Data]":
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if ctypes.CDLL(None, use_errno=True).capget(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    return data


def _set(data: "ctypes.Array[_Data]") -> None:
    header = _Header(_VERSION_3, 0)
    if ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
