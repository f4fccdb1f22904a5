"""What one node signs opens for others in its own place, and nowhere else."""

import zlib

import pytest

from stallwatch.fleet.place import MOST_BYTES, Key
from stallwatch.fleet.seal import SealBroken, seal, unseal

SECRET = b"a secret of sixteen bytes"
KEY = Key("train-0a1b2c3d", 1)


def test_a_seal_opens_to_what_was_sealed() -> None:
    sealed = seal(b"what rank 3 does" * 100, SECRET, "summary", KEY, "node1")
    assert unseal(sealed, SECRET, "summary", KEY, "node1") == b"what rank 3 does" * 100
    assert len(sealed) < 200


@pytest.mark.parametrize(
    ("secret", "kind", "key", "node"),
    [
        (b"another secret of a fleet", "summary", KEY, "node1"),
        (SECRET, "told", KEY, "node1"),
        (SECRET, "summary", Key(KEY.job, 2), "node1"),
        (SECRET, "summary", Key("other-0a1b2c3d", 1), "node1"),
        (SECRET, "summary", KEY, "node2"),
    ],
)
def test_it_opens_nowhere_else(secret: bytes, kind: str, key: Key, node: str) -> None:
    sealed = seal(b"body", SECRET, "summary", KEY, "node1")
    with pytest.raises(SealBroken, match="signature"):
        unseal(sealed, secret, kind, key, node)


def test_one_byte_changed_is_noticed() -> None:
    sealed = bytearray(seal(b"body", SECRET, "summary", KEY, "node1"))
    sealed[-1] ^= 1
    with pytest.raises(SealBroken, match="signature"):
        unseal(bytes(sealed), SECRET, "summary", KEY, "node1")


@pytest.mark.parametrize("rubbish", [b"", b"stallwatch 2\nfrom the future", b"stallwatch 1\nshort", b"\0" * 100])
def test_rubbish_is_refused(rubbish: bytes) -> None:
    with pytest.raises(SealBroken):
        unseal(rubbish, SECRET, "summary", KEY, "node1")


def test_what_is_too_large_is_neither_sealed_nor_opened() -> None:
    import random

    with pytest.raises(SealBroken, match="at most"):
        seal(random.Random(0).randbytes(MOST_BYTES), SECRET, "summary", KEY, "node1")
    with pytest.raises(SealBroken, match="too large"):
        unseal(b"\0" * (MOST_BYTES + 1), SECRET, "summary", KEY, "node1")


def test_a_small_seal_that_unpacks_to_gigabytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch.fleet.seal._MOST_OPEN_BYTES", 1 << 40)
    bomb = seal(b"\0" * (32 << 20), SECRET, "summary", KEY, "node1")
    monkeypatch.undo()
    assert len(bomb) < MOST_BYTES and len(zlib.compress(b"\0" * (32 << 20))) < MOST_BYTES
    with pytest.raises(SealBroken, match="more than is believed"):
        unseal(bomb, SECRET, "summary", KEY, "node1")
