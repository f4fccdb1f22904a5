"""The dashboards as committed: equal to their generator, valid by Grafana's schema, about metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.generate import ANNOTATION_WORDS, FOLDER, generated
from stallwatch.outputs.metric_table import FAMILIES, reference

ROOT = Path(__file__).parents[3]
FILES = sorted(FOLDER.glob("*.json"))
LABELS = {family.name: {*family.labels, "instance", "job"} for family in FAMILIES} | {"up": {"instance", "job"}}
# Not in a picture, with the reason.


def load(path: Path) -> dict[str, Any]:
    tree = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(tree, dict)
    return tree


def expressions(tree: dict[str, Any]) -> list[str]:
    """Every PromQL expression of a dashboard, variables and annotations included."""
    found = [target["expr"] for panel in tree["panels"] for target in panel.get("targets", ())]
    found += [annotation["expr"] for annotation in tree["annotations"]["list"]]
    found += [variable["query"]["query"] for variable in tree["templating"]["list"] if variable["type"] == "query"]
    return found


def rules() -> str:
    return (ROOT / "deploy" / "prometheus" / "stallwatch.rules.yml").read_text(encoding="utf-8")


def test_the_files_are_what_the_generator_writes() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FILES}
    assert written == generated(), "run `python -m dashboards.generate`"
    assert len(written) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_field_is_one_of_grafanas_schema(path: Path) -> None:
    """Reading into the schema's classes drops what they do not know: nothing may be lost."""
    register_default_plugins()
    tree = load(path)
    for annotation in tree["annotations"]["list"]:
        for name in ANNOTATION_WORDS:  # of Prometheus' plugin
            del annotation[name]
    again = json.loads(json.dumps(Dashboard.from_json(tree), cls=JSONEncoder))
    assert again == tree


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_ask_a_question_and_say_unit_source_and_meaning(path: Path) -> None:
    tree = load(path)
    assert len({panel["id"] for panel in tree["panels"]}) == len(tree["panels"])
    for panel in tree["panels"]:
        assert panel["title"].endswith("?"), panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24, panel["title"]
    places = [(x, y) for p in tree["panels"] for x, y in _cells(p["gridPos"])]
    assert len(places) == len(set(places)), "panels overlap"


def _cells(grid: dict[str, int]) -> list[tuple[int, int]]:
    return [(grid["x"] + i, grid["y"] + j) for i in range(grid["w"]) for j in range(grid["h"])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_expressions_use_exported_metrics_and_labels_that_these_have(path: Path) -> None:
    for expression in expressions(load(path)):
        used = re.findall(r"\b(stallwatch_\w+|up)\b(?:\{([^}]*)\})?", expression)
        assert used, expression
        for name, selectors in used:
            assert name in LABELS, name
            for label in re.findall(r"(\w+)\s*(?:=|!)", selectors):
                assert label in LABELS[name], f"{name}{{{label}}}"


def test_every_exported_metric_is_in_a_dashboard_or_a_rule_or_has_a_reason_not_to_be_and_is_documented() -> None:
    seen = " ".join(expression for path in FILES for expression in expressions(load(path))) + rules()
    used = set(re.findall(r"\bstallwatch_\w+", seen))
    exported = {family.name for family in FAMILIES}
    assert exported - used == {family.name for family in FAMILIES if family.no_panel}
    documented = set(re.findall(r"`(stallwatch_\w+)`", "\n".join(reference())))
    assert documented >= exported
    page = (ROOT / "deploy/docs/evidence.md").read_text(encoding="utf-8")
    assert exported <= set(re.findall(r"`(stallwatch_\w+)`", page))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_line_in_a_picture_names_its_job_where_it_has_one(path: Path) -> None:
    for panel in load(path)["panels"]:
        if panel["type"] not in ("timeseries", "state-timeline"):
            continue  # a table shows its labels, and one number is of all jobs
        for target in panel["targets"]:
            of_jobs = any("training_job" in LABELS[name] for name in re.findall(r"stallwatch_\w+", target["expr"]))
            summed = re.match(r"(?:sum|max|min|avg|count)\(", target["expr"])  # over all of them
            assert not of_jobs or summed or "{{training_job}}" in target["legendFormat"], panel["title"]


def test_links_lead_to_dashboards_that_exist() -> None:
    trees = [load(path) for path in FILES]
    uids = {tree["uid"] for tree in trees}
    linked = set(re.findall(r"/d/([\w-]+)/", json.dumps(trees)))
    assert linked
    assert linked <= uids
