"""attach(auto=True): count the steps of one torch optimizer, the first that makes one.

torch is not imported here. When it is not loaded yet, an import hook waits for `torch.optim.optimizer` and registers in
the thread that imports it, before any optimizer exists. Registering later from the pulse thread would be simpler and
could break a training: the table of hooks must not grow while a step iterates over it.
"""

import sys
import weakref
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable, Optional

from stallwatch.hook.beat import Step
from stallwatch.hook.guard import Guard

_MODULE = "torch.optim.optimizer"


def count_optimizer_steps(step: Step, steps: "Callable[[], int]", guard: Guard) -> None:
    """Call `step` at each step of the chosen optimizer, until somebody else (the job itself) counts too."""
    hook = step_hook(step, steps, guard)

    def register(module: ModuleType) -> None:
        function = getattr(module, "register_optimizer_step_post_hook", None)  # torch 2.0
        if function is not None:
            function(hook)

    loaded = sys.modules.get(_MODULE)
    if loaded is not None and hasattr(loaded, "register_optimizer_step_post_hook"):
        register(loaded)
    else:
        sys.meta_path.insert(0, _Watcher(register, guard))


def step_hook(step: Step, steps: "Callable[[], int]", guard: Guard) -> "Callable[[object, object, object], None]":
    """A torch optimizer post hook that counts the first optimizer it sees, and the next one when that is gone."""
    counted = 0
    chosen: Callable[[], Optional[object]] = lambda: None  # noqa: E731

    def count(optimizer: object) -> None:
        nonlocal counted, chosen
        if chosen() is None:
            chosen = weakref.ref(optimizer)
        if chosen() is optimizer and steps() == counted:  # otherwise the job calls step() itself: one of us must stop
            step()
            counted += 1

    def hook(optimizer: object, args: object, kwargs: object) -> None:
        guard.run("optimizer step", count, optimizer)

    # torch.compile leaves it alone (what torch.compiler.disable sets, without importing the compiler). torch breaks the
    # graph inside every compiled step before it comes to the hooks, so this adds no break (measured, 2.13).
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook


class _Watcher:
    """Finds nothing itself: it lets the ordinary finder find _MODULE, and is told when that has been executed."""

    def __init__(self, loaded: "Callable[[ModuleType], None]", guard: Guard) -> None:
        self._loaded = loaded
        self._guard = guard

    def find_spec(
        self, name: str, path: "Optional[Sequence[str]]" = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != _MODULE:
            return None
        return self._guard.run("optimizer", self._watched_spec, name, path, target)

    def _watched_spec(
        self, name: str, path: "Optional[Sequence[str]]", target: Optional[ModuleType]
    ) -> Optional[ModuleSpec]:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader = getattr(spec, "loader", None)
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._guard.run("optimizer", self._loaded, module)

        # On this one loader object: its type, and what the module's spec shows, stay as they are.
        loader.exec_module = exec_module
        return spec
