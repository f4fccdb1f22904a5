"""What torch's DETAIL wrapper prints of two ranks."""

from stallwatch.formats.log_mismatch import sides_of

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
