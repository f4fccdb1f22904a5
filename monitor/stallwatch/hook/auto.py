"""Attaches by itself where a process group is made: for Ray, vLLM and mp.spawn, whose ranks run no line of ours.

`stallwatch auto enable` puts a .pth file into an environment; each interpreter there then calls `arm()`, which costs
one entry in sys.meta_path until torch.distributed is imported. A process that makes no group is left alone.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Optional

MODULE = "torch.distributed.distributed_c10d"
# One line, for a .pth file runs its lines that begin with "import". It must stay silent when we are not there any more.
PTH_NAME = "stallwatch-auto.pth"
PTH_LINE = (
    'import os; exec("try:\\n from stallwatch.hook.auto import arm; arm()\\nexcept Exception: pass") '
    'if os.environ.get("STALLWATCH_DISABLE", "").strip().lower() in ("", "0", "no", "false", "off") else None\n'
)


def arm() -> None:
    """Wait for torch.distributed; never raises."""
    try:
        if MODULE in sys.modules:
            _wrap(sys.modules[MODULE])
        elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    except Exception:
        pass


class _Finder(MetaPathFinder):
    """Lets Python find the one module as always, and has it wrapped once it is there."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> "Optional[ModuleSpec]":
        if fullname != MODULE:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _WrappingLoader(spec.loader)
            return spec
        except Exception:
            return None  # the next finder finds it


class _WrappingLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> "Optional[ModuleType]":
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is what it would have been without us.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            _wrap(module)
        except Exception:
            pass


def _wrap(module: ModuleType) -> None:
    """Replace init_process_group before torch.distributed passes it on to its users."""
    import functools

    original = module.init_process_group
    if hasattr(original, "__stallwatch__"):
        return

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        _attach()
        return original(*arguments, **options)

    init_process_group.__stallwatch__ = True  # type: ignore[attr-defined]
    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _attach() -> None:
    try:
        from stallwatch.hook.attachment import attach

        attach(auto=True)
    except Exception:
        pass
