"""Who would have been told what, by the rule that every output goes by (incidents.delivery_steps)."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from stallwatch.config import Config
from stallwatch.incidents.delivery_steps import Step, covered, due, verdict_key
from stallwatch.model.incident import Incident, Severity
from stallwatch.outputs.build import TELLING
from stallwatch.outputs.log import line

# Where nothing else is configured: page, API, log and metrics show what deserves a warning.
SHOWN = "page and log"


class Voice(msgspec.Struct, frozen=True):
    """An output that tells incidents."""

    name: str
    minimum: Severity


class ToldStep(msgspec.Struct, frozen=True):
    """One step of an incident's life that is told."""

    outputs: tuple[str, ...]
    step: Step
    incident: Incident

    @property
    def line(self) -> str:
        """The message in one line."""
        return line(self.incident)


def voices(config: Config) -> tuple[Voice, ...]:
    """Return the outputs of this configuration that send messages about incidents. Nothing secret is read."""
    configured = tuple(
        Voice(row.name, getattr(config, row.section).minimum_severity) for row in TELLING if row.is_asked_for(config)
    )
    return configured or (Voice(SHOWN, "warning"),)


class SaidByVoices:
    """Remembers what each voice has said."""

    def __init__(self, told_by: Sequence[Voice]) -> None:
        self._voices = tuple(told_by)
        self._steps: dict[tuple[str, str], tuple[Step, ...]] = {}  # by voice and incident
        self._verdicts: dict[tuple[str, str], str] = {}

    def step(self, incidents: Sequence[Incident]) -> list[ToldStep]:
        """Given the incidents as they are now, return what is told of them now."""
        messages = []
        for incident in incidents:
            names: dict[Step, list[str]] = defaultdict(list)
            for voice in self._voices:
                key = (voice.name, incident.incident_id)
                step = due(incident, self._steps.get(key, ()), voice.minimum, self._verdicts.get(key, ""))
                if step is not None:
                    self._steps[key] = (*self._steps.get(key, ()), *covered(incident, step))
                    self._verdicts[key] = verdict_key(incident)
                    names[step].append(voice.name)
            messages += [ToldStep(tuple(by), step, incident) for step, by in names.items()]
        return messages
