"""What torch's DETAIL wrapper prints of two ranks, and how gloo and NCCL refuse a message that is too long."""

import pytest

from stallwatch.formats.log_mismatch import Refusal, refusal_of, sides_of

LINE = (
    "Detected mismatch between collectives on ranks. Rank {} is running collective: CollectiveFingerPrint("
    "SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[2, 3], TensorDtypes={}, TensorDeviceTypes=TensorOptions(dtype="
    "float (default), device={}, layout=Strided (default))), but Rank {} is running collective: CollectiveFingerPrint("
    "SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[2, 3], TensorDtypes={}, TensorDeviceTypes=TensorOptions(dtype="
    "float (default), device={}, layout=Strided (default)))."
)


def test_sides_that_differ_in_their_device_alone_are_told_apart_by_it() -> None:
    said = sides_of(LINE.format(1, "Float", "cuda", 0, "Float", "cpu"))
    assert [(side.rank, side.dtype) for side in said] == [(1, "Float on cuda"), (0, "Float on cpu")]


def test_a_device_that_is_the_same_or_not_the_difference_is_not_told() -> None:
    for line in (LINE.format(1, "Half", "cuda", 0, "Float", "cuda"), LINE.format(1, "Half", "cuda", 0, "Float", "cpu")):
        assert [side.dtype for side in sides_of(line)] == ["Half", "Float"]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("NET/Socket : peer 10.0.0.2 message truncated : receiving 64 bytes instead of 8.", Refusal("NCCL", 64, 8)),
        ("Message truncated: receiving 64 by", Refusal("NCCL", None, None)),
        ("enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 8", Refusal("gloo", 64, 8)),
        ("op.preamble.length <= op.nb", Refusal("gloo", None, None)),
        ("google.protobuf.message.DecodeError: message truncated", None),
    ],
)
def test_a_message_that_is_too_long_is_refused_by_its_library_with_its_bytes(text: str, refusal: Refusal) -> None:
    assert refusal_of(text) == refusal
