import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection, HttpSection, SensorsSection, SlackSection, StallSection
from stallwatch.errors import UsageError
from stallwatch.loop.protocols import SensorPanel
from stallwatch.loop.renewal import changed, held, renews_sensors
from stallwatch.outputs.build import renews_telling
from stallwatch.outputs.output import Control, Output
from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench, FakeOutput, FakePanel, node_clock

CALM = job_run(four(), 20)


class FakeRenewal:
    def __init__(self, sending: tuple[FakeOutput, ...] = (), *, refuses: bool = False) -> None:
        self.panels: list[FakePanel] = []
        self.renewed = 0
        self.sending = sending
        self.refuses = refuses

    def privileged(self) -> None:
        self.renewed += 1

    def panel(self, config: Config) -> SensorPanel:
        self.panels.append(FakePanel(CALM, node_clock()))
        return self.panels[-1]

    def telling(self, config: Config, control: Control) -> tuple[Output, ...]:
        if self.refuses:
            raise UsageError("slack.webhook_url_file: no such file", "Check it.")
        return self.sending


def reloaded(
    tmp_path: Path, new: Config, renewal: FakeRenewal, outputs: list[FakeOutput] | None = None
) -> tuple[Bench, Config]:
    new = replace(new, daemon=replace(new.daemon, state_directory=str(tmp_path)))
    bench = Bench(tmp_path, CALM, reload=lambda: new, renewal=renewal, outputs=outputs).run(1)
    bench.daemon.ask_reload()
    return bench.run(1), new


def test_what_is_bound_to_sockets_and_files_keeps_its_value_and_is_named() -> None:
    new = Config(daemon=DaemonSection(state_directory="/elsewhere"), http=HttpSection(listen=":1"))
    new = replace(new, stall=StallSection(floor_seconds=9))
    effective, kept = held(Config(), new)
    assert kept == ("daemon.state_directory", "http.listen")
    assert effective == Config(stall=StallSection(floor_seconds=9))
    assert changed(Config(), effective) == ("stall.floor_seconds",)


def test_only_what_the_keys_concern_is_made_again() -> None:
    assert renews_sensors(("sensors.gpus",))
    assert renews_sensors(("daemon.rank_directory",))
    assert not renews_sensors(("stall.floor_seconds", "daemon.minimum_world_size"))
    assert renews_telling(Config(), ("slack.channel",))
    assert not renews_telling(Config(), ("stall.floor_seconds",))
    assert renews_telling(Config(slack=SlackSection(webhook_url_file="/x")), ())


def test_sensors_are_made_again_and_the_old_ones_closed(tmp_path: Path) -> None:
    renewal = FakeRenewal()
    bench, _ = reloaded(tmp_path, Config(sensors=SensorsSection(gpus=False)), renewal)
    assert bench.panel.closed
    assert [panel.closed for panel in renewal.panels] == [False]
    bench.daemon.close()
    assert [panel.closed for panel in renewal.panels] == [True]


def test_outputs_that_send_are_replaced_and_the_others_stay(tmp_path: Path) -> None:
    log, old, new = FakeOutput("log"), FakeOutput("slack"), FakeOutput("slack")
    bench, _ = reloaded(tmp_path, Config(slack=SlackSection(webhook_url="https://x")), FakeRenewal((new,)), [log, old])
    assert (log.closed, old.closed, new.closed) == (False, True, False)
    assert bench.daemon.outputs == (log, new)
    bench.run(1)
    assert new.reports


def test_one_that_no_list_knows_does_not_send_twice(tmp_path: Path) -> None:
    old, new = FakeOutput("pager"), FakeOutput("pager")
    bench, _ = reloaded(tmp_path, Config(slack=SlackSection(webhook_url="https://x")), FakeRenewal((new,)), [old])
    assert bench.daemon.outputs == (new,)
    assert (old.closed, new.closed) == (True, False)


def test_what_cannot_work_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, renewal = FakeOutput("slack"), FakeRenewal(refuses=True)
    config = Config(slack=SlackSection(webhook_url_file="/none"), sensors=SensorsSection(gpus=False))
    bench, _ = reloaded(tmp_path, config, renewal, [old])
    assert not old.closed
    assert renewal.panels == []
    assert bench.starter.configured is None
    assert "the old configuration stays" in caplog.text


def test_it_is_said_what_changed_and_what_did_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = Config(http=HttpSection(listen="127.0.0.1:1"), stall=StallSection(floor_seconds=9))
    reloaded(tmp_path, config, FakeRenewal())
    assert "changed: stall.floor_seconds" in caplog.text
    assert "until a restart: http.listen" in caplog.text
