"""Real servers: TLS with a certificate of one's own, a password and a user, and a primary found through Sentinel."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.fleet.place import Key, MeetingPlace, PlaceProblem
from stallwatch.fleet.place_settings import Settings, open_place, secret_of
from stallwatch.fleet.try_place import try_place
from stallwatch.selftest.launching import free_port
from tests.builders.redis_server import SERVER, redis_server

pytestmark = pytest.mark.skipif(
    not (SERVER and shutil.which("openssl")), reason="redis-server or openssl is not installed"
)
SECONDS = 60.0
JOB = "train-0a1b2c3d"


def until(condition: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.05)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "key").write_text("a secret of at least sixteen bytes")
    (tmp_path / "password").write_text("hunter2\n")
    return Settings("", "stallwatch", str(tmp_path / "password"), "", str(tmp_path / "key"))


def of(settings: Settings, **changes: str) -> Settings:
    return Settings(**({name: getattr(settings, name) for name in Settings.__struct_fields__} | changes))


ACL = "user default off\nuser stallwatch on >hunter2 ~stallwatch:* +@all -@dangerous -@admin\n"


@pytest.fixture
def opened() -> Iterator[Callable[[Settings], MeetingPlace]]:
    places: list[MeetingPlace] = []

    def open_and_keep(settings: Settings) -> MeetingPlace:
        places.append(open_place(settings, secret_of(settings)))
        return places[-1]

    yield open_and_keep
    for place in places:
        place.hang_up()


Opened = Callable[[Settings], MeetingPlace]


def certificate(folder: Path, name: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run(command, check=True, capture_output=True)


def test_over_tls_by_a_user_whose_rights_end_at_our_keys_all_can_be_done(
    tmp_path: Path, settings: Settings, opened: Opened
) -> None:
    port = free_port()
    certificate(tmp_path, "server")
    certificate(tmp_path, "another")
    (tmp_path / "users.acl").write_text(ACL)
    tls = ("--port", "0", "--tls-port", str(port), "--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file",
           str(tmp_path / "server.key"), "--tls-auth-clients", "no", "--aclfile",
           str(tmp_path / "users.acl"))  # fmt: skip
    with redis_server(tmp_path, *tls, listens=port):
        right = of(settings, url=f"rediss://localhost:{port}", ca_file=str(tmp_path / "server.pem"))
        try_place(right, "n0", SECONDS)
        place = opened(right)
        key = Key(JOB, place.join(JOB, "n0"))
        place.put(key, "n0", b"summary")
        assert place.summaries(key) == {"n0": b"summary"}
        assert place.claim(key, "n0") == 1
        place.post("mode-0", b"order", 60, anew=True)
        assert len(place.posted("")[1] or []) == 1
        with pytest.raises(PlaceProblem, match="certificate"):
            opened(of(right, ca_file=str(tmp_path / "another.pem"))).check()
        with pytest.raises(PlaceProblem) as plain:
            opened(of(right, url=f"redis://localhost:{port}")).check()
        assert plain.value.help
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(PlaceProblem) as refused:
            opened(right).check()
        assert "password" in refused.value.help


def test_through_sentinel_the_new_primary_is_used_once_the_old_one_is_gone(
    tmp_path: Path, settings: Settings, opened: Opened
) -> None:
    ports = [free_port() for _ in range(3)]
    folders = [tmp_path / name for name in ("first", "second", "sentinel")]
    for folder in folders:
        folder.mkdir()
    common = ("--requirepass", "hunter2", "--masterauth", "hunter2")
    (folders[2] / "sentinel.conf").write_text(
        f"sentinel monitor ours 127.0.0.1 {ports[0]} 1\nsentinel auth-pass ours hunter2\n"
        "sentinel down-after-milliseconds ours 1000\nsentinel failover-timeout ours 3000\n"
    )
    with contextlib.ExitStack() as running:
        first = running.enter_context(contextlib.ExitStack())
        first.enter_context(redis_server(folders[0], "--port", str(ports[0]), *common, listens=ports[0]))
        second = ("--port", str(ports[1]), "--replicaof", "127.0.0.1", str(ports[0]), *common)
        running.enter_context(redis_server(folders[1], *second, listens=ports[1]))
        watching = (str(folders[2] / "sentinel.conf"), "--sentinel", "--port", str(ports[2]))
        running.enter_context(redis_server(folders[2], *watching, listens=ports[2]))
        ours = of(settings, username="", url=f"redis+sentinel://127.0.0.1:{ports[2]}/ours/0")
        place = opened(ours)
        assert place.join(JOB, "n0") == 1

        def knows_the_replica() -> bool:
            import redis

            with contextlib.suppress(redis.exceptions.RedisError), redis.Redis("127.0.0.1", ports[2]) as sentinel:
                return bool(sentinel.sentinel_slaves("ours"))
            return False

        until(knows_the_replica, lambda: (folders[2] / "log").read_text())
        first.close()

        def goes_on() -> bool:
            with contextlib.suppress(PlaceProblem):
                return opened(ours).join(f"{JOB}-other", "n0") == 1
            return False

        until(goes_on, lambda: (folders[2] / "log").read_text())
        with pytest.raises(PlaceProblem) as unknown:
            opened(of(ours, url=f"redis+sentinel://127.0.0.1:{ports[2]}/theirs")).check()
        assert unknown.value.help
