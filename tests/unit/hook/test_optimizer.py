"""Counting the steps of one optimizer, without importing torch."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.hook.beat import step_counter
from stallwatch.hook.guard import Guard
from stallwatch.hook.optimizer import count_optimizer_steps, step_hook


class Optimizer:
    pass


def counting() -> tuple[Callable[[object, object, object], None], Callable[[], int], Callable[[], None]]:
    step, read, _ = step_counter()
    return step_hook(step, lambda: read()[0], Guard()), lambda: read()[0], step


def test_the_first_optimizer_that_steps_is_counted_and_others_are_not() -> None:
    hook, steps, _ = counting()
    generator, discriminator = Optimizer(), Optimizer()
    for _ in range(3):
        hook(generator, (), {})
        hook(discriminator, (), {})
    assert steps() == 3


def test_when_the_counted_optimizer_is_gone_the_next_takes_over() -> None:
    hook, steps, _ = counting()
    hook(Optimizer(), (), {})
    following = Optimizer()
    hook(following, (), {})
    hook(following, (), {})
    assert steps() == 3


def test_a_job_that_counts_itself_is_not_counted_twice() -> None:
    hook, steps, step = counting()
    optimizer = Optimizer()
    for _ in range(3):
        hook(optimizer, (), {})
        step()
    assert steps() == 4  # the optimizer's first, then the job's own


def test_what_cannot_be_counted_reaches_nobody() -> None:
    hook, steps, _ = counting()
    hook(7, (), {})  # no weak reference to a number
    assert steps() == 0


@pytest.fixture
def torch_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package named torch with the one function that is needed, not yet imported."""
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from torch.optim.optimizer import register_optimizer_step_post_hook\n")
    (package / "optimizer.py").write_text(
        "hooks = []\ndef register_optimizer_step_post_hook(hook):\n    hooks.append(hook)\n"
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        del sys.modules[name]


@pytest.mark.usefixtures("torch_on_disk")
def test_an_optimizer_module_that_is_imported_later_is_hooked_in_its_import() -> None:
    step, read, _ = step_counter()
    finders = list(sys.meta_path)
    count_optimizer_steps(step, lambda: read()[0], Guard())
    assert "torch" not in sys.modules
    module = importlib.import_module("torch.optim.optimizer")
    assert len(module.hooks) == 1
    assert sys.meta_path == finders  # nothing of ours stays
    module.hooks[0](Optimizer(), (), {})
    assert read()[0] == 1


@pytest.mark.usefixtures("torch_on_disk")
def test_an_optimizer_module_that_is_there_is_hooked_at_once() -> None:
    module = importlib.import_module("torch.optim.optimizer")
    step, read, _ = step_counter()
    count_optimizer_steps(step, lambda: read()[0], Guard())
    assert len(module.hooks) == 1


@pytest.mark.usefixtures("torch_on_disk")
def test_a_torch_without_the_function_imports_as_ever(tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim" / "__init__.py").write_text("")
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text("old = True\n")
    step, read, _ = step_counter()
    guard = Guard()
    count_optimizer_steps(step, lambda: read()[0], guard)
    assert importlib.import_module("torch.optim.optimizer").old
    assert guard.errors == 0
