"""Writes the dashboards beside this file: `python -m dashboards.generate`. A test keeps file and generator equal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.collective_stalls import collective_stalls
from dashboards.fleet import fleet
from dashboards.node import node

FOLDER = Path(__file__).parent
# How Prometheus' plugin words an annotation; the SDK's schema of annotations ends before these.
ANNOTATION_WORDS = {
    "titleFormat": "{{training_job}}: {{cause}} {{culprit_ranks}}",
    "textFormat": "{{incident_id}}",
    "tagKeys": "cause",
    "step": "10s",
}


def generated() -> Mapping[str, str]:
    """File name to content of every dashboard."""
    made = {"fleet.json": fleet(), "collective-stalls.json": collective_stalls(), "node.json": node()}
    return {name: _text(builder.build()) for name, builder in made.items()}


def _text(dashboard: object) -> str:
    tree: dict[str, Any] = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    for number, panel in enumerate(tree["panels"], 1):
        panel["id"] = number
    for annotation in tree["annotations"]["list"]:
        annotation |= ANNOTATION_WORDS
    return json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in generated().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
