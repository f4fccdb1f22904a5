import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stallwatch.outputs.metric_table import FAMILIES
from tests.integration.outputs.serving import served, stalled

ROOT = Path(__file__).parents[3]
DEPLOYED = ROOT / "deploy" / "prometheus"

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


def promtool(*arguments: str, folder: Path = DEPLOYED, text: str | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=folder, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_use_only_metrics_that_are_exported_and_labels_that_these_have() -> None:
    text = (DEPLOYED / "stallwatch.rules.yml").read_text()
    labels = {family.name: set(family.labels) for family in FAMILIES}
    used = re.findall(r"\b(stallwatch_\w+)(?:\{([^}]*)\})?", text)
    assert used
    for name, selectors in used:
        assert name in labels, name
        for label in re.findall(r"(\w+)\s*[=!]", selectors):
            assert label in labels[name], f"{name}{{{label}}}"


@needs_promtool
def test_the_shipped_configuration_is_valid() -> None:
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_each_rule_fires_for_its_case_and_healthy_jobs_are_quiet() -> None:
    promtool("test", "rules", "stallwatch.rules.test.yml", folder=Path(__file__).parent)


@needs_promtool
def test_prometheus_finds_no_fault_with_names_and_help() -> None:
    with served(stalled()) as node:
        promtool("check", "metrics", text=node.get("/metrics").body.decode())
