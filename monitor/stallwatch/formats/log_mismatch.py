"""Calls that do not fit together: what each of two ranks called, by torch's DETAIL wrapper; a message that is longer
than what its receiver's call holds, by gloo or NCCL."""

import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from stallwatch.model.log_event import SideOfMismatch

# "Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[10],
# TensorDtypes=Float, TensorDeviceTypes=…), but Rank 1 is running collective: …"; commas and fields differ by version.
_SIDE: Final = re.compile(
    r"[Rr]ank (?P<rank>\d+) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?(?P<body>.*?)"
    r"(?=\)?,? ?but [Rr]ank|\)\.?\s*(?:Collectives differ|$)|\s*Collectives differ|$)"
)
_SEQUENCE: Final = re.compile(r"SequenceNumber=(\d+)")
_OPERATION: Final = re.compile(r"OpType=(\w+?)(?=,|\)|\s|TensorShape|$)")
_SHAPE: Final = re.compile(r"TensorShape=(\[[^\]]*\])")
_DEVICE: Final = re.compile(r"TensorDeviceTypes=TensorOptions\(.*?device=(\w+)")
_DTYPE: Final = re.compile(r"TensorDtypes=([\w ()]+?)(?=,|\)|\s*TensorDevice|$)")


def sides_of(text: str) -> tuple[SideOfMismatch, ...]:
    """Given a line of the wrapper, return both sides; () where its form is not known."""
    sides, devices = [], []
    for match in _SIDE.finditer(text):
        body = match["body"]
        operation, sequence = _OPERATION.search(body), _SEQUENCE.search(body)
        shape, dtype = _SHAPE.search(body), _DTYPE.search(body)
        device = _DEVICE.search(body)
        devices.append(device[1] if device else "")
        sides.append(
            SideOfMismatch(
                rank=int(match["rank"]),
                operation=operation[1] if operation else "",
                seq=int(sequence[1]) if sequence else None,
                shape=shape[1] if shape else "",
                dtype=dtype[1].strip() if dtype else "",
            )
        )
    if len({(side.operation, side.seq, side.shape, side.dtype) for side in sides}) == 1 < len(set(devices)):
        sides = [replace(side, dtype=f"{side.dtype} on {on}") for side, on in zip(sides, devices, strict=True)]
    return tuple(sides)


# gloo's pair.cc; NCCL's net_socket.cc, whose line torch prints as NCCL's last error: how it begins, and its sizes.
_REFUSES: Final = {
    "gloo": (r"op\.preamble\.length", r" <= op\.nbytes\. (?P<numel_in>\d+) vs (?P<numel_out>\d+)"),
    "NCCL": (r"message truncated ?: receiving", r" (?P<numel_in>\d+) bytes instead of (?P<numel_out>\d+)"),
}
REFUSAL_LINES: Final = {library: begins + sizes for library, (begins, sizes) in _REFUSES.items()}
_REFUSALS: Final = tuple(
    (library, re.compile(f"{begins}(?:{sizes})?", re.IGNORECASE)) for library, (begins, sizes) in _REFUSES.items()
)


class Refusal(NamedTuple):
    """A message that was refused, because it is longer than what its receiver's call holds; by which library."""

    library: str
    received_bytes: int | None  # None: the text is cut
    expected_bytes: int | None


def refusal_of(text: str) -> Refusal | None:
    """Given what a rank printed or raised, in any case of letters, return the refusal in it; None without."""
    for library, pattern in _REFUSALS:
        if match := pattern.search(text):
            return Refusal(library, *(None if size is None else int(size) for size in match.groups()))
    return None
