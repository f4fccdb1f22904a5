"""Callback for Lightning: `Trainer(callbacks=[stallwatch.hook.lightning.callback()])`.

Lightning is imported when the callback is made, under whichever of its two names the job uses.
"""

import importlib
import sys
from typing import Any

from stallwatch.hook.attachment import attach
from stallwatch.hook.phase_switch import PhaseSwitch


def callback() -> Any:
    """Return a Lightning callback that attaches, counts training batches and names the phases between them.
    Raise ImportError where Lightning is not installed."""
    return _callback_class()()


def _lightning() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if sys.modules.get(name) is not None:
            return sys.modules[name]
    try:
        return importlib.import_module("lightning.pytorch")
    except ImportError:
        return importlib.import_module("pytorch_lightning")


def _callback_class() -> Any:
    class StallwatchCallback(_lightning().Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self._beat = attach()
            self._phase = PhaseSwitch(self._beat)

        def __reduce__(self) -> Any:
            return callback, ()  # spawned workers and copies attach themselves

        def on_sanity_check_start(self, *_: Any, **__: Any) -> None:
            self._phase.become("sanity check")

        def on_train_start(self, *_: Any, **__: Any) -> None:
            self._phase.become("")

        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            self._phase.become("")

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self._beat.step()

        def on_validation_start(self, *_: Any, **__: Any) -> None:
            self._phase.become("validation")

        def on_validation_end(self, *_: Any, **__: Any) -> None:
            self._phase.become("")

        def on_test_start(self, *_: Any, **__: Any) -> None:
            self._phase.become("test")

        def on_test_end(self, *_: Any, **__: Any) -> None:
            self._phase.become("")

        def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
            # Called before the file is written, and nothing is called after: the next batch ends it.
            self._phase.become("checkpoint")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._phase.become("")

    return StallwatchCallback
