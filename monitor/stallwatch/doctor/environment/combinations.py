"""Variables looked at together: what defeats what, and rank variables that do not add up."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord, Severity
from stallwatch.doctor.environment.job_size import job_size, number
from stallwatch.doctor.environment.known_variables import BUFFER_SIZES, RECORDER_ON, catalogue
from stallwatch.doctor.environment.values import complaint
from stallwatch.doctor.network.host_names import spans_nodes
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

_TRUE = frozenset(("1", "y", "yes", "t", "true", "on"))
_OF_EVERY_NODE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104 - nothing is bound
_TORCH_TIMEOUT_SECONDS = 600  # NCCL groups' default since 2.2


class _Said(NamedTuple):
    severity: Severity
    seen: str
    why: str
    remedy: str
    source: str = ""


class Contradictions:
    """Judges several variables of one environment against each other; rank variables are asked to be complete in a
    shell alone."""

    name: ClassVar[str] = "contradictory_variables"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "settings that defeat each other, and rank variables that do not add up"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each pair of settings of one environment that defeat each other, for loopback interfaces, and
        for rank variables of a shell that are incomplete."""
        return tuple(
            finding(
                self, said.severity, environment.place, seen=said.seen, why=said.why, remedy=said.remedy,
                source=said.source,
            )
            for environment in surroundings.environments
            for said in (
                *_contradictions(environment.values),
                *_loopback(surroundings, environment.values),
                *(_incomplete(environment.values) if _is_shell(environment) else ()),
            )
        )  # fmt: skip


def _contradictions(values: Mapping[str, str]) -> Iterator[_Said]:
    threads, sockets = number(values, "NCCL_SOCKET_NTHREADS"), number(values, "NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and threads * sockets > 64:
        yield _Said(
            "warning",
            f"NCCL_SOCKET_NTHREADS={threads} times NCCL_NSOCKS_PERTHREAD={sockets} is {threads * sockets}.",
            "NCCL allows 64 and cuts the rest.",
            "make the product at most 64",
            "NCCL user guide",
        )
    if values.get("NCCL_IB_DISABLE") == "1" and values.get("NCCL_IB_HCA"):
        yield _Said(
            "warning",
            f"NCCL_IB_DISABLE=1 and NCCL_IB_HCA={values['NCCL_IB_HCA']} are both set.",
            "The adapters are chosen and then not used.",
            "unset NCCL_IB_DISABLE",
        )
    if values.get("TORCH_NCCL_BLOCKING_WAIT", "").lower() in _TRUE and "TORCH_NCCL_ASYNC_ERROR_HANDLING" in values:
        yield _Said(
            "warning",
            "TORCH_NCCL_BLOCKING_WAIT and TORCH_NCCL_ASYNC_ERROR_HANDLING are both set.",
            "With blocking wait PyTorch turns asynchronous error handling off.",
            "unset TORCH_NCCL_BLOCKING_WAIT",
            "ProcessGroupNCCL.cpp",
        )
    for least, most in (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")):
        low, high = number(values, least), number(values, most)
        if low and high and low > high:
            yield _Said(
                "warning",
                f"{least}={low} is more than {most}={high}.",
                "Which of them counts depends on the version, and ranks with different versions then differ.",
                f"unset {least}",
                "NCCL user guide",
            )
    both = [
        name for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP") if values.get(name, "").lower() in _TRUE
    ]
    if len(both) > 1:
        yield _Said(
            "warning",
            f"{both[0]} and {both[1]} are both on.",
            "accelerate wraps the model by one of them only; ranks of hosts with another default differ.",
            f"unset {both[1]}, or answer `accelerate config` again",
            "accelerate 1.15.0, accelerator.py",
        )
    subsystems, level = values.get("NCCL_DEBUG_SUBSYS", ""), values.get("NCCL_DEBUG", "").upper()
    rules = catalogue().rules_of("NCCL_DEBUG_SUBSYS")
    # Words that NCCL does not know are value_out_of_range's to tell, quotes wrong_syntax's.
    known = rules is not None and not complaint(rules, subsystems.strip()) and subsystems.strip() == subsystems
    if subsystems and known and level not in ("INFO", "TRACE", "ABORT"):
        yield _Said(
            "info",
            f"NCCL_DEBUG_SUBSYS={subsystems} with NCCL_DEBUG={level or 'not set'}.",
            "It chooses among the lines of INFO and TRACE, of which there are none then.",
            "unset NCCL_DEBUG_SUBSYS; for a run that is to print: NCCL_DEBUG=INFO",
            "NCCL user guide, NCCL_DEBUG_SUBSYS",
        )
    yield from _two_names(values)
    yield from _infiniband_wait(values)
    yield from _ranks_add_up(values)
    dumps = values.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "").lower() in _TRUE
    if dumps and "0" in (values.get(name) for name in BUFFER_SIZES):
        yield _Said(
            "warning",
            "TORCH_NCCL_DUMP_ON_TIMEOUT is on and the recorder's buffer has 0 entries.",
            "There is nothing to dump.",
            RECORDER_ON,
        )


def _loopback(surroundings: Surroundings, values: Mapping[str, str]) -> Iterator[_Said]:
    size = job_size(values)
    if size is not None and size.local < size.world:
        how = f"with {size.local} of {size.world} ranks on this node"
    elif spans_nodes(surroundings):
        how = "and the job spans nodes"
    else:
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        if values.get(name, "").lstrip("=") == "lo":
            yield _Said(
                "error",
                f"{name}=lo {how}.",
                "Ranks of other nodes cannot be reached by the loopback interface.",
                f"unset {name}, or name the interface that leads to the other nodes",
            )


def _is_shell(environment: NamedEnvironment) -> bool:
    return environment.pid is None and not environment.is_file


def _incomplete(values: Mapping[str, str]) -> Iterator[_Said]:
    """init_process_group's four variables: whoever sets some of them by hand must set all, unless it is called with an
    init_method of its own."""
    size = number(values, "WORLD_SIZE")
    if values.get("RANK") and not values.get("WORLD_SIZE"):
        missing = "WORLD_SIZE"
    elif values.get("RANK") and size and size > 1 and not values.get("MASTER_ADDR"):
        missing = "MASTER_ADDR"
    else:
        return
    yield _Said(
        "info",
        f"RANK={values['RANK']} is set and {missing} is not.",
        f'init_process_group raises "environment variable {missing} expected" on the rank that lacks it; the others '
        "wait for it.",
        "start by torchrun, which sets all four, or unset RANK",
        "torch/distributed/rendezvous.py",
    )


def _two_names(values: Mapping[str, str]) -> Iterator[_Said]:
    for name, value in sorted(values.items()):
        variable = catalogue().variables.get(name)
        if variable is None or variable.status != "renamed" or values.get(variable.instead, value) == value:
            continue
        yield _Said(
            "warning",
            f"{name}={value} and {variable.instead}={values[variable.instead]} say different things.",
            "They are two names of one setting; which one counts depends on the version.",
            f"unset {name}",
            variable.source,
        )


def _infiniband_wait(values: Mapping[str, str]) -> Iterator[_Said]:
    exponent, retries = number(values, "NCCL_IB_TIMEOUT"), number(values, "NCCL_IB_RETRY_CNT")
    if not exponent or not 1 <= exponent <= 31:
        return
    seconds = 4.096e-6 * 2**exponent * min(7 if retries is None else retries, 7)
    if seconds > _TORCH_TIMEOUT_SECONDS:
        yield _Said(
            "warning",
            f"NCCL_IB_TIMEOUT={exponent}: a dead link is reported after {seconds / 60:.0f} minutes.",
            "PyTorch's default time-out of 10 minutes is earlier, so a link failure looks like a hang without a cause.",
            "export NCCL_IB_TIMEOUT=22  (2 minutes with 7 retries)",
            "NCCL user guide, NCCL_IB_TIMEOUT",
        )


def _ranks_add_up(values: Mapping[str, str]) -> Iterator[_Said]:
    for one, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, ranks = number(values, one), number(values, size)
        if rank is not None and ranks is not None and rank >= ranks:
            yield _Said(
                "error",
                f"{one}={rank} with {size}={ranks}.",
                "A rank that does not exist waits at the rendezvous, and so does everybody for the one that is "
                "missing.",
                f"number {one} from 0 to {size}-1, or start by torchrun, which sets both",
            )
    local, world = number(values, "LOCAL_WORLD_SIZE"), number(values, "WORLD_SIZE")
    if local is not None and world is not None and local > world:
        yield _Said(
            "error",
            f"LOCAL_WORLD_SIZE={local} is more than WORLD_SIZE={world}.",
            "The ranks of this node cannot all be part of the job.",
            "start by torchrun, which sets both",
        )
    several_nodes = local is not None and world is not None and local < world
    if several_nodes and values.get("MASTER_ADDR", "").lower() in _OF_EVERY_NODE:
        yield _Said(
            "error",
            f"MASTER_ADDR={values['MASTER_ADDR']} with {local} of {world} ranks on this node.",
            "Every node then waits for a store of its own.",
            "export MASTER_ADDR=<host name of the first node>",
        )


def places_of(surroundings: Surroundings, name: str) -> Iterator[tuple[NamedEnvironment, str]]:
    """Every environment that sets a variable, with its value."""
    for environment in surroundings.environments:
        if environment.values.get(name):
            yield environment, environment.values[name]
