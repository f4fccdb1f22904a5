"""Lines that a job prints when it has ended by itself, of trainers, launchers, schedulers and NCCL; and lines which say
that something is tried again."""

from typing import Final

from stallwatch.formats.log_pattern import Pattern, pattern

_WORK: Final = r"(?:(?:[Pp]re-?|[Ff]ine-?)?[Tt]raining|TRAINING|[Ff]ine-?tuning)"
_OVER: Final = r"(?:[Cc]ompleted?|COMPLETED?|[Ff]inished|FINISHED|[Dd]one|DONE|[Ee]nded|[Ss]ucceeded)"
# "Training finished for epoch 3" ends an epoch, "with errors" nothing well.
_NOT_A_PART: Final = (
    r"(?![^.]*\b(?:[Ee]poch|[Ss]tep|[Bb]atch|[Ii]ter\w*|[Pp]hase|[Ss]tage) \d)(?!.*\b(?<!0 )(?<!no )(?:error|fail))"
)
_ENDED: Final = (
    rf"\b{_WORK}(?:[ _](?:run|job|loop|process|script))?(?: (?:is|has|was))?(?: been)?(?: successfully)?"
    rf"[ :=-]+{_OVER}\b{_NOT_A_PART}"
)
_HAS_ENDED: Final = rf"\b(?:[Ff]inished|FINISHED|[Cc]ompleted|[Dd]one|DONE)(?: with)?(?: the)? {_WORK}\b{_NOT_A_PART}"
_JOB_ENDED: Final = (
    r"\b(?:[Jj]ob|[Rr]un|[Ss]cript|[Ee]xperiment|[Ww]orker group|[Tt]raining)(?: \S+)?(?: has| is)?"
    r" (?:(?:completed|finished|ended|exited) successfully|successfully (?:completed|finished)|succeeded)\b"
)

# What must be in the line: whole enough that lines of a training loop have none of them.
_NEEDLES: Final = (
    *(f"raining {over}" for over in ("complete", "Complete", "COMPLETE", "finished", "done", "ended", "succe")),
    *(f"raining {link}" for link in ("is ", "has ", "was ", "run ", "job ", "loop ", "process ")),
    *(f"TRAINING {over}" for over in ("COMPLETE", "FINISHED", "DONE")),
    *(f"tuning {over}" for over in ("complete", "finished", "done", "succe", "is ", "has ")),
    *(f"{over} {work}" for over in ("inished", "ompleted", "one") for work in ("training", "Training", "fine", "pre")),
    *("raining: ", "tuning: ", "inished the training", "one with training", "FINISHED TRAINING", "DONE training"),
)

END_PATTERNS: Final[tuple[Pattern, ...]] = (
    pattern(
        "clean_end",
        "destroy_process_group() was not called",
        r"destroy_process_group\(\) was not called before program exit",
        secondary=True,
    ),
    pattern("clean_end", "has NOT been destroyed", r"process group has NOT been destroyed", secondary=True),
    pattern("clean_end", "Destroy COMPLETE", r"- Destroy COMPLETE", secondary=True),
    *(pattern("clean_end", needle, rf"{_ENDED}|{_HAS_ENDED}", secondary=True) for needle in _NEEDLES),
    pattern("clean_end", "raining time", r"\b(?:[Tt]otal )?[Tt]raining time:? +\d", secondary=True),
    pattern("clean_end", "train_runtime", r"\btrain_runtime['\"]?\s*[:=]\s*['\"]?\d", secondary=True),
    pattern("clean_end", "` stopped: `max_", r"`Trainer\.\w+` stopped: `max_\w+=\S+` reached", secondary=True),
    pattern("clean_end", "exits successfully", r"\bProcess \d+ exits successfully", secondary=True),
    *(pattern("clean_end", word, _JOB_ENDED, secondary=True) for word in (" successfully", " succeeded")),
    pattern("clean_end", "exited with code 0", r"\bexited with code 0\b", secondary=True),
)
AGAIN_PATTERNS: Final[tuple[Pattern, ...]] = tuple(
    pattern("trying_again", words, rf"{words}\b", secondary=True)
    for words in ("etrying", "trying again", "try again in", "ext attempt", "trying port", "next port", "other port")
)
