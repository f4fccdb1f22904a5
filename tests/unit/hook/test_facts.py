"""Nothing secret leaves the process."""

import json

from stallwatch.hook import facts


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
