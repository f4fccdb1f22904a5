"""What may end by itself, and with which patience."""

from typing import get_args

import pytest

from stallwatch.config_sections import TellSection
from stallwatch.model.verdict import EndsByItself
from stallwatch.progress.kinds import Doing, kind_of, of_all, patience_with


@pytest.mark.parametrize(
    ("doing", "kind"),
    [
        (Doing("user_code", sleeps=True), "sleep"),
        (Doing("socket", sleeps=True), "sleep"),
        (Doing("busy_loop"), "compute"),
        (Doing("gil", on_cpu=True), "compute"),
        (Doing("checkpoint"), "storage"),
        (Doing("dataloader"), "data"),
        (Doing("compile", on_cpu=True), "compile"),
        (Doing("compile", child=True), "compile"),  # ninja, g++
        (Doing("socket", tracker=True), "tracker"),
        (Doing("user_code", child=True), "child"),
        (Doing("teardown", tracker=True), "tracker"),
        (Doing("filesystem", imports=True), "import"),
        (Doing("lock", bounded=True), "timeout"),
        (Doing("lock", sleeps=True, bounded=True), "timeout"),
        (Doing("lock", helper="network"), "network"),
        (Doing("socket", serves=True), "request"),
        (Doing("lock", serves=True), "request"),
    ],
)
def test_what_a_rank_does_may_end_by_itself(doing: Doing, kind: str) -> None:
    assert kind_of(doing) == kind


@pytest.mark.parametrize(
    "doing",
    [
        Doing("lock"),
        Doing("lock", sleeps=True),
        Doing("gil", sleeps=True),
        Doing("collective", on_cpu=True),
        Doing("gpu_sync", on_cpu=True),
        Doing("store", sleeps=True),
        Doing("user_code"),
    ],
)
def test_a_lock_a_call_that_sleeps_with_the_gil_and_a_collective_end_by_nobody(doing: Doing) -> None:
    assert kind_of(doing) is None


def test_of_several_culprits_the_longest_patience_counts_and_one_that_is_stuck_ends_it() -> None:
    assert of_all(["sleep", "compile"]) == "compile"
    assert of_all(["sleep", None]) is None
    assert of_all([]) is None


@pytest.mark.parametrize("kind", get_args(EndsByItself))
def test_every_kind_has_its_key_and_says_it(kind: EndsByItself) -> None:
    patience = patience_with(kind, TellSection())
    assert f"tell.{kind}_seconds" in patience.why
    assert patience.seconds >= 60
