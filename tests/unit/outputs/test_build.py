"""The table of outputs: what each row says of its output is so, and whoever must know them all goes by it."""

from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import fields, replace

from stallwatch.clock import SystemClock
from stallwatch.config import Config, environment_names, marked
from stallwatch.config_sections import (
    DaemonSection,
    DeadmanSection,
    IncidentSection,
    SlackSection,
    WebhookSection,
)
from stallwatch.outputs.build import (
    OUTPUTS,
    OutputRow,
    build,
    notify_test,
    renews_telling,
    secret_files,
    telling,
    with_telling,
)
from stallwatch.outputs.output import Control, Notifies, Output
from stallwatch.replay.voices import voices
from tests.unit.loop.fakes import FakeOutput

NOBODY = cast("Control", None)  # nothing is started, so nobody asks it
SENDING = [row for row in OUTPUTS if row.kind != "shows"]


def everything(tmp_path: Path) -> Config:
    """A configuration that asks for every output: each that has an address, which is a secret, gets one."""
    config = Config()
    for section, key in marked("secret"):
        config = replace(config, **{section: replace(getattr(config, section), **{key: "https://one.example"})})
    return replace(
        config,
        daemon=DaemonSection(state_directory=str(tmp_path), run_directory=str(tmp_path)),
        incidents=IncidentSection(archive=str(tmp_path / "kept")),
        slack=SlackSection(bot_token="xoxb-1", channel="#alerts", minimum_severity="critical", also=True),
    )


def made_of(config: Config) -> tuple[Output, ...]:
    return build(config, NOBODY, SystemClock())


def test_each_row_makes_the_output_of_its_name_where_it_is_asked_for(tmp_path: Path) -> None:
    assert [output.name for output in made_of(everything(tmp_path))] == [row.name for row in OUTPUTS]
    assert [output.name for output in made_of(Config())] == [row.name for row in OUTPUTS if row.kind == "shows"]


def test_those_that_tell_are_those_that_can_be_tested(tmp_path: Path) -> None:
    tell = [output.name for output in made_of(everything(tmp_path)) if isinstance(output, Notifies)]
    assert tell == [row.name for row in OUTPUTS if row.kind == "tells"]
    assert tell == [voice.name for voice in voices(everything(tmp_path))]
    silent = replace(everything(tmp_path), slack=replace(everything(tmp_path).slack, also=False))
    assert [voice.name for voice in voices(silent)] == [name for name in tell if name != "slack"], "as it is told"
    assert voices(everything(tmp_path))[0].minimum == "critical"
    assert [voice.name for voice in voices(Config())] == ["page and log"]


def test_the_last_row_shows_how_all_the_others_do(tmp_path: Path) -> None:
    *others, http = made_of(everything(tmp_path))
    assert http.peers == tuple(others)  # type: ignore[attr-defined]


def test_after_a_renewal_each_is_there_once(tmp_path: Path) -> None:
    before = made_of(everything(tmp_path))
    after = with_telling(before, telling(everything(tmp_path), NOBODY, SystemClock()))
    assert [output.name for output in after] == [output.name for output in before]
    kept = [row.name for row, one, other in zip(OUTPUTS, before, after, strict=True) if one is other]
    assert kept == [row.name for row in OUTPUTS if row.kind == "shows"]
    assert after[-1].peers == after[:-1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", SENDING, ids=lambda row: row.name)
def test_each_of_its_settings_renews_one_that_sends(row: OutputRow) -> None:
    keys = [f"{row.section}.{field.name}" for field in fields(getattr(Config(), row.section))]
    own = [key for key in keys if key.startswith(row.settings)]
    assert own
    assert all(renews_telling(Config(), (key,)) for key in own)


def test_what_shows_is_not_renewed() -> None:
    assert not renews_telling(Config(), ("stall.floor_seconds", "http.listen", "incidents.keep_bytes"))


def test_a_secret_in_a_file_may_be_another_by_now() -> None:
    config = Config(webhook=WebhookSection(signing_key_file="/key"), deadman=DeadmanSection(url_file="/url"))
    assert secret_files(config) == ("/key", "/url")
    assert renews_telling(config, ())
    assert not renews_telling(replace(config, webhook=WebhookSection(), deadman=DeadmanSection()), ())


def test_every_file_that_names_no_secret_is_read_by_who_uses_it() -> None:
    sections = {row.section for row in SENDING}
    files = {key for key in environment_names().values() if key[0] in sections and "_file" in key[1]}
    assert files - set(marked("secret_file")) == {("incidents", "archive_options_file")}  # by its child


def test_who_wants_to_test_and_has_nothing_is_told_what_to_set() -> None:
    (words,) = notify_test((FakeOutput(),))
    assert words.endswith("set slack.webhook_url_file, webhook.url_file or alertmanager.urls")
