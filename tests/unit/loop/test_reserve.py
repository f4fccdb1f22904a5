import mmap

import pytest

from stallwatch.loop.reserve import Reserve


def test_it_is_kept_until_it_is_needed_and_taken_again_after_a_while() -> None:
    now = [0.0]
    reserve = Reserve(lambda: now[0])
    assert reserve.is_held()
    reserve.give()
    reserve.keep()
    assert not reserve.is_held()  # who needs it has it
    now[0] = 61.0
    reserve.keep()
    assert reserve.is_held()


def test_it_is_not_taken_from_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room, real = 8192, mmap.mmap

    def mapped(descriptor: int, size: int) -> mmap.mmap:
        if size > room:
            raise OSError(12, "Cannot allocate memory")
        return real(descriptor, size)

    monkeypatch.setattr(mmap, "mmap", mapped)
    now = [0.0]
    reserve = Reserve(lambda: now[0], size_bytes=8192)
    assert not reserve.is_held()
    now[0], room = 61.0, 16384
    reserve.keep()
    assert reserve.is_held()
