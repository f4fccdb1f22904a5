"""What came of a control, and how that is shown."""

from collections.abc import Sequence

import msgspec

from stallwatch.model.verdict import Verdict

MOST_LATE = 10.0  # seconds after the printed moment
UNDECIDED = ("healthy", "undecided", "waiting")
TERMINATED = ("terminated", "preempted")  # torchrun itself then ends with an error
# Of a job without a hook nothing is told before it was seen to work, and it is looked at after half a minute of quiet.
LEAST_WATCHED = 30.0  # seconds


class Expected(msgspec.Struct, frozen=True):
    """The truth of a hang."""

    causes: tuple[str, ...]
    culprits: tuple[int, ...]
    where: tuple[str, ...] = ()  # empty: not asked
    lines: tuple[int, ...] = ()  # of its program, one of which a culprit stands at; empty: not asked

    def wrong(self, verdict: Verdict) -> str:
        """What of it is not the truth, "" where all is."""
        if verdict.cause not in self.causes:
            return f"not {self.causes[0]}"
        if verdict.culprits != self.culprits:
            return f"not {list(self.culprits)}"
        if self.where and verdict.where not in self.where:
            return f"not {self.where[0]}"
        named = {process.frame.line for process in verdict.culprit_processes if process.frame}
        # A thread or a child that it waits for is named by the sentence.
        named |= {line for line in self.lines if f".py:{line} " in f"{verdict.summary} "}
        if self.lines and not named.intersection(self.lines):
            return f"not line {self.lines[0]}"
        return ""


class Control(msgspec.Struct):
    name: str
    run: int
    job: str
    exit_code: int | None = None
    told: tuple[str, ...] = ()
    thought: tuple[str, ...] = ()
    stepped: bool = False
    hooked: bool = True
    worked_at: float | None = None  # the daemon first said that it was seen to work, on our monotonic clock
    watched_seconds: float = 0.0  # that it then went on
    seconds: float = 0.0
    is_twin: bool = False  # it never ends, and must be told within what was promised
    promised_at: float | None = None  # the last "tell_at" that was shown, seconds of the epoch
    told_at: float | None = None
    reason: str = ""
    expected: Expected | None = None  # of a hang
    verdict: Verdict | None = None  # what was told
    stood_at: float | None = None  # its last step before the verdict, seconds of the epoch; None: it counts none
    decided_at: float | None = None  # the verdict, told or not; of a hang the true one
    was_cut: bool = False  # our time was over before it was

    @property
    def wrong(self) -> str:
        """What was told and is not the truth."""
        return self.expected.wrong(self.verdict) if self.expected and self.verdict else ""

    def is_decided_by(self, verdict: Verdict) -> bool:
        """Whether this says what it is."""
        if self.expected is not None:
            return not self.expected.wrong(verdict)
        return verdict.cause not in UNDECIDED

    @property
    def seconds_to_verdict(self) -> float | None:
        """Of what never ends."""
        if not self.is_twin or self.decided_at is None or self.stood_at is None:
            return None
        return round(self.decided_at - self.stood_at, 1)

    @property
    def proves_nothing(self) -> str:
        """Why nobody could have been told of it, in words: that nobody was is then no evidence. "" where it is some."""
        if self.is_twin or self.told or (self.stepped and (self.hooked or not self.ended_well)):
            return ""
        if not self.stepped:
            return "never seen to step" if self.hooked else "never seen"
        if self.worked_at is None:
            return "never seen to work"
        if self.watched_seconds < LEAST_WATCHED:
            return f"seen to work for its last {self.watched_seconds:.0f} s alone"
        return ""

    @property
    def right(self) -> bool:
        """Nobody was told of what ends, and somebody could have been; of what never ends somebody, and in time."""
        if not self.is_twin:
            return self.quiet and not self.proves_nothing
        return self.late_seconds is not None and self.late_seconds <= MOST_LATE and not self.wrong

    @property
    def late_seconds(self) -> float | None:
        """After the promised moment; at once where none was shown."""
        if self.told_at is None:
            return None
        return max(0.0, self.told_at - self.promised_at) if self.promised_at is not None else 0.0

    @property
    def quiet(self) -> bool:
        return not self.told and self.ended_well

    @property
    def ended_well(self) -> bool:
        return self.stepped and (self.exit_code == 0 or (self.name in TERMINATED and self.exit_code is not None))


def table(controls: Sequence[Control]) -> str:
    """One line per situation, in Markdown."""
    lines = ["| situation | runs | right | thought, told to nobody |", "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(control.name for control in controls):
        mine = [control for control in controls if control.name == name]
        thought = dict.fromkeys(one for control in mine for one in (control.told or control.thought))
        lines.append(f"| {name} | {len(mine)} | {sum(c.right for c in mine)} | {'; '.join(thought)} |")
    return "\n".join(lines)


def total(controls: Sequence[Control]) -> str:
    """What a run has shown, counted: those whose quiet proves nothing apart, by name."""
    text = f"right in {sum(control.right for control in controls)} of {len(controls)} runs"
    calm = [control for control in controls if not control.is_twin]
    if not calm:
        return text
    proving = [control for control in calm if control.right]
    text += f": {len(proving)} quiet, of which {sum(bool(control.thought) for control in proving)} were thought about"
    text += f"; {sum(bool(control.told) for control in calm)} told"
    bad = dict.fromkeys(c.name for c in calm if not (c.told or c.ended_well or c.proves_nothing or c.was_cut))
    text += f"; {len(bad)} ended badly ({', '.join(bad)})" if bad else ""
    if cut := sum(control.was_cut or not control.seconds for control in calm):
        text += f"; {cut} cut short"
    idle = [c for c in calm if c.proves_nothing and c.seconds and not c.was_cut]
    if idle:
        text += f"; {len(idle)} no evidence ({', '.join(f'{c.name}: {c.proves_nothing}' for c in idle)})"
    return text


def line(control: Control) -> str:
    thought = f" | thought: {'; '.join(control.thought)}" if control.thought else ""
    if control.is_twin:
        late = "NEVER TOLD" if control.late_seconds is None else f"told, {control.late_seconds:.1f} s late"
        thought = "; ".join(control.thought)
        late = f"WRONG: {control.wrong}, {late}" if control.wrong else late
        if control.seconds_to_verdict is not None:
            late = f"verdict after {control.seconds_to_verdict:.1f} s, {late}"
        return f"{control.name:26} twin,  {control.seconds:5.1f} s: {late} | {thought} | {control.reason}"
    if control.told:
        outcome = f"TOLD {'; '.join(control.told)} exit {control.exit_code}"
    elif control.proves_nothing:
        outcome = f"NO EVIDENCE: {control.proves_nothing}, exit {control.exit_code}"
    else:
        outcome = "quiet" if control.ended_well else f"quiet, and ENDED BADLY: exit {control.exit_code}"
    why = f" | {control.reason}" if control.reason else ""
    return f"{control.name:26} run {control.run + 1}, {control.seconds:5.1f} s: {outcome}{thought}{why}"
