"""What a finding tells people to do must not be what another finding warns of."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import stallwatch
from stallwatch.doctor.check import Check, Inapplicable, Undetermined
from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.checks import CHECKS
from stallwatch.doctor.environment.known_variables import Variable, catalogue
from tests.unit.doctor.fakes import SHELL, FakeTraining, Node, training

OF_ENVIRONMENTS = [check for check in CHECKS if check.area in ("environment", "network")]
PACKAGE = Path(stallwatch.__file__).parent
# "A=1 B=2" after export; a value that only the reader knows (<interface>) is left out.
EXPORT = re.compile(r"\bexport ((?:[A-Z][A-Z0-9_]*=[^\s;<]*[^\s;<,.)]\s?)+)")
UNSET = re.compile(r"\bunset ((?:[A-Z][A-Z0-9_]*\s?)+)")
VERSIONS = [("2.13.0", "2.30.7"), ("2.6.0", "2.21.5"), ("2.14.1", "2.30.7"), ("2.0.1", "2.14.3")]


def values_of(variable: Variable) -> Iterator[str]:
    """Good, bad and odd values of a variable."""
    yield from ("1", "0", "true", "abc", "-7", "99999999", "", "'1'", "1\r")
    yield from variable.choices[:2]
    yield from (value for value in variable.left_on if value != "*")


def environments() -> Iterator[dict[str, str]]:
    known = catalogue()
    for variable in known.variables.values():
        for value in values_of(variable):
            yield {variable.name: value}
            if variable.status == "renamed":
                yield {variable.name: value, variable.instead: value}
                yield {variable.name: value, variable.instead: "2"}
        if len(variable.name) > 8:
            yield {variable.name[:-2] + variable.name[-1] + variable.name[-2]: "1"}
    yield from (
        {"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_CTAS": "8"},
        {"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "8"},
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "=mlx5_0"},
        {"NCCL_IB_TIMEOUT": "31"},
        {"NCCL_IB_TIMEOUT": "28", "NCCL_IB_RETRY_CNT": "7"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        {"NCCL_DEBUG_FILE": "~/nccl.log"}, {"NCCL_DEBUG_FILE": "/tmp/n.%h"}, {"NCCL_DEBUG_SUBSYS": "INIT,NET"},
        {"NCCL_RAS_ADDR": "28028"}, {"MASTER_PORT": "abc"}, {"MASTER_ADDR": "http://node1"},
        {"GLOO_SOCKET_IFNAME": "^lo"}, {"NCCL_SOCKET_IFNAME": "eth7"}, {"NCCL_SOCKET_IFNAME": "eth1"},
        {"CUDA_VISIBLE_DEVICES": "0, 1"}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {"OMP_NUM_THREADS": "auto"},
        {"MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
        {"NCCL_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size:128"}, {"DEEPSPEED_TIMEOUT": "1800"}, {"NCLL_DEBUG": "INFO"},
        {"NCLL_P2P_DISABLE": "1"}, {"NCCL_BLOKING_WAIT": "1"}, {"DEEPSPEED_TIMEOUT": "999999"},
    )  # fmt: skip


def look(node: Node, values: Mapping[str, str], versions: tuple[str, str]) -> list[FindingRecord]:
    around = node.around(values, training=FakeTraining(training(*versions)))
    found: list[FindingRecord] = []
    for check in OF_ENVIRONMENTS:
        try:
            found += check.look(around)
        except (Inapplicable, Undetermined):
            continue
    return found


def applied(remedy: str, values: Mapping[str, str]) -> dict[str, str]:
    after = dict(values)
    for match in UNSET.finditer(remedy):
        for name in match[1].split():
            after.pop(name, None)
    for match in EXPORT.finditer(remedy):
        after |= dict(pair.split("=", 1) for pair in match[1].split())
    return after


@pytest.mark.parametrize("versions", VERSIONS, ids=lambda versions: f"torch {versions[0]}")
def test_applying_a_remedy_brings_no_new_finding_and_ends_its_own(node: Node, versions: tuple[str, str]) -> None:
    applied_remedies = 0
    for values in environments():
        before = look(node, values, versions)
        for record in before:
            if record.subject != SHELL or (after := applied(record.remedy, values)) == values:
                continue
            applied_remedies += 1
            left = look(node, after, versions)
            told = {(one.check, one.seen) for one in before}
            new = [(one.check, one.seen) for one in left if one.subject == SHELL and (one.check, one.seen) not in told]
            assert not new, f"{values}: {record.check} says {record.remedy!r}, and then: {new}"
            assert (record.check, record.seen) not in {(one.check, one.seen) for one in left}, (values, record)
    assert applied_remedies > 300


def test_no_variable_is_told_twice(node: Node) -> None:
    for variable in catalogue().variables.values():
        for value in values_of(variable):
            found = [one.check for one in look(node, {variable.name: value}, VERSIONS[0]) if one.subject == SHELL]
            assert len(found) <= 1, (variable.name, value, found)


def test_a_renamed_variable_whose_value_is_a_finding_is_told_once_with_unset(node: Node) -> None:
    (found,) = look(node, {"NCCL_BLOCKING_WAIT": "1"}, VERSIONS[0])
    assert found.check == "debug_left_on"
    assert found.seen == "NCCL_BLOCKING_WAIT=1 is set (PyTorch calls it TORCH_NCCL_BLOCKING_WAIT since 2.2)."
    assert found.remedy == "unset NCCL_BLOCKING_WAIT"


def exported() -> Iterator[tuple[str, str, str]]:
    """Every `export NAME=VALUE` in a text of the package."""
    for path in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        texts = [text]
        if path.suffix == ".py":
            nodes = list(ast.walk(ast.parse(text)))
            cut = {id(part) for one in nodes if isinstance(one, ast.JoinedStr) for part in one.values}
            whole = [one for one in nodes if isinstance(one, ast.Constant) and id(one) not in cut]
            texts = [one.value for one in whole if isinstance(one.value, str)]
        for match in (match for one in texts for match in EXPORT.finditer(one)):
            for pair in match[1].split():
                name, _, value = pair.partition("=")
                yield path.name, name, value.strip("\"'`")


def test_no_text_of_the_package_exports_what_a_check_refuses(node: Node) -> None:
    found = [one for one in exported() if not set("{$") & set(one[2])]
    assert len(found) > 10
    for place, name, value in found:
        records = [one for one in look(node, {name: value}, VERSIONS[0]) if one.subject == SHELL]
        assert [one for one in records if one.severity != "info"] == [], (place, name, value)


@pytest.mark.parametrize("check", OF_ENVIRONMENTS, ids=lambda check: check.name)
def test_a_clean_environment_has_nothing_to_apply(node: Node, check: Check) -> None:
    try:
        assert [one for one in check.look(node.around()) if one.subject == SHELL] == []
    except (Inapplicable, Undetermined):
        pass
