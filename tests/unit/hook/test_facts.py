"""Nothing secret leaves the process."""

import json

import pytest

from stallwatch.hook import facts


@pytest.mark.parametrize(
    ("argv", "clean"),
    [
        (["t.py", "--api-key", "abc", "--lr=1"], ["t.py", "--api-key", "(redacted)", "--lr=1"]),
        (["t.py", "--hf_token=abc"], ["t.py", "--hf_token=(redacted)"]),
        (["t.py", "--password", "--verbose"], ["t.py", "--password", "--verbose"]),
        (["WANDB_API_KEY=abc", "t.py"], ["WANDB_API_KEY=(redacted)", "t.py"]),
        (["t.py", "--data", "s3://user:pw@host/x"], ["t.py", "--data", "s3://(redacted)@host/x"]),
        (["t.py", "https://h/x?sig=abc&v=1"], ["t.py", "https://h/x?sig=(redacted)&v=1"]),
        (["t.py", "--url", "https://hooks.slack.com/services/T/B/x"], ["t.py", "--url", "(redacted)"]),
        (["t.py", "hf_" + "a" * 30], ["t.py", "(redacted)"]),
        (["t.py", "trainer.logger.token=abc"], ["t.py", "trainer.logger.token=(redacted)"]),
        (["t.py", "--tokenizer", "/m", "--max_tokens", "3"], ["t.py", "--tokenizer", "/m", "--max_tokens", "3"]),
    ],
)
def test_a_command_line_is_scrubbed(argv: list[str], clean: list[str]) -> None:
    assert facts.scrubbed_argv(argv) == clean


def test_only_what_shapes_communication_is_taken_from_the_environment() -> None:
    chosen = facts.chosen_environment(
        {
            "NCCL_DEBUG": "INFO",
            "RANK": "1",
            "SLURM_JOB_ID": "7",
            "AWS_SECRET_ACCESS_KEY": "x",
            "HOME": "/home/x",
            "TORCH_AUTH_TOKEN": "x",
            "STALLWATCH_SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/x",
            "MASTER_ADDR": "http://u:p@h",
        }
    )
    assert chosen == {
        "NCCL_DEBUG": "INFO",
        "RANK": "1",
        "SLURM_JOB_ID": "7",
        "TORCH_AUTH_TOKEN": "(redacted)",
        "MASTER_ADDR": "http://(redacted)@h",
    }


def test_facts_are_json() -> None:
    collected = facts.collect({"RANK": "1"}, ["t.py"], recorder_set_by_us=True)
    assert json.loads(json.dumps(collected)) == collected
    assert collected["argv"] == ["t.py"]
    versions = collected["versions"]
    assert isinstance(versions, dict)
    assert versions["stallwatch"]
