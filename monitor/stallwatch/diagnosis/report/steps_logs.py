"""Steps where the line of a log tells the cause: its own remedy, and what fits after it. What was not seen (a process,
a stack, a driver's counters) is not asked for."""

from collections.abc import Mapping

from stallwatch.diagnosis.activity import Activity
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.diagnosis.report.steps_scene import Scene

_GIVE_ALL = (
    "Give `stallwatch analyze` the logs of all ranks and of the launcher together; `torchrun --log-dir DIR --redirects "
    "3` keeps one a rank."
)


def by_line(scene: Scene, words: Words, activities: Mapping[int, Activity]) -> list[str]:
    """Given the words of the line that tells the cause, return its steps."""
    match scene.verdict.cause:
        case "job_ended":
            return [words.remedy]
        case "undecided":
            return [words.remedy, *([] if anybody_seen(activities) else more_logs(scene))]
        case "collective_mismatch":
            return [words.remedy, *_sides(scene), _AGAIN]
        case _:
            return [words.remedy, _then(scene, words)]


def anybody_seen(activities: Mapping[int, Activity]) -> bool:
    """Whether a process or a stack of any rank was looked at: else there are logs alone."""
    return any(activity.known for activity in activities.values())


def more_logs(scene: Scene) -> list[str]:
    """Steps where logs alone are at hand, and do not decide."""
    missing = [f"Missing: {lacking}." for lacking in (text.rstrip(".") for text in scene.verdict.missing[:1])]
    return [*missing, _GIVE_ALL]


_AGAIN = "Mend the program before it starts again: it comes back at the same call."


def _sides(scene: Scene) -> list[str]:
    mismatch = scene.verdict.mismatch
    if scene.rank is None or mismatch is None:
        return ["Compare the code paths of these ranks up to that call: each one's own traceback shows its line."]
    seen = f"{scene.name} has {mismatch.found}, the others {mismatch.expected}"
    return [f"Compare the code paths of {scene.name} and of another rank up to the call: {seen}."]


def _then(scene: Scene, words: Words) -> str:
    if words.then == "without_node":
        return f"Leave {scene.host} out until that is mended, and start the job elsewhere from its last checkpoint."
    if words.then == "start":
        return "Stop what still runs of the job, mend this and start it again: it had not begun to train."
    return "Stop what still runs of the job, mend this and start it again from its last checkpoint."
