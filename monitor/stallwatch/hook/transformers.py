"""Callback for Hugging Face's Trainer: `Trainer(…, callbacks=[stallwatch.hook.transformers.callback()])`.

transformers is imported when the callback is made.
"""

import importlib
from typing import Any

from stallwatch.hook.attachment import attach
from stallwatch.hook.phase_switch import PhaseSwitch


def callback() -> Any:
    """Return a TrainerCallback that attaches, counts optimizer steps and names evaluation and checkpoints.
    Raise ImportError where transformers is not installed."""
    return _callback_class()()


def _callback_class() -> Any:
    module: Any = importlib.import_module("transformers")

    class StallwatchCallback(module.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self._beat = attach()
            self._phase = PhaseSwitch(self._beat)

        def __reduce__(self) -> Any:
            return callback, ()  # spawned workers and copies attach themselves

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phase.become("")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._beat.step()
            self._announce(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._announce(control)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phase.become("evaluation")

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phase.become("checkpoint" if getattr(control, "should_save", False) else "")

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phase.become("")

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phase.become("")

        def _announce(self, control: Any) -> None:
            # Nothing is called when evaluation or saving begins; the Trainer's default callback, which runs before
            # ours, says here that it will.
            if getattr(control, "should_evaluate", False):
                self._phase.become("evaluation")
            elif getattr(control, "should_save", False):
                self._phase.become("checkpoint")

    return StallwatchCallback
