"""What keeps any claim from being certain: recorders that do not tell what ends, and versions that nobody has tried."""

from msgspec.structs import replace

from stallwatch.diagnosis.claim import Claim, named
from stallwatch.diagnosis.job.case import Case
from stallwatch.model.verdict import Fact

# Told by processes, kernels and GPUs: recorders have no part in it.
_SEEN_ELSEWHERE = ("rank_exited", "process_stopped", "gpu_fault", "fabric_fault", "rank_raised", "job_ended")


def doubtful(case: Case, claim: Claim) -> Claim:
    """Given a claim, return it as sure as this job's recorders allow, with the reason among its facts."""
    facts = (*_silent_recorders(case, claim), *_untested_versions(case))
    if not facts or claim.cause in _SEEN_ELSEWHERE:
        return claim
    confidence = "likely" if claim.confidence == "certain" else claim.confidence
    return replace(claim, confidence=confidence, because=(*claim.because, *facts))


def _silent_recorders(case: Case, claim: Claim) -> tuple[Fact, ...]:
    """Of the back end in whose group the claim lies; of all of them where it lies in none."""
    silent = case.untold if claim.group is None else case.untold & {case.groups[claim.group].backend}
    return tuple(
        Fact(
            f"no dump tells whether operations of {backend or 'this back end'} have ended: at no look was one entry "
            "retired and another not, as where entries are retired when they are issued, or never",
            "flight recorders",
        )
        for backend in sorted(silent)
    )


def _untested_versions(case: Case) -> tuple[Fact, ...]:
    ranks: dict[str, list[int]] = {}
    for rank, summary in case.summaries.items():
        for version in summary.untested:
            ranks.setdefault(version, []).append(rank)
    return tuple(
        Fact(
            f"{version} is newer than any whose recorder was tried: it may record in another way",
            f"flight recorder of {named(using)}",
        )
        for version, using in sorted(ranks.items())
    )
