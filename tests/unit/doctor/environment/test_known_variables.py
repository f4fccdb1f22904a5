import pytest

from stallwatch.doctor.environment.known_variables import catalogue, edit_distance


@pytest.mark.parametrize(
    ("left", "right", "edits"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "abd", 1),
        ("abc", "ac", 1),
        ("abcd", "abdc", 1),
        ("kitten", "sitting", 3),
    ],
)
def test_edits_count_swaps_of_neighbours_as_one(left: str, right: str, edits: int) -> None:
    assert edit_distance(left, right) == edits
    assert edit_distance(right, left) == edits


def test_the_limit_ends_the_count_early_and_is_returned() -> None:
    assert edit_distance("abcdefgh", "zyxwvuts", 3) == 3


@pytest.mark.parametrize(
    ("misspelt", "real"),
    [
        ("NCCL_DEBGU", "NCCL_DEBUG"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("GLOO_SOCKET_IF_NAME", "GLOO_SOCKET_IFNAME"),
        ("ACCELERATE_USE_DEEPSPED", "ACCELERATE_USE_DEEPSPEED"),
    ],
)
def test_the_nearest_real_name_is_found(misspelt: str, real: str) -> None:
    assert catalogue().nearest(misspelt) == real


def test_a_name_like_no_other_has_no_nearest() -> None:
    assert catalogue().nearest("NCCL_COMPLETELY_DIFFERENT_THING") == ""


def test_no_name_is_both_real_and_wrong() -> None:
    known = catalogue()
    wrong = {name for name, one in known.variables.items() if one.status in ("invented", "removed")}
    assert not wrong & known.real


def test_every_entry_says_why_what_to_do_and_who_says_so() -> None:
    for entry in catalogue().variables.values():
        assert entry.why and entry.source, entry.name
        assert entry.status not in ("renamed", "invented") or entry.instead, entry.name
        assert not entry.left_on or entry.remedy, entry.name
        assert entry.kind not in ("choice", "tokens") or entry.choices, entry.name


def test_replacements_that_are_variables_are_real() -> None:
    known = catalogue()
    for entry in known.variables.values():
        if entry.instead.replace("_", "").isalnum() and entry.instead.isupper():
            assert entry.instead in known.real, entry.name


@pytest.mark.parametrize(
    "name",
    ["NCCL_TIMEOUT", "CUDA_MEMORY_FRACTION", "DS_ACCELERATORATOR", "NCCL_REUSE_SOCKET_ADDR", "ACCELERATE_DISABLE_NCCL"],
)
def test_what_guides_invent_is_known_as_such(name: str) -> None:
    assert catalogue().variables[name].status == "invented"


@pytest.mark.parametrize(
    "name",
    [
        # Read by NCCL 2.30.7 (NCCL_PARAM and the guide) and by torch 2.15, whose recorder has variables of its own.
        "NCCL_IPC_USE_ABSTRACT_SOCKET",
        "NCCL_GRAPH_STREAM_ORDERING",
        "NCCL_SHADOW_MEMPOOL_MAX_SIZE",
        "NCCL_DEV_API_JIT",
        "TORCH_FR_DUMP_ON_TIMEOUT",
        "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC",
        "TORCH_DIST_USE_NCCL2",
    ],
)
def test_what_the_newest_releases_read_is_real(name: str) -> None:
    assert name in catalogue().real
