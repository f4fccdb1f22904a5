"""What a sensor's child says to the panel, each in a message of node.framing."""

import msgspec

NEWS = 0  # answers no request: something happened, ask soon


class SensorAnswer(msgspec.Struct, frozen=True):
    """What a child says to request `request`: a value, or why there is none."""

    request: int
    duration_seconds: float
    value: bytes = b""  # msgpack of the sensor's own type; empty: there is none
    error: str = ""
    absent: bool = False  # the node does not have it; the child ends after saying so
    again_seconds: float | None = None  # of what is absent: when it may be there; None: nobody knows
