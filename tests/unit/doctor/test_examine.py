import re
import threading
from typing import ClassVar

import msgspec

from stallwatch.clock import SystemClock
from stallwatch.doctor.check import Check, Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, Examination, FindingRecord, Severity, json_schema
from stallwatch.doctor.checks import CHECKS, checks_table
from stallwatch.doctor.examine import examine
from stallwatch.doctor.surroundings import Surroundings
from tests.unit.doctor.fakes import FakeGpus, Node, gpus


class Fake:
    """A check that does as told."""

    name: ClassVar[str] = "fake"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "nothing"

    def __init__(
        self, *severities: Severity, error: Exception | None = None, until: threading.Event | None = None
    ) -> None:
        self.severities, self.error, self.until = severities, error, until

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if self.until is not None:
            self.until.wait()
        if self.error is not None:
            raise self.error
        return tuple(finding(self, one, "x", seen="s", why="w", remedy="r") for one in self.severities)


def run(node: Node, *checks: Check, deadline: float = 4.0) -> Examination:
    return examine(checks, node.around(), SystemClock(), deadline)


def test_outcomes_are_told_apart(node: Node) -> None:
    checks = (Fake(), Fake("info"), Fake(error=Inapplicable("no GPU")), Fake(error=Undetermined("silent")))
    done = run(node, *checks)
    assert [one.outcome for one in done.checks] == ["ok", "found", "skipped", "unknown"]
    assert [one.note for one in done.checks] == ["", "", "no GPU", "silent"]


def test_a_check_that_does_not_answer_is_given_up_and_called_unknown(node: Node) -> None:
    never = threading.Event()
    done = run(node, Fake(until=never), Fake("error"), deadline=0.05)
    never.set()
    assert [one.outcome for one in done.checks] == ["unknown", "found"]
    assert "no answer within 0.05 s" in done.checks[0].note


def test_a_broken_check_hides_no_other(node: Node) -> None:
    done = run(node, Fake(error=ZeroDivisionError("oops")), Fake("warning"))
    assert "own fault, please report: ZeroDivisionError: oops" in done.checks[0].note
    assert done.worst() == "warning"


def test_the_worst_comes_first_and_a_failed_run_before_all(node: Node) -> None:
    class OfRun(Fake):
        area: ClassVar[Area] = "failed run"

    done = run(node, Fake("info", "warning", "error"), OfRun("info"))
    assert [(one.area, one.severity) for one in done.findings] == [
        ("failed run", "info"), ("host", "error"), ("host", "warning"), ("host", "info"),
    ]  # fmt: skip
    assert run(node, Fake()).worst() is None


def test_a_clean_node_gives_no_warning(node: Node) -> None:
    done = examine(CHECKS, node.around(), SystemClock())
    assert done.worst() in (None, "info")
    assert not [one for one in done.checks if "own fault" in one.note]


def test_a_clean_node_with_gpus_gives_no_warning(node: Node) -> None:
    node.write("dev/nvidiactl", "")
    done = examine(CHECKS, node.around(gpus=FakeGpus(gpus())), SystemClock())
    assert done.worst() in (None, "info")


def test_every_check_has_a_name_of_its_own_and_says_what_it_finds() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z_]+", check.name)
        assert check.looks_for and not check.looks_for.endswith(".")


def test_the_table_names_every_check() -> None:
    table = checks_table()
    assert all(f"| `{check.name}` | {check.area} |" in table for check in CHECKS)
    assert len(table.splitlines()) == len(CHECKS) + 2


def test_the_schema_describes_what_is_printed(node: Node) -> None:
    schema = json_schema()
    done = msgspec.to_builtins(run(node, Fake("error")))
    assert set(schema["$defs"]["Examination"]["properties"]) == set(done)
    assert set(schema["$defs"]["FindingRecord"]["properties"]) == set(done["findings"][0])
    assert schema["$defs"]["FindingRecord"]["properties"]["severity"]["enum"] == ["error", "info", "warning"]
