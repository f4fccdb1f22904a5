from pathlib import Path

import msgspec

from stallwatch import config
from stallwatch.demo.daemon_child import DaemonChild, tail


def test_the_daemon_has_directories_of_its_own_and_is_otherwise_as_shipped(tmp_path: Path) -> None:
    DaemonChild(tmp_path, {}, settings={"slack": {"webhook_url": 'http://127.0.0.1:1/a"b'}})
    read, warnings = config.load(tmp_path / "stallwatch.toml", strict=True)
    assert not warnings
    assert Path(read.daemon.rank_directory).parent == tmp_path
    assert read.slack.webhook_url == 'http://127.0.0.1:1/a"b'
    defaults = config.Config()
    changed = {"daemon", "http", "slack"}
    for section in msgspec.structs.fields(config.Config):
        if section.name not in changed:
            assert getattr(read, section.name) == getattr(defaults, section.name)
    assert read.daemon.tick_seconds == defaults.daemon.tick_seconds


def test_the_end_of_a_log_that_does_not_exist_is_nothing(tmp_path: Path) -> None:
    assert tail(tmp_path / "no.log") == ""
