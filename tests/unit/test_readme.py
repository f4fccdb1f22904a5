"""The README says what the code does."""

from tests.readme import README, rendered


def test_generated_parts_equal_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert rendered(text) == text, "run `python -m tests.readme`"


def test_every_file_it_names_exists() -> None:
    root = README.parent
    package = root / "monitor" / "stallwatch"
    named = {
        word.strip("`(),;:.")
        for word in README.read_text(encoding="utf-8").split()
        if word.startswith("`") and "/" in word and word.rstrip("`(),;:.").endswith((".py", ".sh", ".toml"))
    }
    assert named
    missing = [path for path in sorted(named) if not ((root / path).exists() or (package / path).exists())]
    assert not missing
