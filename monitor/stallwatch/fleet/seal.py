"""What a node writes for others: packed, bounded, and signed with the fleet's key.

A seal names what it is, of which incident and by which node: one that is carried elsewhere opens nowhere.
"""

import hashlib
import hmac
import zlib
from typing import Final

from stallwatch.fleet.place import MOST_BYTES, Key

_MAGIC: Final = b"stallwatch 1\n"
_MAC_BYTES: Final = hashlib.sha256().digest_size
_MOST_OPEN_BYTES: Final = 8 << 20  # a small thing may unpack to a very large one
LEAST_KEY_BYTES: Final = 16


class SealBroken(ValueError):
    """It is none of ours; the text says why, a clause."""


def key_id(secret: bytes) -> str:
    """By which people and nodes tell two keys apart; the key does not follow from it."""
    return hmac.digest(secret, b"stallwatch: which key is it?", "sha256")[:4].hex()


def seal(body: bytes, secret: bytes, kind: str, key: Key, node: str) -> bytes:
    """Return the body packed and signed. Raise SealBroken when it is larger than what is believed."""
    packed = zlib.compress(body, 6)
    sealed = _MAGIC + _mac(packed, secret, kind, key, node) + packed
    if len(sealed) > MOST_BYTES or len(body) > _MOST_OPEN_BYTES:
        raise SealBroken(f"it takes {len(sealed)} bytes, and at most {MOST_BYTES} are believed")
    return sealed


def unseal(sealed: bytes, secret: bytes, kind: str, key: Key, node: str) -> bytes:
    """Return the body of a seal. Raise SealBroken for one that this node did not make of this incident."""
    if len(sealed) > MOST_BYTES:
        raise SealBroken("it is too large")
    if not sealed.startswith(_MAGIC):
        raise SealBroken("it was written by another version of stallwatch, or by something else")
    mac, packed = sealed[len(_MAGIC) :][:_MAC_BYTES], sealed[len(_MAGIC) + _MAC_BYTES :]
    if not hmac.compare_digest(mac, _mac(packed, secret, kind, key, node)):
        raise SealBroken("its signature is not the fleet's (fleet.key_file must be the same on all nodes)")
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, _MOST_OPEN_BYTES)
    except zlib.error as error:
        raise SealBroken(f"it cannot be unpacked: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise SealBroken("it unpacks to more than is believed, or breaks off")
    return body


def _mac(packed: bytes, secret: bytes, kind: str, key: Key, node: str) -> bytes:
    said = (kind, key.job, str(key.ordinal), node)
    parts = b"".join(len(part).to_bytes(4, "big") + part for text in said if (part := text.encode()) is not None)
    return hmac.digest(secret, _MAGIC + parts + packed, "sha256")
