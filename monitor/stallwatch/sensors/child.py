"""A sensor's own process: `python -m stallwatch.sensors.child NAME OPTIONS`, or forked from who has imported it already
(node.privileged_server). Reads request numbers from stdin, writes answers to stdout, ends with its stdin."""

import importlib
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from stallwatch.encoding import Unpacker, msgpack_of, pack
from stallwatch.formats.outside_text import name_of
from stallwatch.model.reading import Absent, Resting
from stallwatch.model.snapshot import SENSORS
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.framing import as_child, write
from stallwatch.node.free_lists import FreeLists
from stallwatch.node.no_network import give_up_network
from stallwatch.sensors.sensor import NEWS, Options, Sensor, SensorAnswer


def serve(make: Callable[[], Sensor[Any]], requests: int, answers: int) -> None:
    """Answer requests until their end of file. A sensor that cannot be made yet is tried again at each request."""
    sensor: Sensor[Any] | None = None
    unpacker, free_lists = Unpacker(), FreeLists()
    while True:
        told = False
        while not _wait(sensor, requests):
            # Once per request: a node where much happens is not asked more often for it.
            if not told:
                write(answers, pack(msgpack_of(SensorAnswer(NEWS, 0.0))))
            told = True
        data = os.read(requests, 1 << 16)
        if not data:
            return
        for message in unpacker.feed(data):
            request = msgspec.msgpack.decode(message, type=int)
            began = time.monotonic()
            answer, without_memory = SensorAnswer(request, 0.0), False
            try:
                sensor = sensor or make()
                value = encoded(sensor, sensor.read())
                answer = SensorAnswer(request, time.monotonic() - began, value)
            except Absent as reason:
                again = reason.seconds if isinstance(reason, Resting) else None
                answer = SensorAnswer(
                    request, time.monotonic() - began, error=str(reason), absent=True, again_seconds=again
                )
            except Exception as error:  # noqa: BLE001 - the sensors' guard: what a sensor raises is its answer
                # What a limit, or a heap in pieces, does to one process it does not do to the next one.
                without_memory = isinstance(error, MemoryError)
                reason_text = name_of(f"{type(error).__name__}: {error}")
                answer = SensorAnswer(request, time.monotonic() - began, error=reason_text)
            write(answers, pack(msgpack_of(answer)))
            if answer.absent or without_memory:
                return
        free_lists.give_back()


def encoded(sensor: Sensor[Any], value: Any) -> bytes:
    """A value that cannot be encoded costs only its own part of the reading, where the sensor can tell the parts."""
    try:
        return msgpack_of(value)
    except (ValueError, OverflowError) as error:
        encodable: Callable[[Any, str], Any] | None = getattr(sensor, "encodable", None)
        if encodable is None:
            raise
        return msgpack_of(encodable(value, f"{type(error).__name__}: {error}"))


def _wait(sensor: Sensor[Any] | None, requests: int) -> bool:
    """Return when there is a request (True) or the sensor has news (False)."""
    wait: Callable[[int], bool] | None = getattr(sensor, "wait", None)
    if wait is not None:
        return wait(requests)
    select.select([requests], [], [])
    return True


def import_parts() -> None:
    """Import every sensor, for who forks: what is imported after that is in memory once for each child, and changes
    what they had in common (a sensor's imports made 2.4 MiB of it its own)."""
    for spec in SENSORS:
        importlib.import_module(spec.make.partition(":")[0])


def main(arguments: list[str]) -> None:
    """Be the sensor that the arguments name."""
    as_child(lambda: _be(*arguments))


def _be(name: str, options: str) -> None:
    (spec,) = (sensor for sensor in SENSORS if sensor.name == name)
    decoded = msgspec.json.decode(options, type=Options)
    if not spec.privileged:
        drop_unless_root()
    give_up_network()
    module, _, function = spec.make.partition(":")
    serve(lambda: getattr(importlib.import_module(module), function)(decoded), sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
