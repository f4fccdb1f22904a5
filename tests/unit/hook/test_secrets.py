import pytest

from stallwatch.hook.secrets import is_secret, scrubbed, scrubbed_argv, scrubbed_value


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
        "https://S3CR3T@github.com/x",
        "GET /x?sig=S3CR3T&v=1",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJTM0NSM1QifQ.S3CR3T",
        "proxy-auth: S3CR3T",
        "-----BEGIN RSA PRIVATE KEY-----\nS3CR3T\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nS3CR3T cut here",
    ],
)
def test_secret_is_taken_out(text: str) -> None:
    assert "S3CR3T" not in scrubbed(text)
    assert "(redacted)" in scrubbed(text)


@pytest.mark.parametrize(
    "text",
    [
        "step 5 loss 0.3 tokens/s 1200",
        "python train.py --lr 3e-4 --tokenizer llama",
        'File "/app/train.py", line 3, in forward',
        "https://example.com:8080/path",
        "generate --max-tokens 512 num_tokens=3",
        "store_based_barrier_key:1",
        "author: anna",
        "commit 0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_ordinary_line_stays_as_it_is(text: str) -> None:
    assert scrubbed(text) == text


def test_forty_digits_that_are_given_to_a_program_are_a_key() -> None:
    assert scrubbed_value("0123456789abcdef" * 2 + "01234567") == "(redacted)"


def test_a_name_tells_what_is_a_secret() -> None:
    names = ("HF_TOKEN", "TORCH_AUTH", "NCCL_DEBUG", "author", "TOKENIZERS_PARALLELISM")
    assert [name for name in names if is_secret(name)] == ["HF_TOKEN", "TORCH_AUTH"]


@pytest.mark.parametrize(
    ("argv", "clean"),
    [
        (["t.py", "--api-key", "abc", "--lr=1"], ["t.py", "--api-key", "(redacted)", "--lr=1"]),
        (["t.py", "--api-key", "abc", "--lr", "3"], ["t.py", "--api-key", "(redacted)", "--lr", "3"]),
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
    assert scrubbed_argv(argv) == clean
