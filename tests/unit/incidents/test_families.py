from stallwatch.config import Config
from stallwatch.detectors.detection import detectors
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey

ABOUT = {
    "exit": "hang", "hardware": "hang", "stopped": "hang", "init": "hang", "stall": "hang", "quiet": "hang",
    "slow": "slow", "slow_job": "health", "health": "health", "drift": "drift",
}  # fmt: skip


def test_every_detector_belongs_to_the_family_that_its_findings_are_about() -> None:
    def family(detector: str) -> str:
        return Finding(detector, "suspect", JobKey("job", "1"), (0,), 0, 0.0, "").family

    # Others say it with each finding.
    assert {part.name: family(part.name) for part in detectors(Config()) if part.name in ABOUT} == ABOUT
