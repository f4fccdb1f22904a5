"""The situations and hangs of this folder by name, read from their programs without importing torch."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.controls.outcome import Expected

PROGRAMS = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in (
        "situations",
        "one_rank_works",
        "rhythms",
        "starts_and_ends",
        "people",
        "ends_by_itself",
        "other_threads",
        "waits_for_threads",
        "trainers",
        "training_loops",
        "training_services",
        "training_frameworks",
        "training_projects",
        "training_reported",
        "training_in_the_field",
        "training_between_steps",
        "training_with_helpers",
        "training_on_shared_nodes",
        "training_of_users",
        "training_beside_helpers",
        "training_in_changing_worlds",
        "training_with_odd_waits",
        "training_that_looks_wrong",
        "training_by_design",
        "training_told_by_users",
        "training_that_begins_late",
        "training_of_many_kinds",
        "training_without_a_hook",
        "training_with_long_pauses",
    )
)
HANGS = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in (
        "hangs_of_one",
        "hangs_together",
        "hangs_of_systems",
        "hangs_of_loops",
        "hangs_of_frameworks",
        "hangs_of_calls",
        "hangs_of_hosts",
        "hangs_reported",
        "hangs_in_the_field",
        "hangs_in_callbacks",
        "hangs_of_helpers",
        "hangs_on_shared_nodes",
        "hangs_of_users",
        "hangs_elsewhere",
        "hangs_beside_helpers",
        "hangs_as_written",
        "hangs_of_schedules",
        "hangs_told_by_users",
        "hangs_at_the_start",
        "hangs_of_projects",
        "hangs_without_a_hook",
    )
)
ON_GPUS = Path(__file__).with_name("on_gpus.py")  # both kinds; with NCCL only
# Done from outside to a job that only trains.
DONE_TO_IT = {
    "restart": "SIGTERM to all ranks, and a new life some seconds later",
    "terminated": "SIGTERM to all ranks, and no new life",
    "elastic": "N15: a second node joins, and leaves again; torchrun restarts the ranks each time",
}
# Their hook, or its absence in one of them, is what they are about; or their ranks set their variables themselves, so
# that nothing else shows which they are.
OF_HOOKS = (
    "children_attach_too", "hook_comes_after_warming_up", "one_rank_has_no_hook", "one_rank_alone_counts_steps",
    "spawned_by_a_script", "forked_by_a_notebook",
)  # fmt: skip
# What NCCL cannot do, by why.
GLOO_ALONE = {
    "it has no monitored barrier": ("monitored_barrier", "one_takes_the_other_barrier"),
    "it knows no tags": ("tags_differ", "messages_are_taken_by_their_tags"),
    "it receives from one rank alone, and not from any": (
        "all_receive_from_anybody",
        "coordinator_never_hears_from_one",
        "coordinator_receives_from_any",
        "workers_send_gradients_to_a_server",
    ),
    "whose first message has no receiver yet stands": ("keeps_a_send_pending",),
    "its kernels of two communicators stand where ranks begin them in different orders": (
        "reductions_are_begun_in_another_order",
    ),
}
REGISTER = ("situation", "one_rank_waits", "every_rank_waits", "stands", "hang")  # decorators of common.py
STANDS_HERE = "# here"
# Who makes a call that others do not, or not so: with gloo it stands there. NCCL's calls return at once, and it stands
# where it next waits for its GPU.
OF_CALLS = frozenset({"collective_mismatch", "group_order", "p2p_unmatched"})
STANDS = 2  # the rank of `stands`


def situations_of(program: Path) -> dict[str, str]:
    """Names and first lines of a program's situations, without importing torch."""
    return {name: (ast.get_docstring(node) or "").splitlines()[0] for name, node in registered(program).items()}


def program_of(name: str, programs: Iterable[Path]) -> Path | None:
    """The first that registers this name."""
    return next((program for program in programs if name in registered(program)), None)


@cache
def registered(program: Path) -> dict[str, ast.FunctionDef]:
    """A program's situations and hangs, by name."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one).split("(")[0] in REGISTER for one in node.decorator_list)
    }


def hangs(*, on_gpus: bool = False, hooked: bool = True) -> dict[str, Expected]:
    """Every hang, and its truth: the keywords of its decorator. Where ranks are not `hooked` and stacks alone cannot
    tell who it was, nobody may be named."""
    truths = {}
    for program in (*HANGS, ON_GPUS) if on_gpus else HANGS:
        text = program.read_text(encoding="utf-8").splitlines()
        for name, node in registered(program).items():
            decorator = node.decorator_list[0]
            if not isinstance(decorator, ast.Call):
                continue  # a situation
            said = {one.arg: ast.literal_eval(one.value) for one in decorator.keywords if one.arg}
            by_nccl = said.pop("by_nccl", {})
            if on_gpus:
                said |= by_nccl
            if (by_stacks := said.pop("by_stacks", ())) and not hooked:
                said |= {"causes": by_stacks, "culprits": (), "where": ()}
            lines = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if text[n - 1].endswith(STANDS_HERE)]
            truth = {"causes": ("not_entered",), "culprits": (STANDS,), "lines": tuple(lines), **said}
            if on_gpus and OF_CALLS.intersection(truth["causes"]):
                truth["lines"] = ()
            truths[name] = Expected(**truth)
    return truths


def situations(*, on_gpus: bool = False, hooked: bool = True) -> dict[str, str]:
    """Every situation, with what it imitates; where ranks are not `hooked`, without those of which a hook is a part."""
    programs = (*PROGRAMS, ON_GPUS) if on_gpus else PROGRAMS
    without = {"restarts_itself", "small_job"}.union(hangs(on_gpus=on_gpus), () if hooked else OF_HOOKS)
    of_programs = {name: what for path in programs for name, what in situations_of(path).items()}
    return {name: what for name, what in of_programs.items() if name not in without} | DONE_TO_IT
