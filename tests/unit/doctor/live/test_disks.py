import pytest

from stallwatch.doctor.check import Undetermined
from stallwatch.doctor.live import disks
from stallwatch.doctor.live.disks import NodeDisks
from stallwatch.model.reading import Unavailable


def silent(*_: object, **__: object) -> Unavailable:
    return Unavailable("the file system of /x has not answered for 3 s", 0)


@pytest.mark.parametrize("took", [0.1, 2.9])
def test_a_silent_file_system_is_told_from_a_busy_node(took: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "run_child", silent)
    monkeypatch.setattr(disks, "_seconds_of_proc", lambda: took)
    if took < 1:
        assert NodeDisks().space("/x") == silent()
    else:
        with pytest.raises(Undetermined):
            NodeDisks().space("/x")
