"""Children that stand in for a sensor's own: `python children.py KIND`. Each reads request numbers and answers in its
own way; the tests that use them are about what the panel makes of that."""

import os
import select
import sys
import time

import msgspec

from stallwatch.encoding import pack
from stallwatch.model.reading import Absent, Resting
from stallwatch.sensors.child import serve
from stallwatch.sensors.sensor import SensorAnswer


class Counts:
    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> int:
        self.reads += 1
        return self.reads


class Raises:
    def read(self) -> int:
        raise OSError("the driver is sick")


class Missing:
    def read(self) -> int:
        raise Absent("no such thing on this node")


class Rests:
    """Somebody wants the thing for himself, until a file appears."""

    def read(self) -> int:
        if not os.path.exists(sys.argv[2]):
            raise Resting("it is left alone", 20.0)
        return 1


class Restless:
    """Something happens again and again as long as nobody asks."""

    def __init__(self) -> None:
        self.reads = 0

    def wait(self, descriptor: int) -> bool:
        return bool(select.select([descriptor], [], [], 0.001)[0])

    def read(self) -> int:
        self.reads += 1
        return self.reads


class HangsOnce:
    """The first read takes until a file appears."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> int:
        self.reads += 1
        while self.reads == 1 and not os.path.exists(sys.argv[2]):
            time.sleep(0.005)
        return self.reads


def main() -> None:
    kind = sys.argv[1]
    if kind == "dies":
        os.read(0, 100)
        sys.exit(7)
    if kind == "nonsense":
        os.read(0, 100)
        os.write(1, pack(b"\xc1"))
        os.read(0, 100)
        return
    if kind == "wrong type":
        os.read(0, 100)
        os.write(1, pack(msgspec.msgpack.encode(SensorAnswer(1, 0.0, msgspec.msgpack.encode("text")))))
        os.read(0, 100)
        return
    kinds: dict[str, type[Counts | Raises | Missing | HangsOnce | Restless | Rests]] = {
        "counts": Counts,
        "raises": Raises,
        "missing": Missing,
        "hangs": HangsOnce,
        "restless": Restless,
        "rests": Rests,
    }
    serve(kinds[kind], 0, 1)


if __name__ == "__main__":
    main()
