"""torch's DETAIL wrapper: what each of two ranks called, as it prints it when they differ."""

import re
from typing import Final

from stallwatch.model.evidence import SideOfMismatch

# "Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[10],
# TensorDtypes=Float, TensorDeviceTypes=…), but Rank 1 is running collective: …"; commas and fields differ by version.
_SIDE: Final = re.compile(
    r"[Rr]ank (?P<rank>\d+) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?(?P<body>.*?)"
    r"(?=\)?,? ?but [Rr]ank|\)\.?\s*(?:Collectives differ|$)|\s*Collectives differ|$)"
)
_SEQUENCE: Final = re.compile(r"SequenceNumber=(\d+)")
_OPERATION: Final = re.compile(r"OpType=(\w+?)(?=,|\)|\s|TensorShape|$)")
_SHAPE: Final = re.compile(r"TensorShape=(\[[^\]]*\])")
_DTYPE: Final = re.compile(r"TensorDtypes=([\w ()]+?)(?=,|\)|\s*TensorDevice|$)")


def sides_of(text: str) -> tuple[SideOfMismatch, ...]:
    """Given a line of the wrapper, return both sides; () where its form is not known."""
    sides = []
    for match in _SIDE.finditer(text):
        body = match["body"]
        operation, sequence = _OPERATION.search(body), _SEQUENCE.search(body)
        shape, dtype = _SHAPE.search(body), _DTYPE.search(body)
        sides.append(
            SideOfMismatch(
                rank=int(match["rank"]),
                operation=operation[1] if operation else "",
                seq=int(sequence[1]) if sequence else None,
                shape=shape[1] if shape else "",
                dtype=dtype[1].strip() if dtype else "",
            )
        )
    return tuple(sides)
