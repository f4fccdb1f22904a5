import pytest

from stallwatch.node.secrets import scrub, scrub_argv


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_API_KEY=S3CR3T",
        'export HF_TOKEN="S3CR3T"',
        '{"password": "S3CR3T"}',
        "aws_secret_access_key : S3CR3T",
        "Authorization: Bearer S3CR3Tabcdefgh",
        "--auth-token S3CR3T --lr 3",
        "postgres://user:S3CR3T@db:5432/x",
        "https://hooks.slack.com/services/T0/B0/S3CR3T",
        "hf_S3CR3Tabcdefghijk",
        "ghp_S3CR3Tabcdefghijk",
        "-----BEGIN RSA PRIVATE KEY-----\nS3CR3T\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nS3CR3T cut here",
    ],
)
def test_secret_is_taken_out(text: str) -> None:
    assert "S3CR3T" not in scrub(text)
    assert "(redacted)" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "step 5 loss 0.3 tokens/s 1200",
        "python train.py --lr 3e-4 --tokenizer llama",
        'File "/app/train.py", line 3, in forward',
        "https://example.com:8080/path",
        "generate --max-tokens 512 num_tokens=3",
        "store_based_barrier_key:1",
    ],
)
def test_ordinary_line_stays_as_it_is(text: str) -> None:
    assert scrub(text) == text


def test_value_after_the_secret_stays() -> None:
    assert scrub_argv(["train.py", "--api-key", "S3CR3T", "--lr", "3"]) == "train.py --api-key (redacted) --lr 3"
