"""What a frame means to the thread that is in it: tables for installed code, words of the trade for the job's own."""

import re
from functools import lru_cache

from stallwatch.diagnosis.frames.code_origin import Origin, function, place
from stallwatch.diagnosis.frames.python import LIBRARY_ROWS
from stallwatch.diagnosis.frames.table import Meaning
from stallwatch.diagnosis.frames.torch import FRAMEWORK_ROWS
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import Where

_ROWS = FRAMEWORK_ROWS + LIBRARY_ROWS


@lru_cache(maxsize=65536)
def _meaning(filename: str, name: str) -> Meaning | None:
    where = place(filename)
    if where.origin is Origin.SYNTHETIC:
        return None
    bare = function(name)
    for row in _ROWS:
        if row.stdlib and where.origin is not Origin.STDLIB:
            continue
        # A job may have a folder named "datasets" or "streaming": single words mean something in installed code only.
        if where.origin in (Origin.JOB, Origin.STDLIB) and not row.stdlib and not _CHECKOUT.search(where.module + "."):
            continue
        if row.module.search(where.module) and (row.functions is None or row.functions.match(bare)):
            return row.meaning._replace(detail=row.meaning.detail.format(function=bare))
    return None


# Frameworks that people run from a checkout: the path must name the package and a module inside it.
_CHECKOUT = re.compile(
    r"(?:^|\.)(?:megatron\.(?:core|training|legacy)|deepspeed\.\w+|lightning\.(?:pytorch|fabric)|pytorch_lightning\.\w+"
    r"|accelerate\.\w+|src\.transformers\.\w+)\."
)


def meaning(frame: CodeFrame) -> Meaning | None:
    """What this frame means to the thread that is in it, or None when only its callers tell."""
    return _meaning(frame.filename, frame.name)


# Words of the trade in names of the job's own functions. Weak: they only tell what a file or queue wait is for.
_CHECKPOINT_NAME = re.compile(
    r"(?:save|write|store|dump|persist|upload|load|restore|read)\w*(?:checkpoint|ckpt|snapshot|state_dict|weights)"
    r"|(?:checkpoint|ckpt|snapshot)\w*(?:save|write|dump|load|restore|upload)|^(?:checkpoint|ckpt)$"
    r"|^_?save(?:_model|_state)?$",
    re.IGNORECASE,
)
_LOADER_NAME = re.compile(
    r"^__next__$|^__getitems?__$|collate|data_?loader|next_?batch|get_?batch|fetch_?batch|load_?batch|batch_?iter"
    r"|prefetch|read_?shard|load_?shard|fetch_?shard|next_?sample|get_?sample|load_?sample",
    re.IGNORECASE,
)  # fmt: skip


def trade_word(frame: CodeFrame) -> Where | None:
    """What the name of a function of the job suggests: "checkpoint", "dataloader", or nothing."""
    if place(frame.filename).origin not in (Origin.JOB, Origin.LIBRARY):
        return None
    bare = function(frame.name)
    if _CHECKPOINT_NAME.search(bare):
        return "checkpoint"
    return "dataloader" if _LOADER_NAME.search(bare) else None


def collective_name(frames: tuple[CodeFrame, ...]) -> str | None:
    """The call by its public name: the outermost function of torch.distributed in the innermost run of such frames."""
    name = None
    for frame in frames:
        found = meaning(frame)
        if found and found.role == "collective":
            bare = function(frame.name)
            if place(frame.filename).module.endswith("distributed_c10d"):
                name = bare if not bare.startswith("_") or name is None else name
        elif name is not None and place(frame.filename).origin is Origin.JOB:
            break
    return name
