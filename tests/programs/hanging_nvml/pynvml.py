"""NVML of a sick driver: it initialises, and the next call does not come back; nor does SIGTERM end it."""

import os
import signal
import threading
import time


class NVMLError(Exception):
    value = 0


NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9


def nvmlInit() -> None:  # noqa: N802 - NVML's own names
    with open(os.environ["NVML_STARTS"], "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def nvmlDeviceGetCount() -> int:  # noqa: N802
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def nvmlEventSetCreate() -> object:  # noqa: N802
    return object()
