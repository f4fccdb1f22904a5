"""Frozen values that the stages exchange: no I/O, tuples all the way down, serialisable by msgspec."""
