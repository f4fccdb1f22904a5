"""What is known of a sensor without making one."""

from typing import Any, NamedTuple

import msgspec

from stallwatch.model.metric import Family


class Source(NamedTuple):
    """A source of evidence, for people."""

    key: str  # as sensors and attempts call it
    name: str
    gives: str
    needs: str
    without: str


class SensorSpec(msgspec.Struct, frozen=True):
    """A row of the table of sensors (model.snapshot): child, panel, privileged side, configuration, metrics and
    documents go by it."""

    name: str  # the field of NodeSnapshot that holds what it read
    title: str  # how sentences name it: "NVML"
    kind: type[Any]  # what it answers
    make: str  # "module:function" that is given sensors.sensor.Options, in the sensor's own process
    sources: tuple[Source, ...]  # whose state its answers tell; of more than one by `parts`, each a PartStatus
    privileged: bool = False  # its process keeps the capabilities of who starts it; none has a network
    required: bool = False  # False: absent is normal
    idle_seconds: float = 0.0  # how old its answer may be while no rank is on the node; what it says by itself counts
    switch: str = ""  # what the key of [sensors] says that turns it off, by its name; "": it is always read
    metrics: tuple[Family, ...] = ()  # each with its `read`, given a value of NodeSnapshot's field
