import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.frameworks.deepspeed import DeepSpeedSettings, DeepSpeedTimeout, read_config
from stallwatch.doctor.frameworks.deepspeed_keys import DeepSpeedKeys
from stallwatch.doctor.frameworks.deepspeed_values import DeepSpeedValues
from stallwatch.doctor.surroundings import Question, Surroundings
from stallwatch.errors import UnusableInput
from tests.unit.doctor.fakes import FakeDisks, FakeTraining, Node, one, training

GOOD = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "anything": 1}},
    "zero_optimization": {
        "stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": 5e7,
        "stage3_gather_16bit_weights_on_model_save": True, "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
    "wall_clock_breakdown": False,
}  # fmt: skip


def around(node: Node, config: Mapping[str, object], **changes: Any) -> Surroundings:
    path = node.write("ds.json", json.dumps(config))
    shell = changes.pop("shell", {})
    return node.around(shell, question=Question(deepspeed=(path,)), **changes)


def test_a_usual_configuration_is_silent(node: Node) -> None:
    assert DeepSpeedKeys().look(around(node, GOOD)) == ()
    assert DeepSpeedSettings().look(around(node, GOOD)) == ()
    assert DeepSpeedValues().look(around(node, GOOD)) == ()


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"gradient_clip": 1.0}, "warning", 'rename it to "gradient_clipping"'),
        ({"zero_optimisation": {}}, "warning", 'rename it to "zero_optimization"'),
        ({"zero_optimization": {"stage": 3, "overlap_com": True}}, "error", 'rename it to "overlap_comm"'),
        ({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}, "error", 'rename it to "device"'),
        ({"zero_optimization": {"16bit_weights_on_model_save": True}}, "error", "gather_16bit_weights_on_model_save"),
        ({"timeout": {"grad_sync_timeout": 1200}}, "warning", "DEEPSPEED_TIMEOUT"),
        ({"communication_backend": {"name": "nccl"}}, "warning", "init_distributed"),
        ({"fp16": {"enable": True}}, "error", 'rename it to "enabled"'),
        ({"totally_unrelated_words": 1}, "warning", "remove it"),
    ],
)
def test_unknown_keys_are_told_with_the_nearest(
    node: Node, change: dict[str, object], severity: str, words: str
) -> None:
    found = one(DeepSpeedKeys().look(around(node, change)))
    assert found.severity == severity
    assert words in found.remedy


def test_a_removed_section_is_an_error_for_releases_that_refuse_it(node: Node) -> None:
    new = FakeTraining(training(deepspeed="0.19.8"))
    assert one(DeepSpeedKeys().look(around(node, {"elasticity": {}}, training=new))).severity == "error"
    old = FakeTraining(training(deepspeed="0.15.0"))
    assert one(DeepSpeedKeys().look(around(node, {"elasticity": {}}, training=old))).severity == "info"


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "error", "both enabled"),
        ({"wall_clock_breakdown": True}, "info", "wall_clock_breakdown"),
        ({"comms_logger": {"enabled": True}}, "info", "comms_logger"),
        ({"zero_optimization": {"reduce_bucket_size": 1000}}, "warning", "1000 elements"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "warning", "stage 2"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "error", "nvme_path is not set"),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3},
            "error",
            "64 is not 4 × 3",
        ),
    ],
)
def test_settings_that_stall_or_do_not_add_up_are_told(
    node: Node, change: dict[str, object], severity: str, words: str
) -> None:
    found = one(DeepSpeedSettings().look(around(node, change)))
    assert found.severity == severity
    assert words in found.seen


def test_batch_sizes_are_held_against_the_world(node: Node) -> None:
    sizes = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert DeepSpeedSettings().look(around(node, sizes, shell={"WORLD_SIZE": "4"})) == ()
    assert one(DeepSpeedSettings().look(around(node, sizes, shell={"WORLD_SIZE": "8"}))).severity == "error"


def test_an_offload_folder_that_does_not_answer_is_told(node: Node) -> None:
    config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}}}
    assert DeepSpeedSettings().look(around(node, config)) == ()
    lost = FakeDisks({"/nvme": "/nvme: No such file or directory"})
    assert "No such file" in one(DeepSpeedSettings().look(around(node, config, disks=lost))).seen


def test_without_a_file_there_is_nothing_to_look_at(node: Node) -> None:
    for check in (DeepSpeedKeys(), DeepSpeedSettings()):
        with pytest.raises(Inapplicable):
            check.look(node.around())


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_file_that_is_no_configuration_is_unusable(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UnusableInput):
        read_config(tmp_path / "x.json")
    with pytest.raises(UnusableInput):
        read_config(tmp_path / "absent.json")


def test_a_timeout_in_seconds_where_minutes_are_read_is_told(node: Node) -> None:
    found = one(DeepSpeedTimeout().look(node.around({"DEEPSPEED_TIMEOUT": "1800"})))
    assert found.remedy == "export DEEPSPEED_TIMEOUT=30"
    assert DeepSpeedTimeout().look(node.around({"DEEPSPEED_TIMEOUT": "30"})) == ()
    with pytest.raises(Inapplicable):
        DeepSpeedTimeout().look(node.around())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, '"offload_optimizer": {"device": "cpu"}'),
        ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, '"offload_param": {"device": "cpu"}'),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}},
            "stage3_gather_16bit_weights_on_model_save",
        ),
        ({"bfloat16": {"enabled": True}}, '"bf16"'),
        ({"fp32_allreduce": True}, "communication_data_type"),
    ],
)
def test_a_deprecated_key_carries_the_new_one(node: Node, config: dict[str, object], words: str) -> None:
    assert words in one(DeepSpeedKeys().look(around(node, config))).remedy


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"per_device_train_batch_size": 4}, "Hugging Face's TrainingArguments"),
        ({"zero3_init_flag": True}, "accelerate"),
        ({"gradient_clip_val": 1.0}, "Lightning"),
        ({"find_unused_parameters": True}, "DistributedDataParallel"),
        ({"tensor_model_parallel_size": 2}, "Megatron-LM"),
        ({"bf16": {"enabled": True, "loss_scale": 0}}, '"fp16"'),
        ({"overlap_comm": True}, '"zero_optimization"'),
        ({"zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1e9}}, "ZeRO stage 3"),
        ({"zero_optimization": {"stage": 3, "round_robin_gradients": True}}, "ZeRO stage 1 and 2"),
    ],
)
def test_a_key_of_another_stage_section_or_library_says_whose(
    node: Node, config: dict[str, object], words: str
) -> None:
    assert words in one(DeepSpeedKeys().look(around(node, config))).seen


@pytest.mark.parametrize(
    "config",
    [
        GOOD,
        {
            "train_batch_size": "auto", "zero_optimization": {
                "stage": 2, "overlap_comm": True, "allgather_partitions": True, "allgather_bucket_size": 5e8,
                "reduce_scatter": True, "contiguous_gradients": True,
            },
            "fp16": {
                "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
                "hysteresis": 2, "min_loss_scale": 1,
            },
        },
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "sub_group_size": 1e9,
         "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "offload_param": {"device": "cpu"}}},
        {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2},
    ],
)  # fmt: skip
def test_right_configurations_are_silent(node: Node, config: dict[str, object]) -> None:
    for check in (DeepSpeedKeys(), DeepSpeedSettings()):
        assert check.look(around(node, config)) == ()


def test_ranks_and_nodes_of_the_command_line_are_the_world(node: Node) -> None:
    path = node.write(
        "ds.json", '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}'
    )
    told = node.around(question=Question(deepspeed=(path,), local_ranks=4, nodes=2))
    assert "is not 8 × 2 × 8" in one(DeepSpeedSettings().look(told)).seen
    assert "train_batch_size is 128" in one(DeepSpeedSettings().look(told)).remedy
    right = node.around(question=Question(deepspeed=(path,), local_ranks=2))
    assert DeepSpeedSettings().look(right) == ()


def test_the_old_form_of_zero_is_refused(node: Node) -> None:
    assert one(DeepSpeedSettings().look(around(node, {"zero_optimization": True}))).severity == "error"


def test_a_file_that_is_named_and_lies_in_a_folder_of_scripts_is_told_once(node: Node) -> None:
    path = node.write("ds.json", json.dumps({"gradient_clip": 1.0}))
    question = Question(deepspeed=(path,), scripts=(path.parent,))
    assert one(DeepSpeedKeys().look(node.around({}, question=question))).severity == "warning"


def test_json_in_a_guide_is_held_to_deepspeeds_rules(node: Node) -> None:
    text = '# ZeRO\n\n```json\n{\n  // two stages\n  "zero_optimization": {"stage": 2, "overlap_com": true}\n}\n```\n'
    guide = node.around(question=Question(scripts=(node.write("guide.md", text),)))
    found = one(DeepSpeedKeys().look(guide))
    assert "overlap_comm" in found.remedy
    assert found.subject.endswith("guide.md:4")
    for other in ('```json\n{"name": "x"}\n```\n', "```json\n{ …\n```\n", "no code"):
        with pytest.raises(Inapplicable):
            DeepSpeedKeys().look(node.around(question=Question(scripts=(node.write("g.md", other),))))


def test_values_that_deepspeed_does_not_take_are_told_with_what_to_write(node: Node) -> None:
    zero: dict[str, tuple[object, str, str]] = {
        "stage": (4, "error", '"stage": 3'),
        "overlap_comm": ("True", "warning", '"overlap_comm": true'),
        "offload_optimizer": ("cpu", "error", '"offload_optimizer": {"device": "cpu"}'),
        "offload_param": ({"device": "disk"}, "error", '"device": "nvme"'),
        "reduce_bucket_size": (0, "error", "a whole number"),
    }
    top: dict[str, tuple[object, str, str]] = {
        "bf16": (True, "error", '"bf16": {"enabled": true}'),
        "train_micro_batch_size_per_gpu": ("4", "warning", '"train_micro_batch_size_per_gpu": 4'),
        "gradient_accumulation_steps": (-1, "error", "a whole number"),
        "communication_data_type": ("float16", "error", '"communication_data_type": "fp16"'),
        "data_types": ({"grad_accum_dtype": "float32"}, "error", '"grad_accum_dtype": "fp32"'),
        "zero_optimization": ({"stage": "3"}, "warning", '"stage": 3'),
    }
    cases: list[tuple[dict[str, object], str, str]] = []
    for key, (value, severity, better) in top.items():
        cases.append(({key: value}, severity, better))
    for key, (value, severity, better) in zero.items():
        cases.append(({"zero_optimization": {key: value}}, severity, better))
    for config, severity, better in cases:
        found = one(DeepSpeedValues().look(around(node, config)))
        assert (found.severity, better in found.remedy) == (severity, True), (config, found)


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 3, "sub_group_size": 1e9, "offload_param": {"device": "none"}}},
        {"train_batch_size": "auto", "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": "auto"}},
        {"checkpoint": {"tag_validation": "WARN"}, "scheduler": {"type": "CosineAnnealingLR", "params": {}}},
        {"zero_optimization": {"stage": 0}, "fp16": {"enabled": False}, "bf16": {"enabled": True}},
    ],
)
def test_values_that_it_takes_are_silent(node: Node, config: dict[str, object]) -> None:
    assert DeepSpeedValues().look(around(node, config)) == ()


@pytest.mark.parametrize(
    ("section", "key", "whose"),
    [
        ("", "fsdp_sharding_strategy", "FSDP"), ("zero_optimization", "fsdp_backward_prefetch", "FSDP"),
        ("zero_optimization", "sharding_strategy", "FSDP"), ("", "mixed_precision", "accelerate"),
        ("", "reshard_after_forward", "FSDP"), ("", "ddp_bucket_cap_mb", "DistributedDataParallel"),
    ],
)  # fmt: skip
def test_a_key_of_another_library_says_whose_it_is(node: Node, section: str, key: str, whose: str) -> None:
    config: dict[str, object] = {section: {key: 1}} if section else {key: 1}
    found = one(DeepSpeedKeys().look(around(node, config)))
    assert f"it is a key of {whose}" in found.seen


@pytest.mark.parametrize(("config", "ranks", "right"), [
    ({"train_batch_size": 33, "train_micro_batch_size_per_gpu": 2}, None, False),
    ({"train_batch_size": 48, "gradient_accumulation_steps": 4}, 8, False),
    ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 8, True),
    ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}, None, True),
])  # fmt: skip
def test_a_batch_that_does_not_divide_is_told(
    node: Node, config: dict[str, object], ranks: int | None, right: bool
) -> None:
    path = node.write("ds.json", json.dumps(config))
    found = DeepSpeedSettings().look(node.around({}, question=Question(deepspeed=(path,), local_ranks=ranks)))
    assert (found == ()) is right


@pytest.mark.parametrize("key", ["deepspeed_plugin", "deepspeed_multinode_launcher", "main_process_ip"])
def test_a_key_of_accelerate_is_told_with_its_owner(node: Node, key: str) -> None:
    found = one(DeepSpeedKeys().look(around(node, {**GOOD, key: "x"})))
    assert found.seen == f'"{key}" is no key of DeepSpeed; it is a key of accelerate.'
