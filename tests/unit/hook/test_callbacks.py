"""Callbacks for frameworks, against stand-ins with the frameworks' own method names."""

import copy
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stallwatch.hook import lightning, transformers
from stallwatch.hook.beat import Beat, Phases, step_counter


class Attached:
    def __init__(self) -> None:
        self.phases = Phases(0)
        step, self.read, _ = step_counter()
        self.beat = Beat(step, self.phases, lambda: True)

    @property
    def steps(self) -> int:
        return self.read()[0]

    @property
    def phase(self) -> str:
        return self.phases.current()[0]


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Attached:
    made = Attached()
    for module in (lightning, transformers):
        monkeypatch.setattr(module, "attach", lambda: made.beat)
    return made


def framework(monkeypatch: pytest.MonkeyPatch, name: str, base: str) -> Any:
    module = ModuleType(name)
    kind: Any = type(base, (), {})
    setattr(module, base, kind)
    monkeypatch.setitem(sys.modules, name, module)
    return kind


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_counts_batches_and_names_phases(
    attached: Attached, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = framework(monkeypatch, name, "Callback")
    callback: Any = lightning.callback()
    assert isinstance(callback, base)
    callback.on_sanity_check_start("trainer", "module")
    callback.on_validation_start("trainer", "module")
    assert attached.phase == "validation"
    callback.on_validation_end("trainer", "module")
    callback.on_train_batch_start("trainer", "module", {}, 0)
    callback.on_train_batch_end("trainer", "module", {}, {}, 0)
    assert (attached.steps, attached.phase) == (1, "")
    callback.on_save_checkpoint("trainer", "module", {})
    assert attached.phase == "checkpoint"
    callback.on_train_batch_start("trainer", "module", {}, 1)
    assert attached.phase == ""


def test_hugging_face_counts_steps_and_names_phases(attached: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    base = framework(monkeypatch, "transformers", "TrainerCallback")
    callback: Any = transformers.callback()
    assert isinstance(callback, base)
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    callback.on_step_begin(None, None, control)
    callback.on_step_end(None, None, control)
    assert (attached.steps, attached.phase) == (1, "")
    control = SimpleNamespace(should_evaluate=True, should_save=True)
    callback.on_step_end(None, None, control)
    assert attached.phase == "evaluation"
    callback.on_evaluate(None, None, control, metrics={})
    assert attached.phase == "checkpoint"
    callback.on_save(None, None, control)
    assert attached.phase == ""


def test_callbacks_may_be_sent_to_spawned_workers(attached: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    framework(monkeypatch, "transformers", "TrainerCallback")
    framework(monkeypatch, "lightning.pytorch", "Callback")
    for callback in (transformers.callback(), lightning.callback()):
        assert pickle.loads(pickle.dumps(callback)).on_train_end  # noqa: TID251 - our own object
        assert copy.deepcopy(callback).on_train_end


def test_a_missing_framework_is_said_when_a_callback_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        transformers.callback()
    with pytest.raises(ImportError):
        lightning.callback()
