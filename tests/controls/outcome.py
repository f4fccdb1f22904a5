"""What came of a control, and how that is shown."""

from collections.abc import Sequence

import msgspec

TERMINATED = ("terminated", "preempted")  # torchrun itself then ends with an error


class Control(msgspec.Struct):
    name: str
    run: int
    job: str
    exit_code: int | None = None
    told: tuple[str, ...] = ()
    thought: tuple[str, ...] = ()
    stepped: bool = False
    seconds: float = 0.0

    @property
    def quiet(self) -> bool:
        return not self.told and self.ended_well

    @property
    def ended_well(self) -> bool:
        return self.stepped and (self.exit_code == 0 or (self.name in TERMINATED and self.exit_code is not None))


def table(controls: Sequence[Control]) -> str:
    """One line per situation, in Markdown."""
    lines = ["| situation | runs | nobody told | thought, told to nobody |", "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(control.name for control in controls):
        mine = [control for control in controls if control.name == name]
        thought = dict.fromkeys(one for control in mine for one in (control.told or control.thought))
        lines.append(f"| {name} | {len(mine)} | {sum(c.quiet for c in mine)} | {'; '.join(thought)} |")
    return "\n".join(lines)


def line(control: Control) -> str:
    thought = f" | thought: {'; '.join(control.thought)}" if control.thought else ""
    outcome = "quiet" if control.quiet else f"TOLD {'; '.join(control.told)} exit {control.exit_code}"
    outcome += "" if control.stepped else ", never seen to step"
    return f"{control.name:26} run {control.run + 1}, {control.seconds:5.1f} s: {outcome}{thought}"
