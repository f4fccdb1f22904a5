import signal
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.bundle.past import read_history
from stallwatch.bundle.writer import BundleWriter
from stallwatch.config import Config
from stallwatch.config_sections import TellSection
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.errors import UsageError
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.replay.playing import detect
from tests.builders.running_job import four, job_run
from tests.unit.incidents.stories import report
from tests.unit.loop.fakes import Bench, FakeOutput, FakeStarter

HANG = job_run(four(stuck_at=20.3), 40)


def only_incident(bench: Bench) -> Incident:
    (incident,) = bench.latest.incidents
    return incident


def test_a_hang_becomes_evidence_a_verdict_and_a_warning(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG).run()
    incident = only_incident(bench)
    assert incident.state == "open"
    assert incident.severity == "warning"
    assert incident.verdict is not None
    looks = [(incident.incident_id, look, (0, 1, 2, 3)) for look in (1, 2)]
    assert bench.starter.captured[:2] == looks
    assert incident.bundle == str(tmp_path / "incidents" / incident.incident_id)
    stored = bench.store.load(incident.incident_id)
    assert stored is not None
    assert (stored.events, stored.report, stored.severity) == (incident.events, incident.report, incident.severity)


def test_who_judges_is_made_ready_while_there_are_ranks(tmp_path: Path) -> None:
    empty = [msgspec.structs.replace(shot, ranks=()) for shot in HANG[:5]]
    assert Bench(tmp_path, empty).run().starter.readied == 0
    assert Bench(tmp_path, HANG).run(5).starter.readied == 5


def test_the_bundle_holds_what_replays_the_decision(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG).run()
    bundle = Path(only_incident(bench).bundle)
    names = {path.name for path in bundle.iterdir()}
    assert {"bundle.json", "timeline.jsonl", "config.json", "verdict.json", "incident.json"} <= names
    config = msgspec.json.decode((bundle / "config.json").read_bytes(), type=Config)
    replayed = list(detect(config, read_history(bundle).snapshots))
    stages = [finding.stage for _, detected in replayed for finding in detected.findings]
    assert stages[0] == "suspect"
    assert stages[-1] == "confirmed"


def test_the_job_that_moves_again_resolves_its_incident(tmp_path: Path) -> None:
    again = job_run(four(begins_at=20), 60, first_second=41)
    bench = Bench(tmp_path, [*HANG, *again]).run()
    incident = only_incident(bench)
    assert incident.state == "resolved"
    assert "moves again" in incident.resolution


def test_a_false_suspicion_leaves_nothing_on_disk(tmp_path: Path) -> None:
    again = job_run(four(begins_at=6), 60, first_second=28)
    bench = Bench(tmp_path, [*job_run(four(stuck_at=20.3), 27), *again])
    bench.run(28)
    assert [i.state for i in bench.latest.incidents] == ["suspect"]
    bench.run(30)
    assert not bench.latest.incidents
    assert not list((tmp_path / "incidents").iterdir())


def test_sensors_that_fail_cost_their_tick_and_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG, raises=[3, 4]).run()
    errors = {(e.stage, e.name): e.errors_total for e in bench.latest.stage_errors}
    assert errors[("sensors", "panel")] == 2
    assert only_incident(bench).severity == "warning"


def test_a_failure_between_detectors_is_counted_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, failing = Detection.step, {3, 4}

    def fail(self: Detection, before: DetectionState, snapshot: NodeSnapshot) -> tuple[DetectionState, Detected]:
        if snapshot.tick in failing:
            raise NameError("name 'seen' is not defined")
        return step(self, before, snapshot)

    monkeypatch.setattr(Detection, "step", fail)
    bench = Bench(tmp_path, HANG).run()
    assert only_incident(bench).state == "open"
    assert sum(e.errors_total for e in bench.latest.stage_errors if e.stage == "detectors") == len(failing)


def test_an_output_that_raises_hurts_only_itself(tmp_path: Path) -> None:
    broken, fine = FakeOutput("broken", broken=True), FakeOutput("fine")
    bench = Bench(tmp_path, HANG, outputs=[broken, fine]).run()
    assert len(fine.reports) >= len(HANG)
    assert any(e.name == "broken" and e.errors_total == len(broken.reports) - 1 for e in bench.latest.stage_errors)


def test_looks_that_cannot_be_started_are_said_and_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job_run(four(stuck_at=20.3), 60), starter=FakeStarter(broken=True)).run()
    whats = [event.what for event in only_incident(bench).events]
    assert any("could not be started" in what for what in whats)
    assert any(e.name == "StartCapture" and e.errors_total > 1 for e in bench.latest.stage_errors)


def test_a_full_disk_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: BundleWriter, *arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BundleWriter, "write_timeline", full)
    bench = Bench(tmp_path, HANG).run()
    assert bench.latest.snapshot.at_ns == HANG[-1].at_ns
    assert any(e.stage == "incidents" for e in bench.latest.stage_errors)


def test_a_look_that_hangs_is_given_up_for_the_next_and_cancelled_at_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG, starter=FakeStarter(hangs=True)).run()
    assert [capture.cancelled for capture in bench.starter.captures] == [True, False]
    bench.daemon.close()
    assert all(capture.cancelled for capture in bench.starter.captures)
    assert bench.panel.closed
    assert all(output.closed for output in bench.outputs)


def test_a_daemon_restarted_in_the_middle_of_an_incident_goes_on_with_it(tmp_path: Path) -> None:
    first = Bench(tmp_path, HANG).run()
    told = only_incident(first)
    second = Bench(tmp_path, job_run(four(stuck_at=20.3), 60, first_second=42)).run()
    incident = only_incident(second)
    assert incident.incident_id == told.incident_id
    assert incident.severity == "warning"
    assert incident.events[: len(told.events)] == told.events
    assert not second.starter.captured, "the verdict stands, nobody is disturbed again"


def test_an_incident_of_a_job_that_ended_while_no_daemon_ran_has_ended_and_is_not_well(tmp_path: Path) -> None:
    Bench(tmp_path, HANG).run()
    empty = [msgspec.structs.replace(shot, ranks=()) for shot in HANG]
    after = Bench(tmp_path, empty).run()
    assert only_incident(after).state == "ended"


def test_a_capture_on_request_answers_with_its_incident(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job_run(four(), 40), starter=FakeStarter(report("healthy", ()))).run(5)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(bench.daemon.control.capture(None)))
    asking.start()
    while asking.is_alive():
        bench.daemon.between_ticks()
    asking.join()
    assert bench.daemon.control.incident(answers[0]) is not None
    bench.run(10)
    kept = bench.daemon.control.incident(answers[0])
    assert kept is not None
    assert kept.resolution == "captured on request"
    assert bench.daemon.control.past_incidents(5)[0].incident_id == answers[0]


def test_a_capture_of_an_unknown_job_is_refused_with_advice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job_run(four(), 5))
    with pytest.raises(UsageError, match="has not looked"):
        bench.daemon.control.capture(None)
    bench.run()
    with pytest.raises(UsageError, match="no job 'other'") as refused:
        bench.daemon.control.capture("other")
    assert "train" in refused.value.help


def test_a_muted_job_is_watched_and_nobody_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG)
    bench.daemon.control.mute("train", 3600, "")
    incident = only_incident(bench.run())
    assert (incident.severity, incident.muted) == ("none", True)
    assert incident.verdict is not None


def test_who_mutes_a_name_that_several_users_have_must_say_whose_job_he_means(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job_run(four(), 5))
    with pytest.raises(UsageError, match="no job 'train' is known"):
        bench.daemon.control.mute("train", 60)
    assert bench.daemon.control.mute("train", 60, by="anna") == "anna"
    bench.run()
    report = bench.latest
    assert bench.daemon.control.mute("train", 60, by="anna") == ""  # of who has it
    theirs = tuple(replace(view, job=replace(view.job, owner="ben")) for view in report.ranks)
    bench.daemon.control.show(replace(report, ranks=(*report.ranks, *theirs)))
    with pytest.raises(UsageError, match="2 users have a job 'train'") as refused:
        bench.daemon.control.mute("train", 60, by="ben")
    assert "--owner" in refused.value.help
    with pytest.raises(UsageError, match="2 users have a job 'train'"):
        bench.daemon.control.capture("train")
    assert bench.daemon.control.mute("train", 60, "ben") == "ben"


def test_the_configuration_is_read_again_on_request(tmp_path: Path) -> None:
    calls = []

    def read() -> Config:
        calls.append(1)
        return Config(tell=TellSection(settle_seconds=1))

    bench = Bench(tmp_path, HANG, reload=read).run(2)
    bench.daemon.ask_reload()
    bench.run(1)
    assert calls == [1]
    assert bench.starter.configured == msgspec.structs.replace(bench.config, tell=TellSection(settle_seconds=1))


def test_a_test_alert_right_after_a_reload_goes_by_what_is_read_then(tmp_path: Path) -> None:
    new = Config(tell=TellSection(settle_seconds=1))
    bench = Bench(tmp_path, HANG, reload=lambda: new).run(1)
    bench.daemon.ask_reload()
    settled: list[Config | None] = []

    def ask() -> None:
        assert bench.daemon.outputs_in_force(60)
        settled.append(bench.starter.configured)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()  # the loop has not come to it yet
    bench.run(1)
    thread.join(60)
    assert settled == [msgspec.structs.replace(bench.config, tell=new.tell)]


def test_a_configuration_that_does_not_read_leaves_the_old_one(tmp_path: Path) -> None:
    def broken() -> Config:
        raise UsageError("not TOML")

    bench = Bench(tmp_path, HANG, reload=broken)
    bench.daemon.ask_reload()
    bench.run()
    assert only_incident(bench).severity == "warning"
    assert any(e.name == "reload" for e in bench.latest.stage_errors)


def test_a_signal_ends_the_loop_cleanly(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG)
    bench.outputs[0].publish = lambda report: signal.raise_signal(signal.SIGTERM)  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, bench.daemon.stop)
        bench.daemon.run(bench.outputs)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert bench.panel.closed
    assert bench.outputs[0].closed


def test_an_output_that_cannot_start_stops_the_daemon_and_closes_the_rest(tmp_path: Path) -> None:
    class PortInUse(FakeOutput):
        def start(self) -> None:
            raise UsageError("port 9477 is in use", "Choose another.")

    bench = Bench(tmp_path, HANG)
    with pytest.raises(UsageError, match="in use"):
        bench.daemon.run([PortInUse()])
    assert bench.panel.closed
