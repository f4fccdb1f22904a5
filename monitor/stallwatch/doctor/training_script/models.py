"""Models that DDP or FSDP wraps: which of their uses every rank must make."""

import ast
from typing import Final, Literal

from stallwatch.doctor.training_script.script_values import Origins
from stallwatch.doctor.training_script.source import Script, has_open_keywords, keyword, target_name

Wrapper = Literal["DDP", "FSDP"]

_DDP: Final = ("DistributedDataParallel", "DDP")
_FSDP: Final = ("FullyShardedDataParallel", "FSDP")
_SHARD: Final = "fully_shard"
_SAME: Final = ("compile", "convert_sync_batchnorm")  # what gives a model back that is wrapped as before
_WORDS: Final = {"DDP": "a DDP model", "FSDP": "an FSDP model"}
_RUNS: Final = ("forward", "generate")
# The ranks of a group that these name may be all that a condition on the rank lets pass.
_GROUPS: Final = ("process_group", "device_mesh", "mesh")
# What lets a rank run alone: parameters that are gathered, or not sharded, and gradients that are not averaged.
_ALONE: Final = (
    "summon_full_params",
    "unshard",
    "NO_SHARD",
    "no_shard",
    "no_sync",
    "Join",
    "set_requires_gradient_sync",
)
_DEEPEST: Final = 8  # names that stand for others


class Models:
    """Knows of one script which of its calls need every rank, because of what wraps the model. Nothing is said where a
    wrapper is of a group, or where the script has a way to run one rank alone."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._sharded = [
            call.args[0]
            for call in script.calls
            if script.last_name_of(call.func) == _SHARD and call.args and not _has_group(call)
        ]
        named = {one.attr for one in ast.walk(script.tree) if isinstance(one, ast.Attribute)}
        self._is_silent = script.mentions(*_ALONE) or not named.isdisjoint(_ALONE)

    def operation_of(self, call: ast.Call) -> str:
        """What every rank must do together in this call; "" when one may make it alone."""
        if self._is_silent:
            return ""
        if self._model_run_by(call) == "FSDP":
            return "the forward pass of an FSDP model"
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            wrapper = self._gradients(call.func.value, 0)
            if wrapper is None and call.args and self._script.name_of(call.func) == "torch.autograd.backward":
                wrapper = self._gradients(call.args[0], 0)
            if wrapper:
                return f"the backward pass of {_WORDS[wrapper]}"
        return ""

    def wrapper_of(self, node: ast.expr, depth: int = 0) -> Wrapper | None:
        """What surely wraps the model that an expression stands for; None: nothing, or nobody sees it here."""
        if depth > _DEEPEST:
            return None
        if isinstance(node, ast.Call):
            last = self._script.last_name_of(node.func)
            if last in (*_DDP, *_FSDP):
                return None if _has_group(node) else "DDP" if last in _DDP else "FSDP"
            if last in _SAME and node.args:
                return self.wrapper_of(node.args[0], depth + 1)
        origins = self._script.values.of(node)
        if origins is None:
            return None
        if target_name(node) and any(self._is_one(node, origins, one) for one in self._sharded):
            return "FSDP"
        found = [None if one is None else self.wrapper_of(one, depth + 1) for one in origins]
        if isinstance(node, (ast.Name, ast.Attribute)) and all(isinstance(one, ast.Call) for one in origins):
            # `model = Net()`, and behind it `model = DDP(model)`: the last is what it stands for.
            last_line = max(range(len(origins)), key=lambda at: getattr(origins[at], "lineno", 0))
            if found and found[last_line] and self._is_given(origins[last_line], node):
                return found[last_line]
        return found[0] if found and len(set(found)) == 1 else None

    def _is_given(self, wrapping: ast.expr | None, node: ast.expr) -> bool:
        given = wrapping.args[0] if isinstance(wrapping, ast.Call) and wrapping.args else None
        return given is not None and target_name(given) == target_name(node)

    def _is_one(self, node: ast.expr, origins: Origins, sharded: ast.expr) -> bool:
        """Whether a name is the one that fully_shard was given: the same name, with the same values."""
        if target_name(sharded) != target_name(node):
            return False
        others = self._script.values.of(sharded)
        return others is not None and [id(one) for one in others] == [id(one) for one in origins]

    def _model_run_by(self, call: ast.Call) -> Wrapper | None:
        """What wraps the model whose forward pass a call runs."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in _RUNS:
            return self.wrapper_of(call.func.value)
        return self.wrapper_of(call.func) if isinstance(call.func, (ast.Name, ast.Attribute)) else None

    def _gradients(self, node: ast.expr, depth: int) -> Wrapper | None:
        """What wraps the model whose output a loss surely is made of."""
        if depth > _DEEPEST:
            return None
        nodes = [one for one in ast.walk(node) if isinstance(one, ast.expr)]
        if any(isinstance(one, ast.Attribute) and one.attr in ("detach", "item", "data") for one in nodes):
            return None
        for one in nodes:
            if isinstance(one, ast.Call) and (wrapper := self._model_run_by(one)):
                return wrapper
        for one in nodes:
            origins = self._script.values.of(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
            made = [value for value in origins or () if not isinstance(value, ast.Constant)]
            found = {None if value is None else self._gradients(value, depth + 1) for value in made}
            if len(found) == 1 and None not in found:
                return found.pop()
        return None


def _has_group(call: ast.Call) -> bool:
    """Whether a wrapper may be of a group: FSDP takes one as its second argument."""
    return has_open_keywords(call) or len(call.args) > 1 or any(keyword(call, one) is not None for one in _GROUPS)
